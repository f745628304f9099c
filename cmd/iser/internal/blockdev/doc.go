// Package blockdev attaches disks to the Linux kernel as block devices, by its nbd driver and that driver's generic netlink family.
//
//	 /dev/nbdN                                            user space
//	-----|---------------------------------------------------------------
//	  nbd driver == socket pairs, one a connection ==> nbd.Server ==> disk
//	     ^                                                 |
//	     +---- netlink: CONNECT, RECONFIGURE, DISCONNECT --+  Attachment
//
// A device that is connected by netlink stays when its sockets are gone. Requests wait for as long as the dead connection timeout says, and
// RECONFIGURE brings new sockets: so the process that serves a device can be restarted. The kernel keeps a backend identifier with the device,
// which is the disk's URL here, and takes sockets only from those who know it.
package blockdev
