package rdmap

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"goiwarp/ddp"
)

// response is an RDMA Read or an Atomic of the peer that has to be answered. It was validated when its request was
// delivered; its region is looked at again when it is its turn.
type response struct {
	atomic bool
	msn    uint32 // of the request
	region *ddp.Region
	stag   ddp.STag
	off    int // of the first octet in the region
	read   ReadRequestFields
	op     AtomicFields
}

// terminate reports that the request cannot be answered, after sent octets of its answer. The DDP header
// is the request's.
func (r *response) terminate(e *Error, sent uint32) Terminate {
	t := Terminate{Layer: Layer, Type: uint8(e.Type), Code: uint8(e.Code), HasLen: true, DDP: make([]byte, ddp.UntaggedLen)}
	op, n := OpReadRequest, ReadRequestLen
	if r.atomic {
		op, n = OpAtomicRequest, AtomicRequestLen
	} else {
		f := r.read
		f.SinkTO += uint64(sent)
		f.SourceTO += uint64(sent)
		f.Size -= sent
		t.ReadRequest = make([]byte, ReadRequestLen)
		ReadRequest(t.ReadRequest).Encode(&f)
	}
	t.SegmentLen = uint16(ddp.UntaggedLen + n)
	ddp.Untagged(t.DDP).Encode(&ddp.UntaggedFields{Last: true, ULP: uint8(MakeControl(op)), QN: QueueRequest, MSN: r.msn})
	return t
}

// responder queues what the peer's requests are owed, in the order of the requests (RFC 5040, section 5.5, rule 20;
// RFC 7306, section 7). IRD bounds Reads and Atomics each. Stream.mu guards it.
type responder struct {
	ird            int
	reads, atomics int
	ring           []response // grows up to 2 IRD as the peer makes use of it
	first, n       int
}

// admit says whether one more request fits.
func (r *responder) admit(atomic bool) bool {
	if atomic {
		return r.atomics < r.ird
	}
	return r.reads < r.ird
}

func (r *responder) push(e *response) {
	if r.n == len(r.ring) {
		ring := make([]response, max(4, 2*len(r.ring)))
		for i := range r.n {
			ring[i] = r.ring[(r.first+i)%len(r.ring)]
		}
		r.ring, r.first = ring, 0
	}
	r.ring[(r.first+r.n)%len(r.ring)] = *e
	r.n++
	if e.atomic {
		r.atomics++
	} else {
		r.reads++
	}
}

// pop takes the oldest request out. It counts until retire.
func (r *responder) pop() response {
	e := r.ring[r.first]
	r.ring[r.first] = response{}
	r.first = (r.first + 1) % len(r.ring)
	r.n--
	return e
}

// retire frees the place of a request whose response has been generated to its end. The peer cannot make use of it
// before the response has come.
func (s *Stream) retire() {
	t := &s.tx
	s.mu.Lock()
	if t.resp.atomic {
		s.r.atomics--
	} else {
		s.r.reads--
	}
	s.mu.Unlock()
	t.resp = response{}
}

// startResponse begins the answer to t.resp, for which the request's turn has come: everything sent before it by the
// peer was placed (rule 17), and the answers to earlier requests were generated.
func (s *Stream) startResponse() {
	t := &s.tx
	r := &t.resp
	if r.atomic {
		original, err := s.execute(r)
		if err != nil {
			s.fail(err, r.terminate(err, 0))
			return
		}
		AtomicResponse(t.head[ddp.UntaggedLen:]).Encode(r.op.ID, original)
		s.control(OpAtomicResponse, t.nextMSN(QueueAtomic), AtomicResponseLen)
		s.retire()
		return
	}
	t.msg.StartTagged(ddp.TaggedFields{ULP: uint8(MakeControl(OpReadResponse)), STag: r.read.SinkSTag, TO: r.read.SinkTO}, r.read.Size)
	t.active, t.op = true, nil
	t.off = r.off
	t.copied = s.crc
}

// execute runs an atomic operation in the host's byte order, alone on the memory of the device.
func (s *Stream) execute(r *response) (original uint64, fault *Error) {
	mem, ok := r.region.Acquire(r.stag)
	if !ok {
		return 0, &Error{Type: RemoteProtection, Code: CodeInvalidSTag, Detail: r.stag.String() + " was invalidated before the atomic's turn"}
	}
	defer r.region.Release()
	p := mem[r.off : r.off+AtomicSize]
	d := s.cfg.Domain
	d.LockAtomics()
	defer d.UnlockAtomics()
	original = binary.NativeEndian.Uint64(p)
	f := &r.op
	if f.Op == AtomicFetchAdd {
		binary.NativeEndian.PutUint64(p, maskedAdd(original, f.Data, f.Mask))
	} else if (original^f.Compare)&f.CompareMask == 0 {
		binary.NativeEndian.PutUint64(p, original&^f.Mask|f.Data&f.Mask)
	}
	return original, nil
}

// maskedAdd adds field by field: each bit that is set in mask is the top bit of a field, whose carry
// is lost (RFC 7306, section 5.1.2). Mask 0 is one field of 64 bits.
func maskedAdd(a, b, mask uint64) uint64 {
	// Without the top bits no carry leaves a field; the top bits add without carry.
	return ((a &^ mask) + (b &^ mask)) ^ ((a ^ b) & mask)
}

// aligned says whether an atomic may operate at off of mem (RFC 7306, section 8.2).
func aligned(mem []byte, off int) bool {
	return uintptr(unsafe.Pointer(&mem[off]))%AtomicSize == 0
}

// protection turns a fault of the peer's access into RDMAP's error (RFC 5040, section 7.2).
func protection(f ddp.Fault, what string, stag ddp.STag, to uint64, n uint64) *Error {
	e := &Error{Type: RemoteProtection, Detail: fmt.Sprintf("%s of %v TO %#x length %d", what, stag, to, n)}
	switch f {
	case ddp.FaultSTag:
		e.Code = CodeInvalidSTag
	case ddp.FaultBounds:
		e.Code = CodeBaseBounds
	case ddp.FaultAccess:
		e.Code = CodeAccess
	case ddp.FaultStream:
		e.Code = CodeNotAssociated
	case ddp.FaultWrap:
		e.Code = CodeTOWrap
	default:
		e.Code = CodeUnspecified
	}
	return e
}
