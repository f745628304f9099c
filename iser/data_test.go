package iser_test

import (
	"bytes"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iser"
	"goiwarp/rnic"
)

// pattern fills b so that every octet tells its offset.
func pattern(b []byte) []byte {
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// bases are the readings of the Write Base Offset (RFC 7145, sections 6.9 and 7.3.6) by what the peer sends
// and what was declared: shift tells whether the base is the first solicited octet.
var bases = []struct {
	name       string
	private    []byte
	force      iser.WriteBase
	taggedOnly bool
	shift      bool
}{
	{"peer with the CM header", linux, iser.WriteBaseAuto, false, true},
	{"peer without", nil, iser.WriteBaseAuto, false, false},
	{"TaggedBufferForSolicitedDataOnly=Yes", nil, iser.WriteBaseAuto, true, true},
	{"TaggedBufferForSolicitedDataOnly=Yes and the CM header", linux, iser.WriteBaseAuto, true, true},
	{"forced RFC", linux, iser.WriteBaseRFC, false, false},
	{"forced RFC, TaggedBufferForSolicitedDataOnly=Yes", linux, iser.WriteBaseRFC, true, true},
	{"forced Linux", nil, iser.WriteBaseLinux, false, true},
}

// TestWriteBaseTarget: the target reads the right octets whichever way the base is meant, with
// immediate data alone and with unsolicited Data-Out PDUs, also when it does not wait for the last of them.
func TestWriteBaseTarget(t *testing.T) {
	const total, immediate, unsolicited = 40_000, 1000, 3000
	for _, c := range bases {
		for _, early := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, early=%t", c.name, early), func(t *testing.T) {
				w := newWorld(t, setup{gConfig: iser.Config{WriteBase: c.force, NoSendInvalidate: true}})
				p, g, n := w.rawInitiator(t, c.private, 4)
				keys := params()
				keys.InitialR2T = false
				keys.FirstBurstLength = immediate + unsolicited
				keys.TaggedBufferForSolicitedDataOnly = c.taggedOnly
				enter(t, p, g, n, keys)
				out := pattern(p.data.Bytes()[:total])
				for itt, first := range map[uint32]int{2: immediate, 3: immediate + unsolicited, 4: 0} {
					base := p.data.Addr()
					if c.shift {
						base += uint64(first)
					}
					flags := byte(0xa1)
					if first > immediate {
						flags = 0x21
					}
					p.send(pdu(header(p.data.STag(), 0, base, 0), command(flags, itt, total), out[:min(first, immediate)]))
					require.True(t, bytes.Equal(out[:min(first, immediate)], wait(t, n.pdus).Data))
					data := func() {
						for off := immediate; off < first; off += 1500 {
							p.send(pdu(nil, dataOut(itt, off, off+1500 >= first), out[off:off+1500]))
							require.Equal(t, out[off:off+1500], wait(t, n.pdus).Data)
						}
					}
					if !early {
						data()
					}
					b, err := g.Alloc(total)
					require.NoError(t, err)
					mid := first + 11_111
					require.NoError(t, g.GetData(&iscsi.DataOut{ITT: itt, Offset: first, Buf: b, To: first, Len: mid - first}))
					require.NoError(t, g.GetData(&iscsi.DataOut{ITT: itt, Offset: mid, Buf: b, To: mid, Len: total - mid}))
					require.NoError(t, wait(t, n.done))
					require.NoError(t, wait(t, n.done))
					require.True(t, bytes.Equal(out[first:], b.Bytes()[first:]))
					b.Release()
					if early {
						data()
					}
					require.NoError(t, g.SendControl(&iscsi.PDU{BHS: [48]byte(bhs(iscsi.OpSCSIResponse, 0x80, itt))}, nil))
					wait(t, p.msgs)
				}
			})
		}
	}
}

