package datamovertest

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
)

// readCommand starts a task that reads n octets into a lent buffer.
func (c *conn) readCommand(itt uint32, n int) iscsi.Buffer {
	c.t.Helper()
	in := c.i.alloc(n)
	clear(in.Bytes())
	c.i.send(command(itt, itt, n, 0, nil, false), &iscsi.TaskBuffers{In: in, InLen: n})
	require.Equal(c.t, itt, field(c.g.pdu(iscsi.OpSCSICommand), offITT))
	return in
}

// writeCommand starts a task that writes n octets, none of them unsolicited.
func (c *conn) writeCommand(itt uint32, n int) iscsi.Buffer {
	c.t.Helper()
	out := c.i.filled(n, itt, 0)
	c.i.send(command(itt, itt, 0, n, nil, false), &iscsi.TaskBuffers{Out: out, OutLen: n})
	require.Equal(c.t, itt, field(c.g.pdu(iscsi.OpSCSICommand), offITT))
	return out
}

// finish ends the task with GOOD and waits until the initiator knows.
func (c *conn) finish(itt uint32, expDataSN uint32) {
	c.t.Helper()
	c.finishShort(itt, expDataSN, 0)
}

// finishShort is finish of a task that moved residual octets less than expected.
func (c *conn) finishShort(itt, expDataSN uint32, residual int) {
	c.t.Helper()
	c.g.send(response(itt, itt, statusGood, residual, expDataSN, nil), nil)
	p := c.i.pdu(iscsi.OpSCSIResponse)
	require.Equal(c.t, itt, field(p, offITT))
	require.Equal(c.t, itt, field(p, offCmdSN), "StatSN")
	require.Equal(c.t, byte(statusGood), p.BHS[offStatus])
}

// testDataInPieces moves data-in in pieces of odd sizes, the last with its status in one flush.
func testDataInPieces(t *testing.T, m Maker) {
	c := full(t, m)
	for k, sizes := range [][]int{{1}, {512}, {4096, 4096}, {1, 2, 3, 4, 5}, {2848, 6368}, {4095, 1, 4096, 513}} {
		itt := uint32(10 + k)
		total := 0
		for _, n := range sizes {
			total += n
		}
		in := c.readCommand(itt, total)
		off := 0
		for j, n := range sizes {
			last := j == len(sizes)-1
			c.put(itt, uint32(j), itt, off, n, last, last)
			off += n
		}
		c.finish(itt, uint32(len(sizes)))
		require.NoError(t, mismatch(in.Bytes(), itt, 0), "pieces %v", sizes)
		in.Release()
	}
	c.g.quiet()
}

// testDataInNotify: a buffer with Notify stays the caller's and is told of when it may be used again.
func testDataInNotify(t *testing.T, m Maker) {
	c := full(t, m)
	const itt, piece, pieces = 21, 3000, 5
	in := c.readCommand(itt, piece*pieces)
	b := c.g.alloc(piece)
	for k := range pieces { // one buffer for all pieces: it is overwritten as soon as that is allowed
		fill(b.Bytes(), itt, k*piece)
		require.NoError(t, c.g.dm.PutData(&iscsi.DataIn{
			ITT: itt, TTT: reservedTag, DataSN: uint32(k), Offset: k * piece, Buf: b, Len: piece,
			Final: k == pieces-1, Notify: true, Tag: uint64(k) + 1<<40,
		}))
		ev := c.g.completed()
		require.Equal(t, uint32(itt), ev.itt)
		require.Equal(t, uint64(k)+1<<40, ev.tag)
	}
	clear(b.Bytes())
	b.Release()
	c.finish(itt, pieces)
	require.NoError(t, mismatch(in.Bytes(), itt, 0))
	in.Release()
}

