package blockdev

import (
	"errors"
	"fmt"
	"time"

	"goiwarp/cmd/iser/internal/nbd"
)

// Any lets the kernel choose a device that is free.
const Any = -1

// Settings are what the kernel is told of a device.
type Settings struct {
	Index      int // of /dev/nbdN, or Any
	Size       int64
	BlockSize  int
	Flags      nbd.TransmissionFlags
	Identifier string
	// Timeout is how long the kernel waits for an answer before it gives the connection up and sends the request again by another one. DeadTimeout
	// is how long requests wait while there is no connection. Whole seconds; 0 is left out, and means for ever and not at all.
	Timeout, DeadTimeout time.Duration
}

// Driver is the kernel's nbd driver.
type Driver interface {
	// Connect sets a device up. The kernel holds on to the sockets: the caller's descriptors stay the caller's.
	Connect(s Settings, sockets []int) (index int, err error)
	// Reconfigure puts sockets in the place of dead ones; those that there is no place for are left alone. A Size other than 0 is the new size.
	Reconfigure(s Settings, sockets []int) error
	// Disconnect ends a device, in use or not.
	Disconnect(index int) error
	// Bound tells whether a device is set up.
	Bound(index int) bool
}

// Errors of attaching. They come wrapped, with what to do about it.
var (
	// ErrNoDriver: the kernel has no nbd driver loaded.
	ErrNoDriver = errors.New("the kernel's nbd driver is not loaded: run 'modprobe nbd', and put 'nbd' into /etc/modules-load.d/nbd.conf to have it loaded at boot")
	// ErrNotAllowed: the kernel asks for more rights.
	ErrNotAllowed = errors.New("block devices are attached by root (CAP_SYS_ADMIN): run it with sudo; 'iser serve-nbd' needs no root")
	// ErrNotLinux: block devices are attached to Linux only.
	ErrNotLinux = errors.New("block devices are attached by Linux's nbd driver, which this system has not: use 'iser serve-nbd'")
	// ErrDetached: somebody has disconnected the device.
	ErrDetached = errors.New("the device was detached")
)

// Path is the device's path.
func Path(index int) string { return fmt.Sprintf("/dev/nbd%d", index) }

// BusyError says that a device is in use.
type BusyError struct {
	Device string
	Users  string // who uses it, where that is known
}

func (e *BusyError) Error() string {
	if e.Users == "" {
		return e.Device + " is in use"
	}
	return e.Device + " is in use: " + e.Users
}

// Device is one attached device.
type Device struct {
	Index       int    `json:"-"`
	Path        string `json:"device"`
	URL         string `json:"url"`
	Size        int64  `json:"size"`
	BlockSize   int    `json:"block_size"`
	Connections int    `json:"connections"`
	// PID is the process that serves it; 0 if none does.
	PID int `json:"pid,omitempty"`
	// Served tells that requests are answered; else they wait for 'iser attach' to be run again.
	Served bool      `json:"served"`
	Since  time.Time `json:"since,omitzero"`
}
