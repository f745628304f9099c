package initiator

import (
	"errors"
	"fmt"
	"time"

	"goiwarp/iscsi/scsi"
)

// ErrNoLogicalUnit: the target answers for a Disk's LUN, and has no logical unit there.
var ErrNoLogicalUnit = errors.New("initiator: no logical unit there")

// Errors of disks. They come wrapped.
var (
	// ErrNoPath: there was no path to the logical unit for DiskConfig.ReplacementTimeout. It comes as a *PathError.
	ErrNoPath = errors.New("initiator: no path")
	// ErrUncertain: the connection was lost before the answer, and the command is not one to be executed twice. It comes as an *UncertainError.
	ErrUncertain = errors.New("initiator: command may or may not have been executed")
	// ErrOtherDisk: a path leads to another logical unit than before. It comes as an *IdentityError.
	ErrOtherDisk = errors.New("initiator: another logical unit")
	// ErrReservationLost: a reservation made through the Disk is gone. It comes as a *ReservationError.
	ErrReservationLost = errors.New("initiator: reservation lost")
	// ErrCacheLost: the target was reset with its write cache, and writes that were answered but not flushed may be lost. The next Flush tells it, once.
	ErrCacheLost = errors.New("initiator: target lost its write cache: writes since the last flush may be lost")
	// ErrOrdered: a Disk takes only simple task attributes, because commands may be sent again by another path.
	ErrOrdered = errors.New("initiator: a disk takes commands with simple task attributes only")
)

// PathError is a command's end for want of a path.
type PathError struct {
	Target string
	Waited time.Duration // how long the command, or all, had waited
	Cause  error         // why the last path was lost, or is not there again
}

func (e *PathError) Error() string {
	return fmt.Sprintf("initiator: no path to %s for %v: %v", e.Target, e.Waited.Round(time.Millisecond), e.Cause)
}

// Unwrap gives ErrNoPath and the cause.
func (e *PathError) Unwrap() []error { return []error{ErrNoPath, e.Cause} }

// UncertainError is a command's end by a lost connection.
type UncertainError struct {
	Op    string // the command's name
	Cause error
}

func (e *UncertainError) Error() string {
	return fmt.Sprintf("initiator: %s may or may not have been executed: %v", e.Op, e.Cause)
}

// Unwrap gives ErrUncertain and the cause.
func (e *UncertainError) Unwrap() []error { return []error{ErrUncertain, e.Cause} }

// IdentityError says how the logical unit at the end of a path differs from the one that was opened.
type IdentityError struct {
	What      string // what differs
	Have, Was string
}

func (e *IdentityError) Error() string {
	return fmt.Sprintf("initiator: another logical unit: %s is %s, was %s", e.What, e.Have, e.Was)
}

// Is makes errors.Is find ErrOtherDisk.
func (e *IdentityError) Is(target error) bool { return target == ErrOtherDisk }

// ReservationError says that others may use what was reserved. Commands to the medium fail with it until the caller has registered again.
type ReservationError struct{ Why string }

func (e *ReservationError) Error() string { return "initiator: reservation lost: " + e.Why }

// Is makes errors.Is find ErrReservationLost.
func (e *ReservationError) Is(target error) bool { return target == ErrReservationLost }

// uncertain is the end of a command that cannot be sent again.
func uncertain(r *Request) error {
	return &UncertainError{Op: scsi.OpcodeName(r.command()), Cause: r.Err}
}