// testStatus: a task's end is told once, after its data, with the same words whether it travelled alone or with the
// last data.
func testStatus(t *testing.T, m Maker) {
	c := full(t, m)
	sense := append([]byte{0, 18}, pattern(3, 0, 18)...)
	for k, s := range []struct {
		name     string
		data     int // octets of 6000 that are sent
		more     bool
		status   byte
		sense    []byte
		residual int
	}{
		{name: "with the data", data: 6000, more: true},
		{name: "after the data", data: 6000},
		{name: "underflow with the data", data: 100, more: true, residual: 5900},
		{name: "underflow after the data", data: 100, residual: 5900},
		{name: "sense with the data", data: 512, more: true, status: statusCheck, sense: sense, residual: 5488},
		{name: "bad status without sense", data: 512, more: true, status: 0x08, residual: 5488},
		{name: "no data", status: statusCheck, sense: sense, residual: 6000},
	} {
		itt := uint32(30 + k)
		in := c.readCommand(itt, 6000)
		exp := uint32(0)
		if s.data > 0 {
			c.put(itt, 0, itt, 0, s.data, true, s.more)
			exp = 1
		}
		c.g.send(response(itt, 1000+itt, s.status, s.residual, exp, s.sense), nil)
		p := c.i.pdu(iscsi.OpSCSIResponse)
		want := response(itt, 1000+itt, s.status, s.residual, exp, s.sense)
		want.BHS[7] = byte(len(s.sense))
		require.Equal(t, want.BHS, p.BHS, s.name)
		require.Equal(t, len(s.sense), len(p.Data), s.name)
		require.True(t, bytes.Equal(s.sense, p.Data), s.name)
		require.NoError(t, mismatch(in.Bytes()[:s.data], itt, 0), s.name)
		require.Equal(t, make([]byte, 6000-s.data), in.Bytes()[s.data:], "%s: octets that were not sent", s.name)
		in.Release()
		c.roundTrip(itt) // nothing else was delivered
	}
}

// testDataOut has several GetData of one task and of two tasks outstanding at once.
func testDataOut(t *testing.T, m Maker) {
	c := full(t, m)
	const size, burst = 100_001, 33_000
	outs := map[uint32]iscsi.Buffer{50: c.writeCommand(50, size), 51: c.writeCommand(51, size)}
	type part struct {
		itt    uint32
		off, n int
		buf    iscsi.Buffer
	}
	parts := map[uint64]part{}
	for off := 0; off < size; off += burst {
		for itt := range uint32(2) {
			n := min(burst, size-off)
			tag := uint64(len(parts)) << 33
			p := part{50 + itt, off, n, c.g.alloc(n + 7)}
			parts[tag] = p
			require.NoError(t, c.g.dm.GetData(&iscsi.DataOut{
				ITT: p.itt, TTT: uint32(len(parts)), R2TSN: uint32(off / burst), Offset: off, Buf: p.buf, To: 7, Len: n, Tag: tag,
			}))
		}
	}
	for len(parts) > 0 {
		ev := c.g.completed()
		p, ok := parts[ev.tag]
		require.True(t, ok, "tag %#x twice or never given", ev.tag)
		delete(parts, ev.tag)
		require.Equal(t, p.itt, ev.itt)
		require.NoError(t, mismatch(p.buf.Bytes()[7:], p.itt, p.off))
		p.buf.Release()
	}
	for itt, out := range outs {
		c.finish(itt, 4)
		require.NoError(t, mismatch(out.Bytes(), itt, 0), "data-out was changed at the initiator")
		out.Release()
	}
}

