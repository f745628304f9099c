//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"goiwarp/rnic"
)

// PostRecv implements rnic.QP.
func (q *qp) PostRecv(wr *rnic.RecvWR) error {
	if q.srq != nil {
		return fmt.Errorf("%w: the queue pair draws from a shared receive queue", rnic.ErrState)
	}
	count, err := q.pd.checkRecv(wr, q.recvDepth)
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state >= ending {
		return endedError(q.cause)
	}
	if q.rn+count > q.recvDepth {
		return fmt.Errorf("%w: %d of %d receives are posted, %d more do not fit", rnic.ErrQueue, q.rn, q.recvDepth, count)
	}
	q.batch.reset()
	for w := wr; w != nil; w = w.Next {
		at := (q.rhead + q.rn) % q.recvDepth
		q.recvs[at] = w.ID
		q.rn++
		q.batch.add(q.pd, w, recvBit|uint64(at))
	}
	if _, err := q.batch.post(q.c, nil); err != nil {
		// The device may have taken some. They are accepted, and come back when the connection ends, which is now.
		q.endLocked(err)
	}
	return nil
}

// PostSend implements rnic.QP.
func (q *qp) PostSend(wr *rnic.SendWR) error {
	if wr == nil {
		return fmt.Errorf("%w: no work request", rnic.ErrBadWR)
	}
	count, reads, inline, registered := 0, false, false, false
	for w := wr; w != nil; w = w.Next {
		if count++; count > q.sendDepth {
			return fmt.Errorf("%w: a chain exceeds depth %d", rnic.ErrQueue, q.sendDepth)
		}
		if err := q.checkSend(w); err != nil {
			return err
		}
		reads = reads || w.Op == rnic.OpRead
		inline = inline || len(w.Inline) > 0
		registered = registered || q.registersInline(w)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.state >= ending || q.leaving:
		return endedError(q.cause)
	case reads && q.connected && q.info.ORD == 0:
		return fmt.Errorf("%w: connection setup left this side no RDMA Read", rnic.ErrState)
	case q.n+count > q.sendDepth:
		return fmt.Errorf("%w: %d of %d work requests are outstanding, %d more do not fit", rnic.ErrQueue, q.n, q.sendDepth, count)
	}
	if inline {
		if err := q.roomForInline(registered); err != nil {
			return err
		}
	}
	for w := wr; w != nil; w = w.Next {
		q.add(w)
	}
	if q.state == up {
		q.flush()
	}
	return nil
}

// checkSend checks a work request against the device and against the regions that it names.
func (q *qp) checkSend(w *rnic.SendWR) error {
	d := q.dev
	var need rnic.Access
	limit := d.attr.MaxSendSGE
	switch w.Op {
	case rnic.OpSend, rnic.OpWrite:
	case rnic.OpSendInvalidate:
		if err := d.need(rnic.CapSendInvalidate, "Send with Invalidate"); err != nil {
			return err
		}
	case rnic.OpRead:
		need, limit = rnic.LocalWrite, d.attr.MaxReadSGE
		if d.attr.Caps.Has(rnic.CapReadSinkNeedsRemoteWrite) {
			need |= rnic.RemoteWrite
		}
		if w.Flags&rnic.InvalidateSink != 0 {
			return d.need(rnic.CapLocalInvalidate, "RDMA Read with local invalidate")
		}
		if d.siw && w.Flags&rnic.Fence != 0 {
			return &rnic.UnsupportedError{Device: d.attr.Name, Op: "fenced RDMA Reads"}
		}
	case rnic.OpImmediate:
		return d.need(rnic.CapImmediate, "Immediate Data")
	case rnic.OpFetchAdd, rnic.OpCmpSwap:
		return d.need(rnic.CapAtomics, "masked atomics")
	case rnic.OpLocalInvalidate:
		return d.need(rnic.CapLocalInvalidate, "local invalidate")
	default:
		return fmt.Errorf("%w: operation %d", rnic.ErrBadWR, w.Op)
	}
	if w.Inline != nil {
		if err := d.need(rnic.CapInline, "inline payload"); err != nil {
			return err
		}
		switch {
		case w.Op == rnic.OpRead:
			return fmt.Errorf("%w: inline payload is for Sends and Writes", rnic.ErrBadWR)
		case len(w.SGE) > 0:
			return fmt.Errorf("%w: inline payload and a gather list", rnic.ErrBadWR)
		case len(w.Inline) > d.attr.MaxInline:
			return fmt.Errorf("%w: %d octets inline, limit %d", rnic.ErrTooLarge, len(w.Inline), d.attr.MaxInline)
		}
		return nil
	}
	if len(w.SGE) > limit {
		return fmt.Errorf("%w: %d scatter/gather elements, limit %d", rnic.ErrTooLarge, len(w.SGE), limit)
	}
	_, err := q.pd.checkSGE(w.SGE, need)
	return err
}

