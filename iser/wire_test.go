package iser_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iser"
	"goiwarp/rnic"
)

var linux = []byte{0x80, 0, 0, 0} // ib_iser's private data

func header(write, read rnic.STag, writeBase, readBase uint64) iser.Header {
	h := make(iser.Header, iser.HeaderLen)
	h.Init()
	if write != 0 {
		h.SetWrite(write, writeBase)
	}
	if read != 0 {
		h.SetRead(read, readBase)
	}
	return h
}

func command(flags byte, itt uint32, edtl int) iscsi.BHS {
	b := bhs(iscsi.OpSCSICommand, flags, itt)
	iscsi.SCSICommand(b).SetEDTL(uint32(edtl))
	return b
}

func dataOut(itt uint32, off int, final bool) iscsi.BHS {
	b := bhs(iscsi.OpDataOut, 0, itt)
	iscsi.DataOutPDU(b).SetOffset(uint32(off))
	iscsi.DataOutPDU(b).SetFinal(final)
	return b
}

func fact(dm iscsi.Datamover, name string) string {
	for _, f := range dm.Info().Facts {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// TestHello: answered as the first message of a connection and where iSERHelloRequired=Yes makes it
// due; an error anywhere else (RFC 7145, sections 5.1.3 and 10.1.3.4).
func TestHello(t *testing.T) {
	w := newWorld(t, setup{gConfig: iser.Config{ORD: 8}})
	required := params()
	required.ISERHelloRequired = true

	t.Run("first message", func(t *testing.T) {
		p, g, n := w.rawInitiator(t, linux, 16)
		p.send(iser.AppendHello(nil, 4))
		r, err := iser.ParseHelloReply(wait(t, p.msgs).b)
		require.NoError(t, err)
		require.False(t, r.Rejected())
		require.Equal(t, 4, r.ORD(), "the lower of the two")
		enter(t, p, g, n, params())
	})
	t.Run("required", func(t *testing.T) {
		p, g, n := w.rawInitiator(t, linux, 16)
		enter(t, p, g, n, required)
		p.send(iser.AppendHello(nil, 100))
		r, err := iser.ParseHelloReply(wait(t, p.msgs).b)
		require.NoError(t, err)
		require.Equal(t, 8, r.ORD())
		p.send(pdu(nil, bhs(iscsi.OpNOPOut, 0x80, 5), nil))
		require.Equal(t, iscsi.OpNOPOut, wait(t, n.pdus).Opcode())
	})
	t.Run("no common version", func(t *testing.T) {
		p, g, n := w.rawInitiator(t, linux, 16)
		enter(t, p, g, n, required)
		m := iser.AppendHello(nil, 4)
		m[1] = 0x11
		p.send(m)
		r, err := iser.ParseHelloReply(wait(t, p.msgs).b)
		require.NoError(t, err)
		require.True(t, r.Rejected())
		require.ErrorIs(t, wait(t, n.ended), iser.ErrHelloRejected)
	})
	t.Run("required but missing", func(t *testing.T) {
		p, g, n := w.rawInitiator(t, linux, 16)
		enter(t, p, g, n, required)
		p.send(pdu(nil, bhs(iscsi.OpNOPOut, 0x80, 5), nil))
		var he *iser.HeaderError
		require.ErrorAs(t, wait(t, n.ended), &he)
	})
	t.Run("after a login that did not ask for it", func(t *testing.T) {
		p, g, n := w.rawInitiator(t, linux, 16)
		enter(t, p, g, n, params())
		p.send(iser.AppendHello(nil, 4))
		var he *iser.HeaderError
		require.ErrorAs(t, wait(t, n.ended), &he)
	})
	t.Run("initiator", func(t *testing.T) {
		p, i, n := w.rawTarget(t, linux)
		enterInitiator(t, p, i, n, required)
		h, err := iser.ParseHello(wait(t, p.msgs).b)
		require.NoError(t, err)
		require.Positive(t, h.IRD())
		p.send(iser.AppendHelloReply(nil, 2, false))
		p.send(pdu(nil, bhs(iscsi.OpNOPIn, 0x80, 0xffffffff), nil))
		require.Equal(t, iscsi.OpNOPIn, wait(t, n.pdus).Opcode())
	})
	t.Run("initiator is refused", func(t *testing.T) {
		p, i, n := w.rawTarget(t, linux)
		enterInitiator(t, p, i, n, required)
		p.send(iser.AppendHelloReply(nil, 2, true))
		require.ErrorIs(t, wait(t, n.ended), iser.ErrHelloRejected)
	})
	t.Run("both ends", func(t *testing.T) {
		pair(t, w, required)
	})
}

// pair makes two Datamovers in full feature phase.
func pair(t *testing.T, w *world, keys *iscsi.Params) (i, g *iser.Datamover, in, gn *notes) {
	t.Helper()
	i, g = w.connect(t)
	in, gn = newNotes(), newNotes()
	i.Start(in)
	g.Start(gn)
	t.Cleanup(func() {
		i.ConnectionTerminate(false)
		g.ConnectionTerminate(false)
		<-i.Done()
		<-g.Done()
	})
	require.NoError(t, i.AllocateConnectionResources(iscsi.ConnectionResources{Window: 32, RecvDataSegment: 8192}))
	require.NoError(t, i.SendControl(&iscsi.PDU{BHS: [48]byte(bhs(iscsi.OpLoginReq, 0x87, 1))}, nil))
	wait(t, gn.pdus)
	require.NoError(t, g.AllocateConnectionResources(iscsi.ConnectionResources{Target: true, Window: 32, RecvDataSegment: 8192}))
	g.NoticeKeyValues(keys)
	require.NoError(t, g.EnableDatamover(&iscsi.PDU{BHS: [48]byte(bhs(iscsi.OpLoginRsp, 0x87, 1))}))
	wait(t, in.pdus)
	i.NoticeKeyValues(keys)
	require.NoError(t, i.EnableDatamover(nil))
	require.NoError(t, i.SendControl(&iscsi.PDU{BHS: [48]byte(bhs(iscsi.OpNOPOut, 0x80, 7))}, nil))
	require.Equal(t, iscsi.OpNOPOut, wait(t, gn.pdus).Opcode())
	return i, g, in, gn
}

// TestFormatErrors: what has no place on an iSER connection, or contradicts itself, ends it with an
// error that says so (RFC 7145, section 10.1.3.3), while another connection goes on.
func TestFormatErrors(t *testing.T) {
	w := newWorld(t, setup{})
	other, og, on := w.rawInitiator(t, linux, 16)
	enter(t, other, og, on, params())
	nop := bhs(iscsi.OpNOPOut, 0x80, 5)
	long := bhs(iscsi.OpNOPOut, 0x80, 5)
	iscsi.BHS(long).SetDataLen(100)
	solicited := dataOut(1, 0, true)
	iscsi.DataOutPDU(solicited).SetTTT(7)
	unknown := pdu(nil, nop, nil)
	unknown[0] = 0x70
	for _, c := range []struct {
		name   string
		msg    []byte
		length bool
	}{
		{"empty message", nil, true},
		{"shorter than the header", make([]byte, iser.HeaderLen-1), true},
		{"shorter than a BHS", pdu(nil, nop, nil)[:75], true},
		{"shorter than its data segment", append(pdu(nil, long, nil)[:28], long...), true},
		{"longer than its data segment", append(pdu(nil, nop, []byte{1}), 0), true},
		{"unknown opcode", unknown, false},
		{"HelloReply", iser.AppendHelloReply(nil, 1, false), false},
		{"Data-In", pdu(nil, bhs(iscsi.OpDataIn, 0x80, 1), nil), false},
		{"R2T", pdu(nil, bhs(iscsi.OpR2T, 0x80, 1), nil), false},
		{"solicited Data-Out", pdu(nil, solicited, nil), false},
		{"STag with a ping", pdu(header(0, 0x100, 0, 0), nop, nil), false},
		{"Read STag with a write", pdu(header(0, 0x100, 0, 0), command(0xa1, 1, 100), nil), false},
		{"Write STag with a read", pdu(header(0x100, 0, 0, 0), command(0xc1, 1, 100), nil), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, g, n := w.rawInitiator(t, linux, 16)
			enter(t, p, g, n, params())
			p.send(c.msg)
			err := wait(t, n.ended)
			require.ErrorIs(t, err, iscsi.ErrConnection)
			if c.length {
				var le *iser.LengthError
				require.ErrorAs(t, err, &le)
			} else {
				var he *iser.HeaderError
				require.ErrorAs(t, err, &he)
			}
			require.NotContains(t, err.Error(), "\n")
			<-g.Done()
			require.Empty(t, n.pdus)
		})
	}
	for _, op := range []iscsi.Opcode{iscsi.OpDataIn, iscsi.OpR2T} {
		p, i, n := w.rawTarget(t, linux)
		enterInitiator(t, p, i, n, params())
		p.send(pdu(nil, bhs(op, 0x80, 1), nil))
		var he *iser.HeaderError
		require.ErrorAs(t, wait(t, n.ended), &he, "at the initiator")
	}
	p, i, n := w.rawTarget(t, linux)
	enterInitiator(t, p, i, n, params())
	p.send(pdu(header(0, 0x100, 0, 0), bhs(iscsi.OpNOPIn, 0x80, 1), nil))
	var he *iser.HeaderError
	require.ErrorAs(t, wait(t, n.ended), &he, "a target advertises nothing")

	other.send(pdu(nil, nop, nil))
	require.Equal(t, iscsi.OpNOPOut, wait(t, on.pdus).Opcode(), "other connections are untouched")
}

// TestSNACKIsHandedUp: it is the iSCSI layer that rejects it (RFC 7145, section 7.3.11); it is never sent.
func TestSNACKIsHandedUp(t *testing.T) {
	w := newWorld(t, setup{})
	p, g, n := w.rawInitiator(t, linux, 16)
	enter(t, p, g, n, params())
	p.send(pdu(nil, bhs(iscsi.OpSNACK, 0x80, 1), nil))
	require.Equal(t, iscsi.OpSNACK, wait(t, n.pdus).Opcode())
	solicited := dataOut(1, 0, true)
	iscsi.DataOutPDU(solicited).SetTTT(7)
	for _, b := range []iscsi.BHS{bhs(iscsi.OpSNACK, 0x80, 1), bhs(iscsi.OpDataIn, 0x80, 1), bhs(iscsi.OpR2T, 0x80, 1), solicited} {
		require.ErrorIs(t, g.SendControl(&iscsi.PDU{BHS: [48]byte(b)}, nil), iser.ErrNotISER)
	}
}

// TestPadding: data segments arrive with their padding and, from ib_iser, without; they leave padded.
func TestPadding(t *testing.T) {
	w := newWorld(t, setup{})
	p, g, n := w.rawInitiator(t, linux, 16)
	enter(t, p, g, n, params())
	for k := 1; k < 9; k++ {
		data := bytes.Repeat([]byte{byte(k)}, k)
		m := pdu(nil, bhs(iscsi.OpNOPOut, 0x80, 5), data)
		p.send(m)
		require.Equal(t, data, wait(t, n.pdus).Data, "padded")
		p.send(m[:iser.HeaderLen+iscsi.BHSLen+k])
		require.Equal(t, data, wait(t, n.pdus).Data, "unpadded")
		require.NoError(t, g.SendControl(&iscsi.PDU{BHS: [48]byte(bhs(iscsi.OpNOPIn, 0x80, 5)), Data: data}, nil))
		require.Equal(t, pdu(nil, func() iscsi.BHS { b := bhs(iscsi.OpNOPIn, 0x80, 5); iscsi.BHS(b).SetDataLen(k); return b }(), data), wait(t, p.msgs).b)
	}
}

// TestTooLongSend: a message longer than the receive ends the connection with a named error.
func TestTooLongSend(t *testing.T) {
	w := newWorld(t, setup{})
	p, _, n := w.rawInitiator(t, linux, 16)
	p.send(make([]byte, 64<<10))
	err := wait(t, n.ended)
	require.ErrorIs(t, err, iscsi.ErrConnection)
	require.Contains(t, err.Error(), "too long")
}

// TestPrivateData: what the CM headers of both ends leave agreed on.
func TestPrivateData(t *testing.T) {
	for _, c := range []struct {
		name            string
		private, answer []byte
		config          iser.Config
		sendInv, zero   string
		base            iser.WriteBase
		segment         int
	}{
		{"ib_iser", linux, linux, iser.Config{}, "on", "off", iser.WriteBaseLinux, 128},
		{"libiscsi", []byte{0xc0, 0, 0, 0}, []byte{0xc0, 0, 0, 0}, iser.Config{}, "off", "off", iser.WriteBaseLinux, 128},
		{"none", nil, linux, iser.Config{}, "off", "off", iser.WriteBaseRFC, 0},
		{"too short", []byte{0, 0}, linux, iser.Config{}, "off", "off", iser.WriteBaseRFC, 0},
		{"everything", []byte{0, 0, 0, 0}, []byte{0, 0, 0, 0}, iser.Config{ZeroBased: true}, "on", "on", iser.WriteBaseLinux, 128},
		{"forced", linux, []byte{0xc0, 0, 0, 0}, iser.Config{NoSendInvalidate: true, WriteBase: iser.WriteBaseRFC}, "off", "off", iser.WriteBaseRFC, 128},
		{"forced the other way", nil, linux, iser.Config{WriteBase: iser.WriteBaseLinux}, "off", "off", iser.WriteBaseLinux, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, setup{gConfig: c.config})
			p, g, _ := w.rawInitiator(t, c.private, 4)
			require.Equal(t, c.answer, p.info.PrivateData)
			require.Equal(t, c.sendInv, fact(g, "send with invalidate"))
			require.Equal(t, c.zero, fact(g, "zero-based addresses"))
			require.Equal(t, c.base.String(), fact(g, "write base offset"))
			require.Equal(t, c.segment, g.Info().MaxSendSegment)
		})
	}
}