// TestWriteBaseInitiator: what the initiator advertises starts where the peer's reading has it, and reaches no
// further than that needs.
func TestWriteBaseInitiator(t *testing.T) {
	const total, first = 20_000, 3000
	for _, c := range bases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, setup{iConfig: iser.Config{WriteBase: c.force}})
			p, i, n := w.rawTarget(t, c.private)
			keys := params()
			keys.TaggedBufferForSolicitedDataOnly = c.taggedOnly
			enterInitiator(t, p, i, n, keys)
			out, err := i.Alloc(total)
			require.NoError(t, err)
			defer out.Release()
			pattern(out.Bytes())
			require.NoError(t, i.SendControl(&iscsi.PDU{BHS: [48]byte(command(0xa1, 5, total)), Data: out.Bytes()[:first]},
				&iscsi.TaskBuffers{Out: out, OutLen: total, Unsolicited: first}))
			m := wait(t, p.msgs).b
			h := iser.Header(m)
			require.True(t, h.WriteValid())
			require.False(t, h.ReadValid())
			require.Equal(t, out.Bytes()[:first], m[76:])
			from := 0
			if c.shift {
				from = first
			}
			read := func(off, n int) rnic.Completion {
				require.NoError(t, p.qp.PostSend(&rnic.SendWR{
					ID: 1, Op: rnic.OpRead, Flags: rnic.Signaled, SGE: []rnic.SGE{{MR: p.data, Len: n}},
					RemoteSTag: h.WriteSTag(), RemoteAddr: h.WriteBase() + uint64(off),
				}))
				return wait(t, p.sent)
			}
			require.Equal(t, rnic.StatusOK, read(first-from, total-first).Status)
			require.Equal(t, out.Bytes()[first:], p.data.Bytes()[:total-first])
			if c.shift {
				require.NotEqual(t, rnic.StatusOK, read(-1, 1).Status, "unsolicited octets are not granted")
				require.Error(t, wait(t, n.ended))
			}
		})
	}
}

// read starts a task of i that reads n octets and returns its buffer and header as the target sees it.
func read(t *testing.T, p *peer, i *iser.Datamover, itt uint32, n int) (iscsi.Buffer, iser.Header) {
	t.Helper()
	in, err := i.Alloc(n)
	require.NoError(t, err)
	t.Cleanup(in.Release)
	clear(in.Bytes())
	require.NoError(t, i.SendControl(&iscsi.PDU{BHS: [48]byte(command(0xc1, itt, n))}, &iscsi.TaskBuffers{In: in, InLen: n}))
	h := iser.Header(wait(t, p.msgs).b)
	require.True(t, h.ReadValid())
	return in, h
}

// short is the SCSI Response of a task that has got what write writes, of 4096 octets.
func short(itt uint32) iscsi.BHS {
	b := bhs(iscsi.OpSCSIResponse, 0x80, itt)
	r := iscsi.SCSIResponse(b)
	r.SetUnderflow(true)
	r.SetResidual(4096 - uint32(len(late)))
	return b
}

// late is what write writes.
const late = "late"

// respond sends a SCSI Response, with the STag to invalidate if it is not 0.
func (p *peer) respond(itt uint32, invalidate rnic.STag) {
	p.t.Helper()
	wr := rnic.SendWR{Op: rnic.OpSend, Inline: pdu(nil, short(itt), nil)}
	if invalidate != 0 {
		wr.Op, wr.RemoteSTag = rnic.OpSendInvalidate, invalidate
	}
	require.NoError(p.t, p.qp.PostSend(&wr))
}

func (p *peer) write(h iser.Header) {
	p.t.Helper()
	require.NoError(p.t, p.qp.PostSend(&rnic.SendWR{
		Op: rnic.OpWrite, Inline: []byte(late), RemoteSTag: h.ReadSTag(), RemoteAddr: h.ReadBase(),
	}))
}

