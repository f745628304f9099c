// Package iser is the iSER Datamover (RFC 7145) behind RFC 5047's Datamover Interface: it carries
// iSCSI's control PDUs in RDMA Sends and moves command data by RDMA Write and RDMA Read, over any
// rnic.Device.
//
// The initiator advertises its I/O buffers with the SCSI Command; the target then reads and
// writes them by itself, so that there are no Data-In, R2T and solicited Data-Out PDUs:
//
//	initiator                                                         target
//	SendControl(SCSI Command) -- Send: iSER header (STags) | BHS | data -->  ControlNotify
//	  (window bound: Read STag)   <-- RDMA Write to the Read STag --------   PutData
//	  (window bound: Write STag)  <-- RDMA Read of the Write STag --------   GetData
//	                              --- Read Response -------------------->    DataCompletionNotify
//	ControlNotify(SCSI Response) <-- Send, or Send with Invalidate -------   SendControl
//	  (windows dead before it)
//
// Every Send carries one iSER message:
//
//	+------------------+-----------+------------+-------------------------+
//	| iSER header (28) | BHS (48)  | AHS (n*4)  | data segment (+pad to 4)|
//	+------------------+-----------+------------+-------------------------+
//
// # Order of setup
//
// The connection is an RDMA connection from its first octet, as Linux's ib_iser and isert make it:
// both ends exchange a 4-octet CM header as private data, and the whole login travels in Sends.
// RFC 7145's own order (login in the byte stream, then the switch) is Handover's: it is the Datamover of the login, and hands its
// connection to a Datamover, or to plain iSCSI.
//
// # Pieces
//
// A Domain belongs to a device and is shared by its connections: the protection domain, the receives
// and the pool of registered buffers. A Datamover is one connection. Memory is granted to the
// peer through memory windows that live no longer than the task that needs them; a device that has no windows
// (Linux's siw from user space) grants its buffers' own regions instead, and withdraws one only when a task was aborted.
//
// Nothing here waits: completions run on the goroutine that reads the connection, and what does not fit the send queue or
// the peer's read depth waits in a list.
package iser