// TestSmallResponses: towards a peer that may be ib_iser nothing larger than its receives leaves in full
// feature phase, whatever was negotiated; in a Discovery session its login buffer stays in use.
func TestSmallResponses(t *testing.T) {
	w := newWorld(t, setup{})
	for _, c := range []struct {
		name    string
		private []byte
		change  func(*iscsi.Params)
		most    int
	}{
		{"ib_iser", linux, func(*iscsi.Params) {}, 128},
		{"discovery", linux, func(p *iscsi.Params) { p.Discovery = true }, 8192},
		{"by the negotiated key", nil, func(p *iscsi.Params) { p.InitiatorRecvDataSegmentLength = 512 }, 512},
	} {
		t.Run(c.name, func(t *testing.T) {
			keys := params()
			c.change(keys)
			p, g, n := w.rawInitiator(t, c.private, 4)
			enter(t, p, g, n, keys)
			text := iscsi.PDU{BHS: [48]byte(bhs(iscsi.OpTextRsp, 0x80, 1))}
			text.Data = make([]byte, c.most+1)
			require.ErrorIs(t, g.SendControl(&text, nil), iser.ErrTooLarge)
			text.Data = text.Data[:c.most]
			require.NoError(t, g.SendControl(&text, nil))
			require.Len(t, wait(t, p.msgs).b, 76+c.most)
		})
	}
}