// TestSTagsDieWithTheTask: once the SCSI Response was handed up nothing can be placed in the task's buffer,
// whether the peer invalidated the STag, left it, or named only one of two (RFC 7145, section 7.3.2).
func TestSTagsDieWithTheTask(t *testing.T) {
	for _, c := range []struct {
		name       string
		invalidate func(h iser.Header) rnic.STag
	}{
		{"plain Send", func(iser.Header) rnic.STag { return 0 }},
		{"Send with Invalidate", iser.Header.ReadSTag},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, setup{})
			p, i, n := w.rawTarget(t, linux)
			enterInitiator(t, p, i, n, params())
			in, h := read(t, p, i, 5, 4096)
			p.write(h)
			p.respond(5, c.invalidate(h))
			require.Equal(t, iscsi.OpSCSIResponse, wait(t, n.pdus).Opcode())
			require.Equal(t, late, string(in.Bytes()[:4]))
			clear(in.Bytes())
			p.write(h)
			require.Error(t, wait(t, n.ended), "a write to a dead STag ends the connection")
			require.Equal(t, make([]byte, 4096), in.Bytes())
		})
	}
	t.Run("bidirectional", func(t *testing.T) {
		w := newWorld(t, setup{})
		p, i, n := w.rawTarget(t, linux)
		enterInitiator(t, p, i, n, params())
		in, err := i.Alloc(4096)
		require.NoError(t, err)
		defer in.Release()
		out, err := i.Alloc(4096)
		require.NoError(t, err)
		defer out.Release()
		require.NoError(t, i.SendControl(&iscsi.PDU{BHS: [48]byte(command(0xe1, 6, 4096))},
			&iscsi.TaskBuffers{In: in, InLen: 4096, Out: out, OutLen: 4096}))
		h := iser.Header(wait(t, p.msgs).b)
		require.True(t, h.ReadValid() && h.WriteValid())
		p.respond(6, h.ReadSTag())
		wait(t, n.pdus)
		require.Equal(t, "1", fact(i, "STags invalidated by the peer"))
		require.Equal(t, "1", fact(i, "STags invalidated here"), "the Write STag")
		require.NoError(t, p.qp.PostSend(&rnic.SendWR{
			ID: 1, Op: rnic.OpRead, Flags: rnic.Signaled, SGE: []rnic.SGE{{MR: p.data, Len: 8}}, RemoteSTag: h.WriteSTag(), RemoteAddr: h.WriteBase(),
		}))
		require.NotEqual(t, rnic.StatusOK, wait(t, p.sent).Status)
	})
	t.Run("deallocated", func(t *testing.T) {
		w := newWorld(t, setup{})
		p, i, n := w.rawTarget(t, linux)
		enterInitiator(t, p, i, n, params())
		in, h := read(t, p, i, 7, 4096)
		i.DeallocateTaskResources(7)
		p.write(h)
		require.Error(t, wait(t, n.ended))
		require.Equal(t, make([]byte, 4096), in.Bytes())
	})
}

// TestUnderrun: a good status of a read that claims more than was written ends the connection, and is not handed up. Where the residual tells of it, or the
// status is not good, it is.
func TestUnderrun(t *testing.T) {
	claims := func(status byte, underflow bool, residual uint32) iscsi.BHS {
		b := bhs(iscsi.OpSCSIResponse, 0x80, 9)
		r := iscsi.SCSIResponse(b)
		r.SetStatus(status)
		r.SetUnderflow(underflow)
		r.SetResidual(residual)
		return b
	}
	for name, c := range map[string]struct {
		written bool
		b       iscsi.BHS
		want    int64 // 0: it is handed up
	}{
		"nothing written":         {false, claims(0, false, 0), 4096},
		"little written":          {true, claims(0, false, 0), 4096},
		"residual too small":      {true, claims(0, true, 4091), 5},
		"residual":                {true, claims(0, true, 4092), 0},
		"nothing, with residual":  {false, claims(0, true, 4096), 0},
		"residual beyond the end": {false, claims(0, true, 1<<31), 0},
		"CHECK CONDITION":         {true, claims(2, false, 0), 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, setup{})
			p, i, n := w.rawTarget(t, linux)
			enterInitiator(t, p, i, n, params())
			_, h := read(t, p, i, 9, 4096)
			placed := uint64(0)
			if c.written {
				p.write(h)
				placed = uint64(len(late))
			}
			p.send(pdu(nil, c.b, nil))
			if c.want == 0 {
				require.Equal(t, iscsi.OpSCSIResponse, wait(t, n.pdus).Opcode())
				return
			}
			var ue *iser.UnderrunError
			require.ErrorAs(t, wait(t, n.ended), &ue)
			require.Equal(t, iser.UnderrunError{ITT: 9, Placed: placed, Want: c.want}, *ue)
			require.Empty(t, n.pdus, "the response is not handed up")
		})
	}
}

