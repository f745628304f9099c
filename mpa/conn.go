package mpa

import (
	"net"
	"sync"
	"sync/atomic"
)

// Conn is an MPA connection in full operation.
//
// Its reading half (Next, Buffered and the FPDU) is used by one goroutine at a time, its writing half
// (MULPDU, Append, AppendCopy, Pending, Sent, TryFlush, Flush) by one at a time, which may be
// another. Close, CloseWrite, Params, Stats and the addresses are for anyone.
type Conn struct {
	sock   Socket
	params *Params
	in     reader
	out    writer

	// gate is closed once it is decided whether we may send: for an initiator from the start, for a
	// responder when the first FPDU has arrived, or when none will. gateErr is set before that.
	gate     chan struct{}
	gateOnce sync.Once
	gateOpen atomic.Bool
	gateErr  error
}

// newConn starts full operation on sock.
func newConn(sock Socket, p *Params, maxFPDU int) *Conn {
	c := &Conn{sock: sock, params: p, gate: make(chan struct{})}
	c.in.init(c)
	c.out.init(c, maxFPDU)
	if p.Role == Initiator {
		c.open()
	}
	return c
}

// open lets queued FPDUs leave.
func (c *Conn) open() {
	c.gateOnce.Do(func() {
		c.gateOpen.Store(true)
		close(c.gate)
	})
}

// shut says that none will leave any more, if the gate has not been opened: the peer's first FPDU
// will not come, because of err.
func (c *Conn) shut(err error) {
	c.gateOnce.Do(func() {
		c.gateErr = err
		close(c.gate)
	})
}

// refused returns why the gate is shut for good, nil if it is open or may still be opened.
func (c *Conn) refused() error {
	select {
	case <-c.gate:
		return c.gateErr
	default:
		return nil
	}
}

// Params returns what the startup agreed on. It must not be changed.
func (c *Conn) Params() *Params { return c.params }

// Close closes the TCP connection. What was queued and not flushed is lost; calls that wait return
// an error.
func (c *Conn) Close() error {
	err := c.sock.Close()
	c.shut(net.ErrClosed)
	return err
}

// CloseWrite ends our half of the connection gracefully, behind what was flushed (RFC 5044, section
// 7.2). The peer's half goes on.
func (c *Conn) CloseWrite() error { return c.sock.CloseWrite() }

// LocalAddr returns the local address of the socket.
func (c *Conn) LocalAddr() net.Addr { return c.sock.LocalAddr() }

// RemoteAddr returns the peer's address of the socket.
func (c *Conn) RemoteAddr() net.Addr { return c.sock.RemoteAddr() }

// Stats count what a Conn has done.
type Stats struct {
	FPDUsIn, FPDUsOut         uint64 // FPDUs received whole and good; FPDUs queued
	OctetsIn, OctetsOut       uint64 // octets of ULPDUs in them
	CRCsChecked, CRCsComputed uint64 // CRCs of received and of queued FPDUs
	CRCErrors                 uint64 // received FPDUs with a wrong CRC: 0 or 1, since the first is the last
	MarkersIn, MarkersOut     uint64
}

// counters are Stats that one goroutine writes and others may read. They are written once per
// FPDU, by a plain add and an atomic store, since each has only one writer.
type counters struct {
	fpdus, octets, crcs, crcErrors, markers atomic.Uint64
}

func bump(c *atomic.Uint64, n uint64) { c.Store(c.Load() + n) }

// Stats returns the counts so far.
func (c *Conn) Stats() Stats {
	in, out := &c.in.count, &c.out.count
	return Stats{
		FPDUsIn: in.fpdus.Load(), FPDUsOut: out.fpdus.Load(),
		OctetsIn: in.octets.Load(), OctetsOut: out.octets.Load(),
		CRCsChecked: in.crcs.Load(), CRCsComputed: out.crcs.Load(),
		CRCErrors: in.crcErrors.Load(),
		MarkersIn: in.markers.Load(), MarkersOut: out.markers.Load(),
	}
}