// TestUnexpectedPDUs: no more of them are sent than the peer takes (RFC 7145, section 8.1), and they are
// retired by the peer's numbers.
func TestUnexpectedPDUs(t *testing.T) {
	w := newWorld(t, setup{})
	keys := params()
	keys.MaxOutstandingUnexpectedPDUs = 2
	p, g, n := w.rawInitiator(t, linux, 4)
	enter(t, p, g, n, keys)
	send := func(op iscsi.Opcode, itt, sn uint32) error {
		b := bhs(op, 0x80, itt)
		b.SetStatSN(iscsi.SN(sn))
		return g.SendControl(&iscsi.PDU{BHS: [48]byte(b)}, nil)
	}
	require.NoError(t, send(iscsi.OpAsync, 0xffffffff, 10))
	require.ErrorIs(t, send(iscsi.OpReject, 0xffffffff, 11), iser.ErrUnexpectedLimit, "the last one is kept for a ping")
	require.NoError(t, send(iscsi.OpNOPIn, 0xffffffff, 11))
	require.ErrorIs(t, send(iscsi.OpNOPIn, 0xffffffff, 11), iser.ErrUnexpectedLimit)
	require.NoError(t, send(iscsi.OpNOPIn, 5, 11), "an answer is expected")
	b := bhs(iscsi.OpNOPOut, 0x80, 6)
	b.SetExpStatSN(12)
	p.send(pdu(nil, b, nil))
	wait(t, n.pdus)
	require.NoError(t, send(iscsi.OpReject, 0xffffffff, 12))
	for ttt := range byte(5) { // pings use up no number: their answers retire them
		ping := bhs(iscsi.OpNOPIn, 0x80, 0xffffffff)
		ping.SetStatSN(13)
		ping[23] = ttt
		require.NoError(t, g.SendControl(&iscsi.PDU{BHS: [48]byte(ping)}, nil))
		b := bhs(iscsi.OpNOPOut|0x40, 0x80, 0xffffffff)
		b[23] = ttt
		b.SetExpStatSN(12)
		p.send(pdu(nil, b, nil))
		wait(t, n.pdus)
	}

	pi, i, in := w.rawTarget(t, linux)
	enterInitiator(t, pi, i, in, keys)
	immediate := func(sn uint32) error {
		b := bhs(iscsi.OpTaskMgmtReq|0x40, 0x81, sn)
		b[27] = byte(sn) // CmdSN
		return i.SendControl(&iscsi.PDU{BHS: [48]byte(b)}, nil)
	}
	require.NoError(t, immediate(3))
	require.NoError(t, immediate(3))
	require.ErrorIs(t, immediate(3), iser.ErrUnexpectedLimit)
	rsp := bhs(iscsi.OpTaskMgmtRsp, 0x80, 3)
	rsp.SetWindow(4, 10)
	pi.send(pdu(nil, rsp, nil))
	wait(t, in.pdus)
	require.NoError(t, immediate(4))
}

