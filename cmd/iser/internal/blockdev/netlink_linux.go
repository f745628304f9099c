package blockdev

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The nbd family (include/uapi/linux/nbd-netlink.h).
const (
	familyName    = "nbd"
	familyVersion = 1

	cmdConnect     = 1
	cmdDisconnect  = 2
	cmdReconfigure = 3

	attrIndex       = 1
	attrSize        = 2
	attrBlockSize   = 3
	attrTimeout     = 4
	attrServerFlags = 5
	attrSockets     = 7
	attrDeadTimeout = 8
	attrIdentifier  = 10

	sockItem = 1
	sockFD   = 1
)

// Netlink is the Driver of this kernel.
type Netlink struct{ family uint16 }

// Open finds the kernel's driver.
func Open() (*Netlink, error) {
	f, err := netlink.GenlFamilyGet(familyName)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, ErrNoDriver
	case err != nil:
		return nil, fmt.Errorf("asking for the nbd driver: %w", err)
	}
	return &Netlink{f.ID}, nil
}

// message is a request of the family with the attributes that Connect and Reconfigure have in common.
func (n *Netlink) message(cmd uint8, s Settings, sockets []int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(int(n.family), unix.NLM_F_ACK)
	r.AddData(&nl.Genlmsg{Command: cmd, Version: familyVersion})
	u64 := func(typ int, v uint64) { r.AddData(nl.NewRtAttr(typ, binary.NativeEndian.AppendUint64(nil, v))) }
	if s.Index != Any {
		r.AddData(nl.NewRtAttr(attrIndex, nl.Uint32Attr(uint32(s.Index))))
	}
	if s.Size > 0 {
		u64(attrSize, uint64(s.Size))
		u64(attrBlockSize, uint64(s.BlockSize))
	}
	if s.Timeout > 0 {
		u64(attrTimeout, seconds(s.Timeout))
	}
	if s.DeadTimeout > 0 {
		u64(attrDeadTimeout, seconds(s.DeadTimeout))
	}
	if s.Identifier != "" {
		r.AddData(nl.NewRtAttr(attrIdentifier, nl.ZeroTerminated(s.Identifier)))
	}
	if len(sockets) > 0 {
		list := nl.NewRtAttr(attrSockets|unix.NLA_F_NESTED, nil)
		for _, fd := range sockets {
			list.AddRtAttr(sockItem|unix.NLA_F_NESTED, nil).AddRtAttr(sockFD, nl.Uint32Attr(uint32(fd)))
		}
		r.AddData(list)
	}
	return r
}

// seconds rounds up, so that a short time does not become none.
func seconds(d time.Duration) uint64 { return uint64((d + time.Second - 1) / time.Second) }

// execute sends a request and explains errors.
func execute(r *nl.NetlinkRequest, what string, index int) ([][]byte, error) {
	msgs, err := r.Execute(unix.NETLINK_GENERIC, 0)
	switch {
	case errors.Is(err, unix.EPERM):
		return nil, ErrNotAllowed
	case errors.Is(err, unix.EBUSY):
		return nil, &BusyError{Device: Path(index)}
	case err != nil && index == Any:
		return nil, fmt.Errorf("nbd driver: %s: %w", what, err)
	case err != nil:
		return nil, fmt.Errorf("nbd driver: %s %s: %w", what, Path(index), err)
	}
	return msgs, nil
}

// Connect implements Driver.
func (n *Netlink) Connect(s Settings, sockets []int) (int, error) {
	r := n.message(cmdConnect, s, sockets)
	r.AddData(nl.NewRtAttr(attrServerFlags, binary.NativeEndian.AppendUint64(nil, uint64(s.Flags))))
	msgs, err := execute(r, "connecting", s.Index)
	if err != nil {
		return 0, err
	}
	for _, m := range msgs {
		if len(m) < nl.SizeofGenlmsg {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofGenlmsg:])
		if err != nil {
			return 0, fmt.Errorf("nbd driver: connecting: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type == attrIndex && len(a.Value) >= 4 {
				return int(binary.NativeEndian.Uint32(a.Value)), nil
			}
		}
	}
	if s.Index != Any {
		return s.Index, nil
	}
	return 0, errors.New("nbd driver: connecting: the answer names no device")
}

// Reconfigure implements Driver.
func (n *Netlink) Reconfigure(s Settings, sockets []int) error {
	_, err := execute(n.message(cmdReconfigure, s, sockets), "reconfiguring", s.Index)
	return err
}

// Disconnect implements Driver.
func (n *Netlink) Disconnect(index int) error {
	_, err := execute(n.message(cmdDisconnect, Settings{Index: index}, nil), "disconnecting", index)
	return err
}

// Bound implements Driver: the kernel keeps a file as long as a device is set up.
func (n *Netlink) Bound(index int) bool {
	_, err := os.Stat(sysfs(index, "pid"))
	return err == nil
}