// opcodes are the verbs' names of operations.
var opcodes = [...]C.uint32_t{
	rnic.OpSend: C.IBV_WR_SEND, rnic.OpSendInvalidate: C.IBV_WR_SEND_WITH_INV, rnic.OpWrite: C.IBV_WR_RDMA_WRITE, rnic.OpRead: C.IBV_WR_RDMA_READ,
}

// add takes a slot for w and encodes it behind what waits to be posted. Called with mu held.
func (q *qp) add(w *rnic.SendWR) {
	at := (q.head + q.n) % q.sendDepth
	first := len(q.sges)
	octets := len(w.Inline)
	flags := C.uint32_t(C.IBV_SEND_SIGNALED)
	if w.Inline != nil {
		if octets > 0 { // else as without elements
			e := q.keepInline(at, w)
			q.sges = append(q.sges, e)
			if e.lkey == 0 {
				flags |= C.IBV_SEND_INLINE
			}
		}
	} else {
		q.sges = appendSGE(q.sges, w.SGE)
		for i := range w.SGE {
			octets += w.SGE[i].Len
		}
		if octets == 0 && w.Op == rnic.OpRead {
			q.sges = append(q.sges, C.struct_ibv_sge{}) // siw looks at a Read's sink even so
		}
	}
	if w.Flags&rnic.Solicited != 0 {
		flags |= C.IBV_SEND_SOLICITED
	}
	if w.Flags&rnic.Fence != 0 {
		flags |= C.IBV_SEND_FENCE
	}
	q.slots[at] = slot{id: w.ID, op: w.Op, signaled: w.Flags&rnic.Signaled != 0, octets: octets}
	q.n++
	q.wrs = append(q.wrs, C.struct_gw_wr{
		id: C.uint64_t(at), remote_addr: C.uint64_t(w.RemoteAddr), stag: C.uint32_t(w.RemoteSTag), opcode: opcodes[w.Op], flags: flags,
		first: C.uint32_t(first), count: C.uint32_t(len(q.sges) - first),
	})
}

// registersInline says whether the device takes w's inline payload from registered memory alone: siw does in a
// Send with Invalidate.
func (q *qp) registersInline(w *rnic.SendWR) bool {
	return q.dev.siw && w.Op == rnic.OpSendInvalidate && len(w.Inline) > 0
}

// roomForInline maps the places of inline payload, and registers them. Called with mu held.
func (q *qp) roomForInline(registered bool) error {
	if q.inline == nil {
		mem, err := unix.Mmap(-1, 0, q.sendDepth*q.dev.attr.MaxInline, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			return fmt.Errorf("verbs: room for inline payload: %w", err)
		}
		q.inline = mem
	}
	if !registered || q.inlineMR != nil {
		return nil
	}
	var err error
	q.inlineMR, err = q.pd.registerOwn(q.inline, 0)
	return err
}

// keepInline copies inline payload to its slot's place and names that. An element without a key is copied once more, by
// the device, while it is posted. Called with mu held.
func (q *qp) keepInline(at int, w *rnic.SendWR) C.struct_ibv_sge {
	size := q.dev.attr.MaxInline
	to := q.inline[at*size : (at+1)*size]
	copy(to, w.Inline)
	e := C.struct_ibv_sge{addr: C.uint64_t(uintptr(unsafe.Pointer(&to[0]))), length: C.uint32_t(len(w.Inline))}
	if q.registersInline(w) {
		e.lkey = q.inlineMR.lkey
	}
	return e
}

// flush posts what was added. Called with mu held.
func (q *qp) flush() {
	if len(q.wrs) == 0 {
		return
	}
	var sge *C.struct_ibv_sge
	if len(q.sges) > 0 {
		sge = &q.sges[0]
	}
	rc := C.gw_post_send(q.c, &q.wrs[0], C.int(len(q.wrs)), sge, &q.posted)
	q.wrs, q.sges = q.wrs[:0], q.sges[:0]
	if rc != 0 {
		// Whatever the device took of it, all of it comes back when the connection ends, which is now.
		q.endLocked(fmt.Errorf("verbs: posting: %w", unix.Errno(rc)))
	}
}

// open lets what is held go, and what comes behind it. It says whether that was news.
func (q *qp) open() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != idle {
		return false
	}
	q.gated = false
	q.state = up
	if q.info.ORD == 0 {
		for i := range q.n {
			if q.slots[(q.head+i)%q.sendDepth].op == rnic.OpRead {
				q.endLocked(fmt.Errorf("%w: connection setup left this side no RDMA Read", rnic.ErrState))
				return true
			}
		}
	}
	q.flush()
	return true
}