// TestWrongInvalidation: a Send with Invalidate may name the STag of its own task only.
func TestWrongInvalidation(t *testing.T) {
	w := newWorld(t, setup{})
	p, i, n := w.rawTarget(t, linux)
	enterInitiator(t, p, i, n, params())
	_, other := read(t, p, i, 1, 4096)
	p.write(other)
	read(t, p, i, 2, 4096)
	p.respond(2, other.ReadSTag())
	var ie *iser.InvalidationError
	require.ErrorAs(t, wait(t, n.ended), &ie)
	require.Equal(t, uint32(2), ie.ITT)
	require.Equal(t, other.ReadSTag(), ie.STag)
	require.Empty(t, n.pdus, "the response is not handed up")
}

// TestResponseNamesSTag: a plain Send may name the STag that is to be invalidated in the header of the response (RFC 7145, section 7.3.2). It
// has to be the task's, or one that is nobody's if the task has been given up.
func TestResponseNamesSTag(t *testing.T) {
	w := newWorld(t, setup{})
	respond := func(p *peer, itt uint32, read, write rnic.STag) {
		p.send(pdu(header(write, read, 0, 0), short(itt), nil))
	}
	for name, c := range map[string]struct {
		name func(own, other, gone rnic.STag) (itt uint32, read, write rnic.STag)
		bad  bool
	}{
		"the task's":                 {func(own, _, _ rnic.STag) (uint32, rnic.STag, rnic.STag) { return 1, own, 0 }, false},
		"the task's, as write":       {func(own, _, _ rnic.STag) (uint32, rnic.STag, rnic.STag) { return 1, 0, own }, true},
		"another task's":             {func(_, other, _ rnic.STag) (uint32, rnic.STag, rnic.STag) { return 1, other, 0 }, true},
		"nobody's":                   {func(_, _, gone rnic.STag) (uint32, rnic.STag, rnic.STag) { return 1, gone, 0 }, true},
		"a given up task's":          {func(_, _, gone rnic.STag) (uint32, rnic.STag, rnic.STag) { return 3, gone, 0 }, false},
		"another's, by a given up":   {func(_, other, _ rnic.STag) (uint32, rnic.STag, rnic.STag) { return 3, other, 0 }, true},
		"another's, as write, by it": {func(_, other, _ rnic.STag) (uint32, rnic.STag, rnic.STag) { return 3, 0, other }, true},
	} {
		t.Run(name, func(t *testing.T) {
			p, i, n := w.rawTarget(t, nil)
			enterInitiator(t, p, i, n, params())
			in, own := read(t, p, i, 1, 4096)
			_, other := read(t, p, i, 2, 4096)
			_, gone := read(t, p, i, 3, 4096)
			i.DeallocateTaskResources(3)
			p.write(own)
			itt, r, wr := c.name(own.ReadSTag(), other.ReadSTag(), gone.ReadSTag())
			respond(p, itt, r, wr)
			if !c.bad {
				require.Equal(t, iscsi.OpSCSIResponse, wait(t, n.pdus).Opcode())
				p.write(other)
				respond(p, 2, other.ReadSTag(), 0)
				require.Equal(t, iscsi.OpSCSIResponse, wait(t, n.pdus).Opcode(), "the others go on")
				if itt == 1 {
					require.Equal(t, late, string(in.Bytes()[:4]))
					clear(in.Bytes())
					p.write(own)
					require.Error(t, wait(t, n.ended), "the STag is dead")
					require.Equal(t, make([]byte, 4096), in.Bytes())
				}
				return
			}
			var ie *iser.InvalidationError
			require.ErrorAs(t, wait(t, n.ended), &ie)
			require.Equal(t, iser.InvalidationError{ITT: itt, STag: r | wr}, *ie)
			require.Empty(t, n.pdus, "the response is not handed up")
		})
	}
}

