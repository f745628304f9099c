package rdmap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"goiwarp/mpa"
)

// wire is a socket on a bad network: writes are taken in small pieces; from some octet on one bit is wrong, or
// nothing passes any more.
type wire struct {
	mpa.Socket
	split  int
	flipAt int // octet of which a bit is flipped; -1 none
	cutAt  int // octets that pass; -1 all
	n      int
}

func (w *wire) pass(bufs [][]byte, write func([][]byte) (int, error)) (int, error) {
	if w.cutAt >= 0 && w.n >= w.cutAt {
		w.Close()
		return 0, net.ErrClosed
	}
	room := w.split
	if w.cutAt >= 0 {
		room = min(room, w.cutAt-w.n)
	}
	var out [][]byte
	at := w.n
	for _, b := range bufs {
		b = b[:min(len(b), room)]
		room -= len(b)
		if w.flipAt >= at && w.flipAt < at+len(b) {
			b = append([]byte(nil), b...)
			b[w.flipAt-at] ^= 0x04
		}
		at += len(b)
		out = append(out, b)
	}
	n, err := write(out)
	w.n += n
	return n, err
}

func (w *wire) TryWrite(bufs [][]byte) (int, error) { return w.pass(bufs, w.Socket.TryWrite) }
func (w *wire) Write(bufs [][]byte) (int, error)    { return w.pass(bufs, w.Socket.Write) }

// planned is one operation of a plan.
type planned struct {
	code  Code
	n     int
	flags Flags
	add   uint64
}

// plan is one run of the model.
type plan struct {
	opts       mpa.Options
	buf, split int
	emss       int
	depth      int // IRD and ORD
	ops        [2][]planned
	fault      string // "", "flip", "cut"
	faultSide  int
	faultAt    int
	chained    bool
}

func drawPlan(t *rapid.T) *plan {
	p := &plan{
		buf: rapid.SampledFrom([]int{200, 700, 4096, 65536}).Draw(t, "buffer"),
		// Small pieces only with small buffers, for the time's sake.
		split:   rapid.SampledFrom([]int{61, 500, 1 << 20}).Draw(t, "split"),
		emss:    rapid.SampledFrom([]int{300, 1460, 9000}).Draw(t, "EMSS"),
		depth:   rapid.IntRange(1, 4).Draw(t, "depth"),
		fault:   rapid.SampledFrom([]string{"", "", "flip", "cut"}).Draw(t, "fault"),
		chained: rapid.Bool().Draw(t, "chained"),
	}
	if rapid.Bool().Draw(t, "markers") {
		p.opts.Markers = mpa.On
	} else if rapid.Bool().Draw(t, "large") {
		p.opts.MaxFPDU = 65535
	}
	if p.fault != "flip" && rapid.Bool().Draw(t, "plain") {
		p.opts.CRC = mpa.Off
	}
	octets := 0
	for side := range p.ops {
		for range rapid.IntRange(1, 12).Draw(t, "operations") {
			o := planned{
				code: rapid.SampledFrom([]Code{Send, Write, Read, Immediate, FetchAdd}).Draw(t, "code"),
				n:    rapid.SampledFrom([]int{0, 1, 7, 100, 1000, 4000}).Draw(t, "length"),
				add:  uint64(rapid.IntRange(1, 9).Draw(t, "add")),
			}
			if rapid.Bool().Draw(t, "fence") {
				o.flags |= Fence
			}
			if rapid.Bool().Draw(t, "signaled") {
				o.flags |= Signaled
			}
			p.ops[side] = append(p.ops[side], o)
			octets += o.n + 40
		}
	}
	p.faultSide = rapid.IntRange(0, 1).Draw(t, "side")
	p.faultAt = rapid.IntRange(0, octets/2).Draw(t, "at")
	return p
}

// Each side's memory in the model: a constant source, slots for the peer's Writes, for Read sinks, for
// receives, and one counter for the peer's atomics.
const (
	slot       = 4096
	slots      = 12
	modSource  = 0
	modWritten = modSource + slots*slot
	modSink    = modWritten + slots*slot
	modReceive = modSink + slots*slot
	modCounter = modReceive + slots*slot
	modMem     = modCounter + 64
)

// TestModel drives two streams with random operations both ways through a bad network. Without a fault all is done
// and all octets are where they belong; with one, what is delivered is a right prefix, and everything is
// given back once and in order.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := drawPlan(rt)
		var failed error
		synctest.Test(t, func(t *testing.T) { failed = p.run(t) })
		if failed != nil {
			rt.Fatal(failed)
		}
	})
}