// testUnsolicited sends the first octets of a write in the command and in Data-Out PDUs of the
// initiator's own, in every mixture, and fetches the rest.
func testUnsolicited(t *testing.T, m Maker) {
	c := full(t, m)
	const size = 20_000
	seg := c.i.segment()
	for k, s := range []struct{ immediate, unsolicited int }{
		{512, 0}, {1, 0}, {seg, 0}, {0, 4096}, {0, 10_000}, {100, 9_116}, {seg, 4096}, {2848, 6368},
	} {
		itt := uint32(60 + k)
		out := c.i.filled(size, itt, 0)
		first := s.immediate + s.unsolicited
		c.i.send(command(itt, itt, 0, size, out.Bytes()[:s.immediate], s.unsolicited > 0),
			&iscsi.TaskBuffers{Out: out, OutLen: size, Unsolicited: first})
		sn := uint32(0)
		for off := s.immediate; off < first; sn++ {
			n := min(seg, first-off)
			c.i.send(dataOut(itt, sn, off, out.Bytes()[off:off+n], off+n == first), nil)
			off += n
		}

		p := c.g.pdu(iscsi.OpSCSICommand)
		require.Equal(t, s.immediate, len(p.Data), "%+v", s)
		require.NoError(t, mismatch(p.Data, itt, 0))
		for off, j := s.immediate, uint32(0); off < first; j++ {
			p := c.g.pdu(iscsi.OpDataOut)
			require.Equal(t, j, field(p, offDataSN))
			require.Equal(t, uint32(off), field(p, offBufOffset))
			require.NoError(t, mismatch(p.Data, itt, off))
			off += len(p.Data)
			require.Equal(t, off == first, p.BHS[offFlags]&flagFinal != 0)
		}
		rest := c.g.alloc(size - first)
		require.NoError(t, c.g.dm.GetData(&iscsi.DataOut{ITT: itt, TTT: itt, Offset: first, Buf: rest, Len: size - first, Tag: 1}))
		c.g.completed()
		require.NoError(t, mismatch(rest.Bytes(), itt, first), "%+v", s)
		rest.Release()
		c.finish(itt, 1)
		out.Release()
	}
}

// testBidirectional moves data both ways in one task.
func testBidirectional(t *testing.T, m Maker) {
	c := full(t, m)
	const itt, inLen, outLen = 80, 5000, 9000
	in, out := c.i.alloc(inLen), c.i.filled(outLen, 1, 0)
	c.i.send(command(itt, 1, inLen, outLen, nil, false),
		&iscsi.TaskBuffers{In: in, InLen: inLen, Out: out, OutLen: outLen})
	require.Len(t, c.g.pdu(iscsi.OpSCSICommand).AHS, 8)
	b := c.g.alloc(outLen)
	require.NoError(t, c.g.dm.GetData(&iscsi.DataOut{ITT: itt, TTT: 1, Buf: b, Len: outLen}))
	c.g.completed()
	require.NoError(t, mismatch(b.Bytes(), 1, 0))
	b.Release()
	c.put(itt, 1, 2, 0, inLen, true, false) // R2TSN and DataSN of a bidirectional task share numbers (section 11.8.3)
	c.finish(itt, 2)
	require.NoError(t, mismatch(in.Bytes(), 2, 0))
	in.Release()
	out.Release()
}

// testZero: nothing is a legal amount.
func testZero(t *testing.T, m Maker) {
	c := full(t, m)
	b := c.i.alloc(0)
	b.Release()
	for _, tb := range []*iscsi.TaskBuffers{nil, {}} {
		c.i.send(command(90, 1, 0, 0, nil, false), tb)
		c.g.pdu(iscsi.OpSCSICommand)
		c.finish(90, 0)
	}
	in := c.readCommand(91, 100)
	b = c.g.alloc(0)
	require.NoError(t, c.g.dm.PutData(&iscsi.DataIn{ITT: 91, TTT: reservedTag, Buf: b, Final: true, Notify: true, Tag: 5}))
	ev := c.g.completed()
	require.Equal(t, uint64(5), ev.tag)
	b.Release()
	c.finishShort(91, 1, 100)
	require.Equal(t, make([]byte, 100), in.Bytes())
	in.Release()
}

