package iser_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iser"
	"goiwarp/rnic"
)

// notes records the upcalls of a Datamover.
type notes struct {
	pdus  chan *iscsi.PDU // copies
	done  chan error      // DataCompletionNotify
	acks  chan uint32
	ended chan error
	keep  atomic.Bool // PDUs are not released
	mu    sync.Mutex
	kept  []*iscsi.PDU
}

func newNotes() *notes {
	return &notes{pdus: make(chan *iscsi.PDU, 4096), done: make(chan error, 256), acks: make(chan uint32, 16), ended: make(chan error, 1)}
}

func (n *notes) ControlNotify(p *iscsi.PDU) {
	n.pdus <- &iscsi.PDU{BHS: p.BHS, AHS: append([]byte(nil), p.AHS...), Data: append([]byte(nil), p.Data...)}
	if n.keep.Load() {
		n.mu.Lock()
		n.kept = append(n.kept, p)
		n.mu.Unlock()
		return
	}
	p.Release()
}

func (n *notes) release() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.kept {
		p.Release()
	}
	n.kept = nil
}

func (n *notes) DataCompletionNotify(_ uint32, _ uint64, err error) { n.done <- err }
func (n *notes) DataACKNotify(_, sn uint32)                         { n.acks <- sn }
func (n *notes) ConnectionTerminateNotify(err error)                { n.ended <- err }

// wait takes the next value of a channel.
func wait[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	select {
	case v := <-c:
		return v
	case <-ctx.Done():
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// peer is a scripted end of an iSER connection: a bare queue pair that sends what octets it is told to.
type peer struct {
	t      testing.TB
	pd     rnic.PD
	cq     rnic.CQ
	qp     rnic.QP
	mr     rnic.MR // received messages, 16 KiB each
	data   rnic.MR // memory to advertise
	msgs   chan message
	sent   chan rnic.Completion
	events chan rnic.Event
	info   rnic.ConnInfo
}

// message is a received Send.
type message struct {
	b           []byte
	invalidated rnic.STag
}

const (
	peerReceives = 64
	peerSlot     = 16 << 10
)

func newPeer(t testing.TB, dev rnic.Device, create func(rnic.QPConfig) (rnic.QP, error)) *peer {
	t.Helper()
	p := &peer{t: t, msgs: make(chan message, 1024), sent: make(chan rnic.Completion, 4096), events: make(chan rnic.Event, 4)}
	var err error
	p.pd, err = dev.AllocPD()
	require.NoError(t, err)
	p.mr, err = p.pd.AllocMR(peerReceives*peerSlot, rnic.LocalWrite)
	require.NoError(t, err)
	p.data, err = p.pd.AllocMR(1<<20, rnic.LocalWrite|rnic.RemoteRead|rnic.RemoteWrite)
	require.NoError(t, err)
	p.cq, err = dev.CreateCQ(rnic.CQConfig{Handler: p.handle})
	require.NoError(t, err)
	p.qp, err = create(rnic.QPConfig{PD: p.pd, SendCQ: p.cq, RecvCQ: p.cq, SendDepth: 4096, OnEvent: func(e rnic.Event) { p.events <- e }})
	require.NoError(t, err)
	for i := range peerReceives {
		p.post(i)
	}
	t.Cleanup(func() {
		require.NoError(t, p.qp.Close())
		require.NoError(t, p.cq.Close())
		require.NoError(t, p.mr.Deregister())
		require.NoError(t, p.data.Deregister())
		require.NoError(t, p.pd.Close())
	})
	return p
}

func (p *peer) post(i int) {
	err := p.qp.PostRecv(&rnic.RecvWR{ID: 1<<63 | uint64(i), SGE: []rnic.SGE{{MR: p.mr, Off: i * peerSlot, Len: peerSlot}}})
	if err != nil && !errors.Is(err, rnic.ErrClosed) {
		p.t.Errorf("peer: %v", err)
	}
}

func (p *peer) handle(wcs []rnic.Completion) {
	for _, wc := range wcs {
		if wc.ID>>63 == 0 {
			p.sent <- wc
			continue
		}
		if wc.Status != rnic.StatusOK {
			continue
		}
		i := int(wc.ID &^ (1 << 63))
		p.msgs <- message{append([]byte(nil), p.mr.Bytes()[i*peerSlot:][:wc.Len]...), wc.InvalidatedSTag}
		p.post(i)
	}
}

// send sends one message.
func (p *peer) send(msg []byte) {
	p.t.Helper()
	if len(msg) == 0 {
		require.NoError(p.t, p.qp.PostSend(&rnic.SendWR{Op: rnic.OpSend}))
		return
	}
	mr, err := p.pd.RegisterMR(append([]byte(nil), msg...), 0)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = mr.Deregister() })
	require.NoError(p.t, p.qp.PostSend(&rnic.SendWR{Op: rnic.OpSend, SGE: []rnic.SGE{{MR: mr, Len: len(msg)}}}))
}

// pdu makes a control message: h is nil for a header that advertises nothing.
func pdu(h iser.Header, bhs []byte, data []byte) []byte {
	if h == nil {
		h = make(iser.Header, iser.HeaderLen)
		h.Init()
	}
	m := append([]byte(nil), h...)
	m = append(m, bhs...)
	iscsi.BHS(m[iser.HeaderLen:]).SetDataLen(len(data))
	m = append(m, data...)
	return append(m, make([]byte, iscsi.Pad(len(data)))...)
}