// TestTargetNamesSTag: where Send with Invalidate is not agreed on the header of the response names the STag, the Read STag if there is one
// (RFC 7145, section 7.3.2); towards Linux's initiator it names none.
func TestTargetNamesSTag(t *testing.T) {
	linuxWithout := []byte{linux[0] | 0x40, 0, 0, 0} // S: no Send with Invalidate
	for _, c := range []struct {
		name        string
		private     []byte
		flags       byte
		read, write bool
		want        string
	}{
		{"read", nil, 0xc1, true, false, "read"},
		{"write", nil, 0xa1, false, true, "write"},
		{"both", nil, 0xe1, true, true, "read"},
		{"neither", nil, 0x81, false, false, ""},
		{"Linux", linuxWithout, 0xc1, true, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, setup{})
			p, g, n := w.rawInitiator(t, c.private, 4)
			enter(t, p, g, n, params())
			var rs, ws rnic.STag
			if c.read {
				rs = p.data.STag()
			}
			if c.write {
				ws = p.data.STag() ^ 0x77
			}
			p.send(pdu(header(ws, rs, 0, 0), command(c.flags, 3, 4096), nil))
			wait(t, n.pdus)
			require.NoError(t, g.SendControl(&iscsi.PDU{BHS: [48]byte(bhs(iscsi.OpSCSIResponse, 0x80, 3))}, nil))
			m := wait(t, p.msgs)
			require.Zero(t, m.invalidated)
			h := iser.Header(m.b)
			require.Equal(t, []bool{c.want == "read", c.want == "write"}, []bool{h.ReadValid(), h.WriteValid()})
			switch c.want {
			case "read":
				require.Equal(t, rs, h.ReadSTag())
			case "write":
				require.Equal(t, ws, h.WriteSTag())
			}
			require.Zero(t, h.ReadBase()|h.WriteBase())
		})
	}
}

// TestInitiatorInvalidates: an initiator has nothing to invalidate at a target, however it names it: an STag that is not there (RFC 5040, section
// 5.3), or one that the target reads into. The connection ends, and what the message carries is not handed up.
func TestInitiatorInvalidates(t *testing.T) {
	for name, hold := range map[string]bool{"an STag that is not there": false, "an STag that is": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, setup{})
			p, g, n := w.rawInitiator(t, linux, 4)
			enter(t, p, g, n, params())
			stag := rnic.STag(0x12345678)
			if hold {
				mr, err := w.gDom.Device().AllocPD()
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, mr.Close()) })
				region, err := mr.AllocMR(4096, rnic.LocalWrite|rnic.RemoteWrite)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, region.Deregister()) })
				stag = region.STag() // of another protection domain: as good as not there
			}
			require.NoError(t, p.qp.PostSend(&rnic.SendWR{Op: rnic.OpSendInvalidate, RemoteSTag: stag, Inline: pdu(nil, command(0x81, 3, 0), nil)}))
			require.Error(t, wait(t, n.ended))
			require.Empty(t, n.pdus, "the command is not handed up")
		})
	}
}

