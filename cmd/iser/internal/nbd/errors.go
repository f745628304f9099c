package nbd

import (
	"errors"
	"fmt"

	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

// ProtocolError says what a client sent that it must not. Its connection ends.
type ProtocolError struct{ What, Why string }

func (e *ProtocolError) Error() string { return "nbd: " + e.What + ": " + e.Why }

// ErrAborted: the client ended the handshake without choosing an export.
var ErrAborted = errors.New("nbd: the client chose no export")

// SizeError is a size that an export cannot have.
type SizeError struct {
	Size      int64
	BlockSize int
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("nbd: a disk of %d octets in blocks of %d cannot be exported", e.Size, e.BlockSize)
}

// errnoOf is a command's end as a client is told it.
func errnoOf(err error, c Command) Errno {
	var e *scsi.Error
	switch {
	case err == nil:
		return 0
	case errors.Is(err, initiator.ErrClosed):
		return errnoShutdown
	case !errors.As(err, &e) || !e.HasSense:
		return errnoIO
	}
	switch e.Sense.Code {
	case scsi.CodeSpaceAllocationFailed:
		return errnoNoSpace
	case scsi.CodeLBAOutOfRange:
		if c == CmdRead {
			return errnoInval
		}
		return errnoNoSpace
	case scsi.CodeInvalidOpcode:
		return errnoNotSup
	}
	switch e.Sense.Key {
	case scsi.KeyDataProtect:
		return errnoPerm
	case scsi.KeyIllegalRequest:
		return errnoInval
	}
	return errnoIO
}
