package rnic

import (
	"errors"
	"fmt"
)

// Errors of the verbs themselves. Providers wrap them.
var (
	ErrClosed   = errors.New("rnic: closed")
	ErrBusy     = errors.New("rnic: still in use")
	ErrBound    = errors.New("rnic: window is bound")
	ErrQueue    = errors.New("rnic: queue is full")
	ErrBadWR    = errors.New("rnic: malformed work request")
	ErrAccess   = errors.New("rnic: region lacks the needed right")
	ErrBounds   = errors.New("rnic: outside of the region")
	ErrState    = errors.New("rnic: not possible in this state")
	ErrTooLarge = errors.New("rnic: beyond a limit of the device")
)

// UnsupportedError says that the device does not claim an operation.
type UnsupportedError struct {
	Device string
	Op     string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("rnic: device %s does not offer %s", e.Device, e.Op)
}

// RejectedError says that the peer refused the connection.
type RejectedError struct {
	PrivateData      []byte
	PeerIRD, PeerORD int
}

func (e *RejectedError) Error() string {
	return fmt.Sprintf("rnic: connection rejected by the peer (%d octets of private data)", len(e.PrivateData))
}