// testLarge moves 1 MiB and a bit each way, within the limits that Info and the negotiation set.
func testLarge(t *testing.T, m Maker) {
	c := full(t, m)
	const size = 1<<20 + 513
	in := &heap{t: t, b: make([]byte, size)}
	c.i.send(command(95, 1, size, 0, nil, false), &iscsi.TaskBuffers{In: in, InLen: size})
	c.g.pdu(iscsi.OpSCSICommand)
	n := min(c.g.dm.Info().MaxPutData, 1<<17)
	sn := uint32(0)
	b := c.g.alloc(n)
	for off := 0; off < size; off, sn = off+n, sn+1 {
		k := min(n, size-off)
		fill(b.Bytes()[:k], 95, off)
		require.NoError(t, c.g.dm.PutData(&iscsi.DataIn{
			ITT: 95, TTT: reservedTag, DataSN: sn, Offset: off, Buf: b, Len: k, Final: off+k == size, Notify: true,
		}))
		c.g.completed()
	}
	b.Release()
	c.finish(95, sn)
	require.NoError(t, mismatch(in.b, 95, 0))

	out := &heap{t: t, b: pattern(96, 0, size)}
	c.i.send(command(96, 2, 0, size, nil, false), &iscsi.TaskBuffers{Out: out, OutLen: size})
	c.g.pdu(iscsi.OpSCSICommand)
	b, sn = c.g.alloc(MaxBurstLength), 0
	for off := 0; off < size; off, sn = off+MaxBurstLength, sn+1 {
		k := min(MaxBurstLength, size-off)
		require.NoError(t, c.g.dm.GetData(&iscsi.DataOut{ITT: 96, TTT: sn, R2TSN: sn, Offset: off, Buf: b, Len: k}))
		c.g.completed()
		require.NoError(t, mismatch(b.Bytes()[:k], 96, off))
	}
	b.Release()
	c.finish(96, sn)
}

// testForeignBuffers: the initiator's buffers need not be the Datamover's, may be longer than the
// task and of odd alignment; nothing outside the task's part is touched.
func testForeignBuffers(t *testing.T, m Maker) {
	c := full(t, m)
	for _, shift := range []int{0, 1, 3, 4093} {
		itt := uint32(100 + shift)
		room := pattern(7, 0, shift+5000+64)
		want := bytes.Clone(room)
		in := &heap{t: t, b: room[shift:]}
		c.i.send(command(itt, itt, 5000, 0, nil, false), &iscsi.TaskBuffers{In: in, InLen: 5000})
		c.g.pdu(iscsi.OpSCSICommand)
		c.put(itt, 0, itt, 0, 5000, true, true)
		c.finish(itt, 1)
		fill(want[shift:shift+5000], itt, 0)
		require.True(t, bytes.Equal(want, room), "shift %d", shift)

		out := &heap{t: t, b: room[shift:]}
		c.i.send(command(itt, itt, 0, 5000, nil, false), &iscsi.TaskBuffers{Out: out, OutLen: 5000})
		c.g.pdu(iscsi.OpSCSICommand)
		b := c.g.alloc(5000)
		require.NoError(t, c.g.dm.GetData(&iscsi.DataOut{ITT: itt, TTT: 1, Buf: b, Len: 5000}))
		c.g.completed()
		require.NoError(t, mismatch(b.Bytes(), itt, 0))
		b.Release()
		c.finish(itt, 1)
	}
}

// testMemory uses up each end's share of memory: Alloc says so without waiting, the connection
// goes on, and what is released can be lent again.
func testMemory(t *testing.T, m Maker) {
	c := full(t, m)
	const size = 64 << 10
	for _, e := range []*end{c.i, c.g} {
		exhaust := func() (bufs []iscsi.Buffer) {
			for {
				b, err := e.dm.Alloc(size)
				if err != nil {
					require.ErrorIs(t, err, iscsi.ErrNoMemory)
					return bufs
				}
				require.Len(t, b.Bytes(), size)
				for j := 0; j < size; j += 4096 {
					b.Bytes()[j] = byte(len(bufs))
				}
				bufs = append(bufs, b)
				require.Less(t, len(bufs), (80<<20)/size, "Alloc sets no bound")
			}
		}
		bufs := exhaust()
		require.GreaterOrEqual(t, len(bufs), (1<<20)/size, "the share is too small to be of use")
		for k, b := range bufs {
			for j := 0; j < size; j += 4096 {
				require.Equal(t, byte(k), b.Bytes()[j], "two buffers share memory")
			}
		}
		c.roundTrip(1)
		bufs[0].Release()
		b, err := e.dm.Alloc(size)
		require.NoError(t, err, "after a release")
		bufs[0] = b
		for _, b := range bufs {
			b.Release()
		}
		again := exhaust()
		require.Equal(t, len(bufs), len(again), "the share has changed")
		for _, b := range again {
			b.Release()
		}
		_, err = e.dm.Alloc(1 << 40)
		require.True(t, errors.Is(err, iscsi.ErrNoMemory), "an absurd length: %v", err)
	}
}

