package scsi

import "errors"

// Buffer is memory for a command's data that the transport lends: a SCSI layer that gets its data
// buffers from the transport lets it place and send them without a copy.
type Buffer interface {
	// Bytes is the memory; its length is what was asked for.
	Bytes() []byte
	// Release gives the memory back. Release it once.
	Release()
}

// Transfer moves one command's data. The target implements it over the connection's Datamover.
// Offsets count octets from the beginning of the command's data in that direction.
//
// Its methods may wait (for memory, for the peer). A target runs a command on a goroutine that must
// not wait only if they will not (its data-out has arrived, its data-in has room) and Plan.Blocks
// is not set.
type Transfer interface {
	// InLength and OutLength are what the initiator expects to be moved, in octets.
	InLength() int64
	OutLength() int64
	// Chunk is the largest buffer, in octets, that Buffer and Out give at once; at least 4096, so
	// that a block fits.
	Chunk() int
	// Buffer lends memory for n octets of data-in (n <= Chunk).
	Buffer(n int) (Buffer, error)
	// In sends b's first n octets as the data-in at off and takes b over. Octets beyond InLength
	// are dropped here, so that the caller only says what it has. Calls come in rising order
	// without holes.
	In(b Buffer, off int64, n int) error
	// Out returns n octets of data-out at off (n <= Chunk); off+n may not pass OutLength. The
	// caller releases the buffer.
	Out(off int64, n int) (Buffer, error)
}

// noTransfer is the Transfer of a command for which the initiator expects no data.
type noTransfer struct{}

var errNoTransfer = errors.New("scsi: no data was expected")

func (noTransfer) InLength() int64                { return 0 }
func (noTransfer) OutLength() int64               { return 0 }
func (noTransfer) Chunk() int                     { return 4096 }
func (noTransfer) Buffer(int) (Buffer, error)     { return nil, errNoTransfer }
func (noTransfer) In(Buffer, int64, int) error    { return errNoTransfer }
func (noTransfer) Out(int64, int) (Buffer, error) { return nil, errNoTransfer }