// TestInvalidatesReadSTagElseWriteSTag: what the target's Send with Invalidate names.
func TestInvalidatesReadSTagElseWriteSTag(t *testing.T) {
	w := newWorld(t, setup{})
	p, g, n := w.rawInitiator(t, linux, 4)
	enter(t, p, g, n, params())
	win := func() rnic.Window {
		x, err := p.pd.AllocWindow()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, x.Free()) })
		_, err = x.Bind(p.data, 0, 4096, rnic.RemoteRead|rnic.RemoteWrite)
		require.NoError(t, err)
		return x
	}
	for _, c := range []struct {
		name  string
		read  bool
		write bool
		flags byte
	}{{"read", true, false, 0xc1}, {"write", false, true, 0xa1}, {"both", true, true, 0xe1}, {"neither", false, false, 0x81}} {
		r, wr := win(), win()
		var rs, ws, want rnic.STag
		if c.write {
			ws, want = wr.STag(), wr.STag()
		}
		if c.read {
			rs, want = r.STag(), r.STag()
		}
		p.send(pdu(header(ws, rs, wr.Addr(), r.Addr()), command(c.flags, 3, 4096), nil))
		wait(t, n.pdus)
		if c.read {
			b, err := g.Alloc(16)
			require.NoError(t, err)
			require.NoError(t, g.PutData(&iscsi.DataIn{ITT: 3, Buf: b, Len: 16, More: true}))
		} else if c.write {
			b, err := g.Alloc(16)
			require.NoError(t, err)
			require.NoError(t, g.GetData(&iscsi.DataOut{ITT: 3, Buf: b, Len: 16}))
			require.NoError(t, wait(t, n.done))
			b.Release()
		}
		require.NoError(t, g.SendControl(&iscsi.PDU{BHS: [48]byte(bhs(iscsi.OpSCSIResponse, 0x80, 3))}, nil))
		require.Equal(t, want, wait(t, p.msgs).invalidated, c.name)
		b, err := g.Alloc(16)
		require.NoError(t, err)
		require.ErrorIs(t, g.PutData(&iscsi.DataIn{ITT: 3, Buf: b, Len: 16}), iser.ErrNoSTag, "the mapping went with the response")
	}
}

// TestReadDepth: never more Reads out than the peer serves, and every GetData makes progress however many are
// asked for at once, with one Read at a time too.
func TestReadDepth(t *testing.T) {
	for _, ird := range []int{1, 16} {
		t.Run(strconv.Itoa(ird), func(t *testing.T) {
			w := newWorld(t, setup{})
			p, g, n := w.rawInitiator(t, linux, ird)
			enter(t, p, g, n, params())
			require.Equal(t, strconv.Itoa(ird), fact(g, "reads outstanding at most"))
			out := pattern(p.data.Bytes())
			const tasks, each = 32, 17
			size := len(out) / each
			bufs := map[int]iscsi.Buffer{}
			for k := range tasks {
				p.send(pdu(header(p.data.STag(), 0, p.data.Addr(), 0), command(0xa1, uint32(k), len(out)), nil))
				wait(t, n.pdus)
			}
			for k := range tasks * each {
				b, err := g.Alloc(8192)
				require.NoError(t, err)
				bufs[k] = b
				require.NoError(t, g.GetData(&iscsi.DataOut{ITT: uint32(k / each), Offset: k % each * size, Buf: b, Len: 8000}))
			}
			for range tasks * each {
				require.NoError(t, wait(t, n.done))
			}
			for k, b := range bufs {
				require.True(t, bytes.Equal(out[k%each*size:][:8000], b.Bytes()[:8000]))
				b.Release()
			}
			require.EqualValues(t, tasks*each, p.qp.Stats().ReadsReceived)
		})
	}
}