// testTargetDeallocates aborts writes and reads at the target while their data is under way. Every
// GetData is either notified or its buffer has been released by the Datamover, and memory that
// came back that way is not written to any more.
func testTargetDeallocates(t *testing.T, m Maker) {
	c := full(t, m)
	late := make(chan uint64, 64)
	c.g.setHandle(func(ev event) bool {
		if ev.kind == completion {
			late <- ev.tag
		}
		return ev.kind == completion
	})
	const size = 64 << 10
	for k := range uint32(8) {
		itt := 200 + k
		out := c.writeCommand(itt, 3*size)
		bufs := map[uint64]iscsi.Buffer{}
		for j := range 3 {
			tag := uint64(k)<<8 | uint64(j)
			bufs[tag] = c.g.alloc(size)
			require.NoError(t, c.g.dm.GetData(&iscsi.DataOut{
				ITT: itt, TTT: itt<<8 | uint32(j), R2TSN: uint32(j), Offset: j * size, Buf: bufs[tag], Len: size, Tag: tag,
			}))
		}
		if k%2 == 1 { // some of it may have arrived
			c.roundTrip(itt)
		}
		c.g.dm.DeallocateTaskResources(itt)
		var again []iscsi.Buffer
		for range 4 {
			b := c.g.alloc(size)
			fill(b.Bytes(), 0xaa, 0)
			again = append(again, b)
		}
		c.roundTrip(itt)
		for _, b := range again {
			require.NoError(t, mismatch(b.Bytes(), 0xaa, 0), "written to after DeallocateTaskResources")
			b.Release()
		}
		for drained := false; !drained; {
			select {
			case tag := <-late: // ended before the task was forgotten: the buffer is ours
				require.Contains(t, bufs, tag)
				bufs[tag].Release()
				delete(bufs, tag)
			default:
				drained = true
			}
		}
		c.i.dm.DeallocateTaskResources(itt)
		out.Release()
	}

	in := c.readCommand(300, size)
	for j := range size / 4096 {
		c.put(300, uint32(j), 300, j*4096, 4096, j == size/4096-1, false)
	}
	c.g.dm.DeallocateTaskResources(300)
	c.roundTrip(300)
	c.i.dm.DeallocateTaskResources(300)
	in.Release()
	c.roundTrip(301)
}

// testInitiatorDeallocates: once the initiator has forgotten a task nothing is placed in its
// buffer, whatever the target still sends. A Datamover may end the connection over it.
func testInitiatorDeallocates(t *testing.T, m Maker) {
	c := full(t, m)
	const itt, size = 310, 64 << 10
	in := c.readCommand(itt, size)
	n := min(4096, c.g.dm.Info().MaxPutData)
	c.put(itt, 0, itt, 0, n, false, false)
	c.i.dm.DeallocateTaskResources(itt)
	fill(in.Bytes(), 0xbb, 0)
	for j := 1; j < size/n; j++ {
		b, err := c.g.dm.Alloc(n)
		if err == nil {
			err = c.g.dm.PutData(&iscsi.DataIn{
				ITT: itt, TTT: reservedTag, DataSN: uint32(j), Offset: j * n, Buf: b, Len: n, Final: j == size/n-1,
			})
		}
		if err != nil {
			require.True(t, isConnection(err), "%v", err)
			break
		}
	}
	if err := c.g.dm.SendControl(response(itt, itt, statusGood, 0, uint32(size/n), nil), nil); err != nil {
		require.True(t, isConnection(err), "%v", err)
	}
	switch ev := c.i.next(); ev.kind {
	case control:
		require.Equal(t, iscsi.OpSCSIResponse, ev.pdu.Opcode(), "a response that nobody waits for is the layer's above")
	case terminated:
	default:
		require.FailNow(t, "unexpected upcall", fmt.Sprintf("%+v", ev))
	}
	require.NoError(t, mismatch(in.Bytes(), 0xbb, 0), "placed after DeallocateTaskResources")
	in.Release()
}
