package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// netlinkPatience bounds the wait for an answer of the kernel, which may load a module first.
const netlinkPatience = 10 * time.Second

// linux is the kernel, through its RDMA netlink family.
type linux struct{ h *netlink.Handle }

func openKernel() (kernel, error) {
	h, err := netlink.NewHandle(unix.NETLINK_RDMA)
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT):
		return nil, errors.New("links: this kernel has no RDMA: ib_core is not loaded ('modprobe ib_core'), or was not built; --rnic soft needs none of it")
	case err != nil:
		return nil, fmt.Errorf("links: opening netlink: %w", err)
	}
	k := &linux{h}
	if err := h.SetSocketTimeout(netlinkPatience); err != nil {
		k.close()
		return nil, fmt.Errorf("links: setting netlink's deadline: %w", err)
	}
	return k, nil
}

func (k *linux) close() { k.h.Close() }

func (k *linux) list() ([]string, error) {
	devs, err := k.h.RdmaLinkList()
	if err != nil {
		return nil, explain(err)
	}
	var names []string
	for _, d := range devs {
		if d.Attrs.Name != "" { // the answer that ends the list has none
			names = append(names, d.Attrs.Name)
		}
	}
	return names, nil
}

func (k *linux) add(name, kind, netdev string) error {
	return explain(k.h.RdmaLinkAdd(name, kind, netdev))
}

func (k *linux) del(name string) error {
	err := k.h.RdmaLinkDel(name)
	if errors.Is(err, unix.EINVAL) {
		return errors.New("it is a device of hardware, which cannot be deleted")
	}
	return explain(err)
}

// explain gives errno a meaning that fits links.
func explain(err error) error {
	for _, c := range []struct {
		errno error
		means string
	}{
		{unix.EPERM, "not permitted: it needs CAP_NET_ADMIN"},
		{unix.EACCES, "not permitted: it needs CAP_NET_ADMIN"},
		{unix.EEXIST, "a device of that name, or one on that interface, exists"},
		{unix.ENODEV, "no such device"},
		{unix.EAGAIN, fmt.Sprintf("gave up waiting for the kernel's answer after %v", netlinkPatience)},
		{unix.EBUSY, "the device is in use"},
	} {
		if errors.Is(err, c.errno) {
			return fmt.Errorf("%s (%w)", c.means, err)
		}
	}
	return err
}

func (k *linux) release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "(unknown)"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func (k *linux) root() fs.FS { return os.DirFS("/") }