func (p *plan) run(t *testing.T) error {
	a, b := mpa.MemPipe(p.buf)
	a.SetEMSS(p.emss)
	b.SetEMSS(p.emss)
	w := [2]*wire{{Socket: a, split: p.split, flipAt: -1, cutAt: -1}, {Socket: b, split: p.split, flipAt: -1, cutAt: -1}}
	ca, cb := link(t, w[0], w[1], p.opts)
	var s [2]*side
	for i, c := range []*mpa.Conn{ca, cb} {
		s[i] = newSide(t, c, Config{Role: Role(i), IRD: p.depth, ORD: p.depth}, allRights, modMem)
		pattern(s[i].mem[modSource:modWritten], i+1)
		s[i].expect(modReceive, slot, slots)
	}
	switch f := w[p.faultSide]; p.fault {
	case "flip":
		f.flipAt = f.n + p.faultAt
	case "cut":
		f.cutAt = f.n + p.faultAt
	}
	for _, x := range s {
		x.run()
	}
	var posted [2][]*Op
	for i, x := range s {
		y := s[1-i]
		for k, o := range p.ops[i] {
			op := &Op{Code: o.code, Flags: o.flags, User: uint64(k), RemoteSTag: y.region.STag()}
			src := x.seg(modSource+k*slot, o.n)
			switch o.code {
			case Send:
				op.Segs = []Seg{x.seg(src.Off, o.n/3), x.seg(src.Off+o.n/3, o.n-o.n/3)}
			case Write:
				op.Segs = []Seg{src}
				op.RemoteTO = y.to(modWritten + k*slot)
			case Read:
				op.Segs = []Seg{x.seg(modSink+k*slot, o.n)}
				op.RemoteTO = y.to(modSource + k*slot)
			case Immediate:
				binary.BigEndian.PutUint64(op.Imm[:], uint64(k))
			case FetchAdd:
				op.Add, op.RemoteTO = o.add, y.to(modCounter)
			}
			posted[i] = append(posted[i], op)
		}
		posted[i][len(posted[i])-1].Flags |= Signaled // brings the others home
	}
	for i, x := range s {
		if p.chained {
			if err := x.Post(chain(posted[i]...)); err != nil && p.fault == "" {
				return err
			}
			continue
		}
		for _, op := range posted[i] {
			if err := x.Post(op); err != nil && p.fault == "" {
				return err
			}
		}
	}
	// The responder may send once it has heard something.
	_ = s[0].Post(&Op{Code: Write, User: uint64(len(posted[0]))})
	synctest.Wait()
	if p.fault == "" {
		for i, x := range s {
			if m, d := x.rec.count(); d < len(posted[i]) {
				return fmt.Errorf("side %d: %d messages, %d of %d operations done", i, m, d, len(posted[i]))
			}
		}
	}
	s[0].Disconnect()
	for i, x := range s {
		if err := x.rec.reason(); err != nil && p.fault == "" {
			return fmt.Errorf("side %d ends with %w", i, err)
		}
	}
	for i, x := range s {
		if err := p.check(x, s[1-i], posted[i], i); err != nil {
			return fmt.Errorf("side %d: %w", i, err)
		}
	}
	return nil
}

// check compares what x posted with what happened at y.
func (p *plan) check(x, y *side, posted []*Op, i int) error {
	messages, _ := y.rec.snapshot()
	_, done := x.rec.snapshot()
	var counter uint64
	flushed := false
	for k, d := range done {
		if int(d.op.User) != k {
			return fmt.Errorf("operation %d came back as number %d", d.op.User, k)
		}
		if d.err != nil {
			var te *TerminateError
			if !errors.Is(d.err, ErrFlushed) && !errors.As(d.err, &te) {
				return d.err
			}
			flushed = true
			continue
		}
		if flushed {
			return errors.New("success after a flush")
		}
		if k >= len(posted) {
			continue
		}
		o := p.ops[i][k]
		switch o.code {
		case Read:
			if string(x.mem[modSink+k*slot:][:o.n]) != string(y.mem[modSource+k*slot:][:o.n]) {
				return fmt.Errorf("Read %d brought the wrong octets", k)
			}
		case FetchAdd:
			if d.op.Original != counter {
				return fmt.Errorf("FetchAdd %d found %d instead of %d", k, d.op.Original, counter)
			}
			counter += o.add
		}
	}
	if p.fault == "" && (flushed || len(done) < len(posted)) {
		return errors.New("operations were flushed without need")
	}
	n := 0
	for k, o := range p.ops[i] {
		if o.code != Send && o.code != Immediate {
			continue
		}
		if n == len(messages) || messages[n].Err != nil {
			if p.fault == "" {
				return fmt.Errorf("%d messages arrived", n)
			}
			return nil
		}
		m := messages[n]
		n++
		if m.HasImm != (o.code == Immediate) {
			return fmt.Errorf("message %d is of the wrong kind", k)
		}
		if m.HasImm && binary.BigEndian.Uint64(m.Imm[:]) != uint64(k) || !m.HasImm && string(m.data) != string(x.mem[modSource+k*slot:][:o.n]) {
			return fmt.Errorf("message %d has the wrong octets", k)
		}
		// Writes before a delivered message are there (rule 5).
		for j, w := range p.ops[i][:k] {
			if w.code == Write && string(y.mem[modWritten+j*slot:][:w.n]) != string(x.mem[modSource+j*slot:][:w.n]) {
				return fmt.Errorf("Write %d is not there when message %d is", j, k)
			}
		}
	}
	if p.opts.CRC != mpa.Off || p.fault != "flip" {
		return p.checkWrites(x, y, i)
	}
	return nil
}

// checkWrites finds no octet that was not sent.
func (p *plan) checkWrites(x, y *side, i int) error {
	for k := range slots {
		n := 0
		if k < len(p.ops[i]) && p.ops[i][k].code == Write {
			n = p.ops[i][k].n
		}
		got := y.mem[modWritten+k*slot:][:slot]
		want := x.mem[modSource+k*slot:][:slot]
		for j, o := range got {
			if o != 0 && (j >= n || o != want[j]) {
				return fmt.Errorf("octet %d of slot %d was never sent", j, k)
			}
		}
	}
	return nil
}