// TestFlood: a peer with more PDUs outstanding than its window allows loses its connection, and only
// its own.
func TestFlood(t *testing.T) {
	w := newWorld(t, setup{})
	other, og, on := w.rawInitiator(t, linux, 16)
	enter(t, other, og, on, params())
	p, g, n := w.rawInitiator(t, linux, 16)
	enter(t, p, g, n, params())
	n.keep.Store(true)
	m := pdu(nil, bhs(iscsi.OpNOPOut, 0x80, 5), nil)
	mr, err := p.pd.RegisterMR(m, 0)
	require.NoError(t, err)
	for range 2000 {
		if p.qp.PostSend(&rnic.SendWR{Op: rnic.OpSend, SGE: []rnic.SGE{{MR: mr, Len: len(m)}}}) != nil {
			break
		}
	}
	var ce *iser.CreditError
	require.ErrorAs(t, wait(t, n.ended), &ce)
	<-g.Done()
	n.release()
	require.NoError(t, p.qp.Close())
	require.NoError(t, mr.Deregister())
	other.send(m)
	require.Equal(t, iscsi.OpNOPOut, wait(t, on.pdus).Opcode())
}

// TestNoReads: an initiator that serves no RDMA Reads is refused with a clear error, unless it is let
// in on purpose; then a GetData ends the connection (RFC 7145, section 7.3.6).
func TestNoReads(t *testing.T) {
	w := newWorld(t, setup{})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := w.iDev.Dial(ctx, w.ln.Addr().String(), nil)
	require.NoError(t, err)
	refused := make(chan error, 1)
	go func() {
		_, err := w.accept(ctx)
		refused <- err
	}()
	newPeer(t, w.iDev, c.CreateQP)
	_, err = c.Connect(ctx, rnic.ConnParams{PrivateData: linux})
	var re *rnic.RejectedError
	require.ErrorAs(t, err, &re)
	require.ErrorIs(t, <-refused, iser.ErrNoReads)

	w.gConfig.AllowNoReads = true
	p, g, n := w.rawInitiator(t, linux, 0)
	enter(t, p, g, n, params())
	p.send(pdu(header(p.data.STag(), 0, p.data.Addr(), 0), command(0xa1, 9, 4096), nil))
	wait(t, n.pdus)
	b, err := g.Alloc(4096)
	require.NoError(t, err)
	require.ErrorIs(t, g.GetData(&iscsi.DataOut{ITT: 9, Buf: b, Len: 4096}), iser.ErrNoReads)
	require.ErrorIs(t, wait(t, n.ended), iser.ErrNoReads)
	b.Release()
}

// TestWithoutEnhancedStartup: a peer of MPA revision 1 tells no IRD; one Read at a time is what it serves for sure.
func TestWithoutEnhancedStartup(t *testing.T) {
	w := newWorld(t, setup{link: &rnic.LinkOptions{Revision: 1, Enhanced: rnic.Off}})
	p, g, n := w.rawInitiator(t, linux, 4)
	enter(t, p, g, n, params())
	require.Equal(t, "1", fact(g, "reads outstanding at most"))
	p.send(pdu(header(p.data.STag(), 0, p.data.Addr(), 0), command(0xa1, 9, 4096), nil))
	wait(t, n.pdus)
	b, err := g.Alloc(4096)
	require.NoError(t, err)
	require.NoError(t, g.GetData(&iscsi.DataOut{ITT: 9, Buf: b, Len: 4096}))
	require.NoError(t, wait(t, n.done))
	b.Release()
}