func bhs(op iscsi.Opcode, flags byte, itt uint32) iscsi.BHS {
	b := make(iscsi.BHS, iscsi.BHSLen)
	b[0], b[1] = byte(op), flags
	b[16], b[17], b[18], b[19] = byte(itt>>24), byte(itt>>16), byte(itt>>8), byte(itt)
	for i := 20; i < 24; i++ {
		if op != iscsi.OpSCSICommand {
			b[i] = 0xff
		}
	}
	return b
}

// login is a Login Request (or, from a target, a Login Response).
func login(op iscsi.Opcode) []byte {
	return pdu(nil, bhs(op, 0x87, 1), []byte("InitiatorName=iqn.2026-11.com.example:raw\x00"))
}

// rawInitiator connects a scripted initiator to a target Datamover.
func (w *world) rawInitiator(t testing.TB, private []byte, ird int) (*peer, *iser.Datamover, *notes) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	c, err := w.iDev.Dial(ctx, w.ln.Addr().String(), w.link)
	require.NoError(t, err)
	p := newPeer(t, w.iDev, c.CreateQP)
	var g *iser.Datamover
	accepted := make(chan error, 1)
	go func() {
		var err error
		g, err = w.accept(ctx)
		accepted <- err
	}()
	p.info, err = c.Connect(ctx, rnic.ConnParams{PrivateData: private, IRD: ird, ORD: 1})
	require.NoError(t, err)
	require.NoError(t, <-accepted)
	n := newNotes()
	g.Start(n)
	t.Cleanup(func() {
		g.ConnectionTerminate(false)
		<-g.Done()
	})
	return p, g, n
}

// rawTarget connects an initiator Datamover to a scripted target.
func (w *world) rawTarget(t testing.TB, private []byte) (*peer, *iser.Datamover, *notes) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	made := make(chan *peer, 1)
	go func() {
		req, err := w.ln.Accept(ctx)
		if err == nil {
			p := newPeer(t, w.gDev, req.CreateQP)
			p.info = req.Info()
			err = req.Accept(ctx, rnic.ConnParams{PrivateData: private, IRD: 1, ORD: 16})
			made <- p
		}
		if err != nil {
			t.Errorf("raw target: %v", err)
		}
	}()
	i, err := iser.Dial(ctx, w.iDev, w.ln.Addr().String(), w.iConfig)
	require.NoError(t, err)
	n := newNotes()
	i.Start(n)
	t.Cleanup(func() {
		i.ConnectionTerminate(false)
		<-i.Done()
	})
	return wait(t, made), i, n
}

// params are keys as a login over iSER agrees on them.
func params() *iscsi.Params {
	return &iscsi.Params{
		RDMAExtensions: true, ImmediateData: true, InitialR2T: true, FirstBurstLength: 65536, MaxBurstLength: 262144,
		TargetRecvDataSegmentLength: 8192, InitiatorRecvDataSegmentLength: 8192,
	}
}

// enter takes a target to full feature phase with the raw initiator's login.
func enter(t testing.TB, p *peer, g *iser.Datamover, n *notes, keys *iscsi.Params) {
	t.Helper()
	p.send(login(iscsi.OpLoginReq))
	require.Equal(t, iscsi.OpLoginReq, wait(t, n.pdus).Opcode())
	require.NoError(t, g.AllocateConnectionResources(iscsi.ConnectionResources{Target: true, Window: 32, RecvDataSegment: 8192}))
	g.NoticeKeyValues(keys)
	require.NoError(t, g.EnableDatamover(&iscsi.PDU{BHS: [48]byte(bhs(iscsi.OpLoginRsp, 0x87, 1))}))
	require.Equal(t, byte(iscsi.OpLoginRsp), wait(t, p.msgs).b[iser.HeaderLen])
}

// enterInitiator takes an initiator to full feature phase with the raw target's answer.
func enterInitiator(t testing.TB, p *peer, i *iser.Datamover, n *notes, keys *iscsi.Params) {
	t.Helper()
	require.NoError(t, i.AllocateConnectionResources(iscsi.ConnectionResources{Window: 32, RecvDataSegment: 8192}))
	require.NoError(t, i.SendControl(&iscsi.PDU{BHS: [48]byte(bhs(iscsi.OpLoginReq, 0x87, 1))}, nil))
	wait(t, p.msgs)
	p.send(login(iscsi.OpLoginRsp))
	require.Equal(t, iscsi.OpLoginRsp, wait(t, n.pdus).Opcode())
	i.NoticeKeyValues(keys)
	require.NoError(t, i.EnableDatamover(nil))
}

// sendOf is a Send of a message that the peer keeps registered until the test ends.
func sendOf(p *peer, msg []byte) *rnic.SendWR {
	if len(msg) == 0 {
		return &rnic.SendWR{Op: rnic.OpSend}
	}
	mr, err := p.pd.RegisterMR(append([]byte(nil), msg...), 0)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = mr.Deregister() })
	return &rnic.SendWR{Op: rnic.OpSend, SGE: []rnic.SGE{{MR: mr, Len: len(msg)}}}
}
