package datamovertest

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
)

// patience is how long the suite waits for something that must happen before it calls it lost.
const patience = 30 * time.Second

type kind int

const (
	control kind = iota
	completion
	acknowledged
	terminated
)

// event is one upcall. Its PDU is a copy: the suite releases what it is given at once.
type event struct {
	kind kind
	pdu  *iscsi.PDU
	itt  uint32
	tag  uint64
	err  error
}

// end is one end of the connection: a Datamover with the suite as its iSCSI layer. It records the
// upcalls unless handle takes them.
type end struct {
	t      testing.TB
	target bool
	dm     iscsi.Datamover
	adjust func(*iscsi.Params, bool)

	busy atomic.Bool // an upcall runs

	mu     sync.Mutex // guards what follows
	handle func(e event) (taken bool)
	events []event
	ended  bool
	wake   chan struct{}
}

func newEnd(t testing.TB, dm iscsi.Datamover, target bool, adjust func(*iscsi.Params, bool)) *end {
	return &end{t: t, target: target, dm: dm, adjust: adjust, wake: make(chan struct{}, 1)}
}

func (e *end) String() string {
	if e.target {
		return "target"
	}
	return "initiator"
}

func (e *end) upcall(ev event) {
	if !e.busy.CompareAndSwap(false, true) {
		e.t.Errorf("%v: two upcalls at once", e)
	}
	defer e.busy.Store(false)
	e.mu.Lock()
	if e.ended {
		e.t.Errorf("%v: an upcall (%d) after ConnectionTerminateNotify", e, ev.kind)
	}
	e.ended = ev.kind == terminated
	handle := e.handle
	e.mu.Unlock()
	if handle != nil && handle(ev) {
		return
	}
	e.mu.Lock()
	e.events = append(e.events, ev)
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// setHandle lets f see each upcall first, within the upcall.
func (e *end) setHandle(f func(e event) (taken bool)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.handle = f
}

func (e *end) ControlNotify(p *iscsi.PDU) {
	c := &iscsi.PDU{BHS: p.BHS, AHS: append([]byte(nil), p.AHS...), Data: append([]byte(nil), p.Data...)}
	p.Release()
	e.upcall(event{kind: control, pdu: c, itt: field(c, offITT)})
}

func (e *end) DataCompletionNotify(itt uint32, tag uint64, err error) {
	e.upcall(event{kind: completion, itt: itt, tag: tag, err: err})
}

func (e *end) DataACKNotify(itt, dataSN uint32) {
	e.upcall(event{kind: acknowledged, itt: itt, tag: uint64(dataSN)})
}

func (e *end) ConnectionTerminateNotify(err error) {
	e.upcall(event{kind: terminated, err: err})
}

// next waits for the next upcall.
func (e *end) next() event {
	e.t.Helper()
	for timeout := time.After(patience); ; {
		e.mu.Lock()
		if len(e.events) > 0 {
			ev := e.events[0]
			e.events = e.events[1:]
			e.mu.Unlock()
			return ev
		}
		e.mu.Unlock()
		select {
		case <-e.wake:
		case <-timeout:
			require.FailNow(e.t, "no upcall came", "%v", e)
		}
	}
}

// pdu waits for a control PDU with this opcode.
func (e *end) pdu(op iscsi.Opcode) *iscsi.PDU {
	e.t.Helper()
	ev := e.next()
	require.Equal(e.t, control, ev.kind, "%v: upcall instead of PDU %#02x: %+v: %v", e, int(op), ev, ev.err)
	require.Equal(e.t, op, ev.pdu.Opcode(), "%v: opcode", e)
	return ev.pdu
}

// completed waits for a DataCompletionNotify without an error.
func (e *end) completed() event {
	e.t.Helper()
	ev := e.next()
	require.Equal(e.t, completion, ev.kind, "%v: upcall instead of a completion: %+v: %v", e, ev, ev.err)
	require.NoError(e.t, ev.err)
	return ev
}

// quiet checks that nothing was delivered that the test has not looked at.
func (e *end) quiet() {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	require.Empty(e.t, e.events, "%v: unexpected upcalls", e)
}

func (e *end) send(p *iscsi.PDU, b *iscsi.TaskBuffers) {
	e.t.Helper()
	require.NoError(e.t, e.dm.SendControl(p, b), "%v: SendControl", e)
}

func (e *end) alloc(n int) iscsi.Buffer {
	e.t.Helper()
	b, err := e.dm.Alloc(n)
	require.NoError(e.t, err, "%v: Alloc(%d)", e, n)
	require.Len(e.t, b.Bytes(), n)
	return b
}

// filled lends n octets with the pattern from off on.
func (e *end) filled(n int, seed uint32, off int) iscsi.Buffer {
	e.t.Helper()
	b := e.alloc(n)
	fill(b.Bytes(), seed, off)
	return b
}

// done waits until the Datamover is down and checks that upcalls were all it owed.
func (e *end) done() {
	e.t.Helper()
	select {
	case <-e.dm.Done():
	case <-time.After(patience):
		require.FailNow(e.t, "Done was not closed", "%v", e)
	}
}

// segment is the largest data segment that e may send in a control PDU.
func (e *end) segment() int {
	if m := e.dm.Info().MaxSendSegment; m > 0 && m < SegmentLength {
		return m
	}
	return SegmentLength
}

// params is what the suite's login agrees on, as e sees it.
func (e *end) params() *iscsi.Params {
	p := &iscsi.Params{
		InitiatorName: "iqn.2026-11.com.example:host", TargetName: "iqn.2026-11.com.example:disk",
		ISID: [6]byte{0x80, 1, 2, 3, 4, 5}, TSIH: 7, PortalGroup: 1,
		ImmediateData: true, MaxBurstLength: MaxBurstLength, FirstBurstLength: FirstBurstLength,
		MaxOutstandingR2T: 8, DataPDUInOrder: true, DataSequenceInOrder: true,
		DefaultTime2Wait: 2, MaxConnections: 1, ISCSIProtocolLevel: 1,
		MaxRecvDataSegment: SegmentLength, MaxSendDataSegment: SegmentLength,
	}
	if e.dm.Info().RDMA {
		p.RDMAExtensions = true
		p.TargetRecvDataSegmentLength = SegmentLength
		p.InitiatorRecvDataSegmentLength = SegmentLength
		p.MaxOutstandingUnexpectedPDUs = 2 * Window
		p.OwnMaxOutstandingUnexpectedPDUs = 2 * Window
	}
	if e.adjust != nil {
		e.adjust(p, e.target)
	}
	return p
}

func (e *end) allocate() {
	e.t.Helper()
	require.NoError(e.t, e.dm.AllocateConnectionResources(iscsi.ConnectionResources{
		Target: e.target, Window: Window, RecvDataSegment: SegmentLength, MaxAHS: maxAHS,
	}), "%v: AllocateConnectionResources", e)
}

// conn is a pair under test.
type conn struct {
	t    testing.TB
	pair Pair
	i, g *end // initiator, target
}

// start makes a pair and starts its upcalls.
func start(t testing.TB, m Maker) *conn {
	t.Helper()
	p := m(t)
	c := &conn{t: t, pair: p, i: newEnd(t, p.Initiator, false, p.Params), g: newEnd(t, p.Target, true, p.Params)}
	c.i.dm.Start(c.i)
	c.g.dm.Start(c.g)
	return c
}

// login takes both ends to full feature phase with one exchange.
func (c *conn) login() *conn {
	c.t.Helper()
	c.i.allocate()
	c.i.send(loginRequest(true, []byte("InitiatorName=iqn.2026-11.com.example:host\x00")), nil)
	c.g.pdu(iscsi.OpLoginReq)
	c.g.allocate()
	c.g.dm.NoticeKeyValues(c.g.params())
	require.NoError(c.t, c.g.dm.EnableDatamover(loginResponse(true, 1, []byte("TargetPortalGroupTag=1\x00"))))
	c.i.pdu(iscsi.OpLoginRsp)
	c.i.dm.NoticeKeyValues(c.i.params())
	require.NoError(c.t, c.i.dm.EnableDatamover(nil))
	return c
}

// full is a pair in full feature phase. When the test ends the connection is closed and everything
// lent must have come back.
func full(t testing.TB, m Maker) *conn {
	t.Helper()
	c := start(t, m).login()
	t.Cleanup(c.end)
	return c
}

// end terminates both ends and checks that no buffer is left behind.
func (c *conn) end() {
	c.t.Helper()
	c.i.dm.ConnectionTerminate(false)
	c.g.dm.ConnectionTerminate(false)
	c.i.done()
	c.g.done()
	c.settled()
}

// settled checks that all lent memory was released.
func (c *conn) settled() {
	c.t.Helper()
	if c.pair.Lent != nil {
		require.Zero(c.t, c.pair.Lent(), "buffers that nobody released")
	}
}

// roundTrip sends a ping and its answer, so that everything sent before has been handled by both ends.
func (c *conn) roundTrip(itt uint32) {
	c.t.Helper()
	c.i.send(nopOut(itt, nil), nil)
	require.Equal(c.t, itt, field(c.g.pdu(iscsi.OpNOPOut), offITT))
	c.g.send(nopIn(itt, 100+itt, nil), nil)
	require.Equal(c.t, itt, field(c.i.pdu(iscsi.OpNOPIn), offITT))
}

// cut breaks the transport.
func (c *conn) cut() {
	if c.pair.Cut != nil {
		c.pair.Cut()
		return
	}
	c.i.dm.ConnectionTerminate(false)
}

// put sends n octets of data-in of the task from off on.
func (c *conn) put(itt, dataSN uint32, seed uint32, off, n int, final, more bool) {
	c.t.Helper()
	require.NoError(c.t, c.g.dm.PutData(&iscsi.DataIn{
		ITT: itt, TTT: reservedTag, DataSN: dataSN, Offset: off,
		Buf: c.g.filled(n, seed, off), Len: n, Final: final, More: more,
	}))
}

// heap is a buffer that no Datamover has lent. It fails the test when it is released.
type heap struct {
	t testing.TB
	b []byte
}

func (h *heap) Bytes() []byte { return h.b }
func (h *heap) Release()      { h.t.Error("the Datamover released a buffer that is the caller's") }

func isConnection(err error) bool { return errors.Is(err, iscsi.ErrConnection) }
