package nbd

import (
	"context"
	"encoding/binary"

	"goiwarp/iscsi/initiator"
)

// contextAllocation is the one metadata context that there is, and contextID its number on a connection (NBD protocol, "base:allocation metadata
// context").
const (
	contextAllocation = "base:allocation"
	contextID         = 1
)

// States of an extent in that context.
const (
	stateHole = 1 << 0 // no room is taken up
	stateZero = 1 << 1 // reads as zeroes
)

// Bounds of one answer: extents in it, and commands that it may take. A client asks again for the rest.
const (
	maxExtents  = 1024
	maxInquests = 64
)

// stateOf is a block's provisioning as clients are told it. Unmapped blocks read as zeroes only where the disk says so (LBPRZ); anchored ones
// keep their room.
func (x *Export) stateOf(p initiator.Provisioning) uint32 {
	var f uint32
	if p == initiator.Deallocated {
		f |= stateHole
	}
	if p != initiator.Mapped && x.ReadsZeros {
		f |= stateZero
	}
	return f
}

// appendStatus appends the payload of an answer to a block status request: the context's number, then length and state of each extent. It covers the
// request from its beginning on, and no more than the request.
func (s *Server) appendStatus(ctx context.Context, b []byte, r *request) ([]byte, error) {
	x := &s.export
	b = binary.BigEndian.AppendUint32(b, contextID)
	if !x.Map {
		return appendExtent(b, r.length, 0), nil
	}
	bs := uint64(x.BlockSize)
	lba, left := r.offset/bs, uint64(r.length)
	var run, state uint32
	extents := 1
	for range maxInquests {
		list, err := s.disk.GetLBAStatus(ctx, lba)
		if err != nil {
			return b, err
		}
		for _, e := range list {
			n, f := min(uint64(e.Blocks)*bs, left), x.stateOf(e.State)
			switch {
			case run == 0:
				state = f
			case f == state:
			case extents == maxExtents || r.flags&cmdFlagReqOne != 0:
				return appendExtent(b, run, state), nil
			default:
				b = appendExtent(b, run, state)
				run, state = 0, f
				extents++
			}
			run += uint32(n)
			lba, left = lba+n/bs, left-n
			if left == 0 {
				return appendExtent(b, run, state), nil
			}
		}
	}
	return appendExtent(b, run, state), nil
}

func appendExtent(b []byte, n, state uint32) []byte {
	b = binary.BigEndian.AppendUint32(b, n)
	return binary.BigEndian.AppendUint32(b, state)
}