// TestDataACK: the A bit gets its answer by a zero-length Read behind the Write, or at
// ErrorRecoveryLevel 1 by the Write's completion (RFC 7145, section 7.3.5).
func TestDataACK(t *testing.T) {
	for level, reads := range map[int]uint64{1: 0, 2: 1} {
		w := newWorld(t, setup{})
		p, g, n := w.rawInitiator(t, linux, 4)
		keys := params()
		keys.ErrorRecoveryLevel = level
		enter(t, p, g, n, keys)
		p.send(pdu(header(0, p.data.STag(), 0, p.data.Addr()), command(0xc1, 3, 4096), nil))
		wait(t, n.pdus)
		b, err := g.Alloc(4096)
		require.NoError(t, err)
		pattern(b.Bytes())
		want := bytes.Clone(b.Bytes())
		require.NoError(t, g.PutData(&iscsi.DataIn{ITT: 3, DataSN: 6, Buf: b, Len: 4096, Ack: true, Final: true}))
		require.Equal(t, uint32(7), wait(t, n.acks))
		require.Equal(t, reads, p.qp.Stats().ReadsReceived, "level %d", level)
		if level == 2 {
			require.Equal(t, want, p.data.Bytes()[:4096], "the Read proves that the Write was placed")
		}
	}
}

// TestResourcesAreRefused: a login that asks for more than there is gets a typed error.
func TestResourcesAreRefused(t *testing.T) {
	w := newWorld(t, setup{domain: iser.DomainConfig{ReceiveMemory: 1 << 20}})
	_, g, _ := w.rawInitiator(t, linux, 4)
	var re *iser.ResourceError
	require.ErrorAs(t, g.AllocateConnectionResources(iscsi.ConnectionResources{Target: true, Window: 1000, RecvDataSegment: 8192}), &re)
	require.ErrorAs(t, g.AllocateConnectionResources(iscsi.ConnectionResources{Target: true, Window: 8, RecvDataSegment: 1 << 20}), &re)
	require.ErrorAs(t, g.AllocateConnectionResources(iscsi.ConnectionResources{Target: true, Window: 8, MaxAHS: 1020}), &re)
	require.NoError(t, g.AllocateConnectionResources(iscsi.ConnectionResources{Target: true, Window: 32, RecvDataSegment: 8192, MaxAHS: 256}))
	require.Positive(t, w.gDom.Stats().CreditsGiven)
	g.DeallocateConnectionResources()
	require.LessOrEqual(t, w.gDom.Stats().CreditsGiven, 8)
}

// TestMemoryChanges: a domain's bounds change while it is used. What is lent and reserved stays, and what comes next is measured by the
// new ones.
func TestMemoryChanges(t *testing.T) {
	w := newWorld(t, setup{domain: iser.DomainConfig{ReceiveMemory: 4 << 20, BufferMemory: 4 << 20}})
	_, g, _ := w.rawInitiator(t, linux, 4)
	ask := func(window int) error {
		return g.AllocateConnectionResources(iscsi.ConnectionResources{Target: true, Window: window, RecvDataSegment: 8192, MaxAHS: 256})
	}
	require.NoError(t, ask(200))
	reserved := w.gDom.Stats().CreditsGiven
	b, err := g.Alloc(2 << 20)
	require.NoError(t, err)
	small, err := g.Alloc(1)
	require.NoError(t, err)
	small.Release()

	require.Error(t, w.gDom.SetMemory(-1, 0))
	require.NoError(t, w.gDom.SetMemory(1<<20, 1<<20))
	require.Equal(t, reserved, w.gDom.Stats().CreditsGiven)
	require.Equal(t, 2<<20, w.gDom.Stats().BufferOctets, "what nobody uses was given back")
	_, err = g.Alloc(1)
	require.ErrorIs(t, err, iscsi.ErrNoMemory)
	var re *iser.ResourceError
	require.ErrorAs(t, ask(250), &re)
	require.Equal(t, reserved, w.gDom.Stats().CreditsGiven)
	b.Bytes()[2<<20-1] = 1
	b.Release()
	b, err = g.Alloc(1 << 20)
	require.NoError(t, err)
	b.Release()

	require.NoError(t, w.gDom.SetMemory(0, 8<<20))
	require.NoError(t, ask(250))
	_, err = g.Alloc(2 << 20)
	require.ErrorIs(t, err, iscsi.ErrNoMemory, "0 leaves a bound alone")
}
