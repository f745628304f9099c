package iser_test

import (
	"context"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/internal/faultproxy"
	"goiwarp/iscsi"
	"goiwarp/iser"
	"goiwarp/rnic"
)

// TestCutAnywhere cuts the connection at octets of its whole life, in either direction: while it is made,
// in the login, within commands, their data and their responses. Nothing may stay behind: newWorld checks
// the pools, goleak the goroutines.
func TestCutAnywhere(t *testing.T) {
	w := newWorld(t, setup{})
	offsets := []int64{0, 7, 20, 28, 40, 100, 150, 220, 300, 420, 500, 640, 900, 1500, 4300, 4800, 9000, 13000, 20000}
	if testing.Short() {
		offsets = offsets[:8]
	}
	for _, dir := range []faultproxy.Direction{faultproxy.ToTarget, faultproxy.FromTarget} {
		for _, off := range offsets {
			p := faultproxy.New(t, w.ln.Addr().String(), faultproxy.Script{Steps: []faultproxy.Step{{Dir: dir, Offset: off, Do: faultproxy.Cut}}})
			cutAt(t, w, p)
			p.Close()
		}
	}
}

func cutAt(t *testing.T, w *world, p *faultproxy.Proxy) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	target := make(chan struct{})
	go func() {
		defer close(target)
		g, err := w.accept(ctx)
		if err != nil {
			return
		}
		serve(g)
		<-g.Done()
	}()
	i, err := iser.Dial(ctx, w.iDev, p.Addr(), w.iConfig)
	if err == nil {
		drive(t, i)
		i.ConnectionTerminate(false)
		<-i.Done()
	} else {
		cancel() // perhaps no request has reached the target
	}
	p.Close()
	<-target
}

// serve answers every command of g: reads get data, writes are fetched.
func serve(g *iser.Datamover) { g.Start(&server{g: g}) }

type server struct {
	g    *iser.Datamover
	bufs map[uint64]iscsi.Buffer
	tag  uint64
	in   iscsi.DataIn // reused: PutData and SendControl take copies
	rsp  iscsi.PDU
}

func (s *server) ControlNotify(p *iscsi.PDU) {
	b := iscsi.BHS(p.BHS[:])
	op, itt := p.Opcode(), b.ITT()
	c := iscsi.SCSICommand(p.BHS[:])
	n := int(c.EDTL())
	p.Release()
	switch op {
	case iscsi.OpLoginReq:
		_ = s.g.AllocateConnectionResources(iscsi.ConnectionResources{Target: true, Window: 32, RecvDataSegment: 8192})
		s.g.NoticeKeyValues(params())
		_ = s.g.EnableDatamover(&iscsi.PDU{BHS: [48]byte(bhs(iscsi.OpLoginRsp, 0x87, 1))})
	case iscsi.OpSCSICommand:
		buf, err := s.g.Alloc(n)
		if err != nil {
			return
		}
		if c.Read() {
			s.in = iscsi.DataIn{ITT: itt, Buf: buf, Len: n, More: true}
			if s.g.PutData(&s.in) == nil {
				s.respond(itt)
			}
			return
		}
		s.tag++
		if s.g.GetData(&iscsi.DataOut{ITT: itt, Buf: buf, Len: n, Tag: s.tag}) != nil {
			buf.Release()
			return
		}
		if s.bufs == nil {
			s.bufs = map[uint64]iscsi.Buffer{}
		}
		s.bufs[s.tag] = buf
	}
}

func (s *server) respond(itt uint32) {
	s.rsp.BHS = [48]byte(bhs(iscsi.OpSCSIResponse, 0x80, itt))
	_ = s.g.SendControl(&s.rsp, nil)
}

func (s *server) DataCompletionNotify(itt uint32, tag uint64, err error) {
	s.bufs[tag].Release()
	delete(s.bufs, tag)
	if err == nil {
		s.respond(itt)
	}
}
func (s *server) DataACKNotify(uint32, uint32)    {}
func (s *server) ConnectionTerminateNotify(error) {}

// drive logs in and runs a few reads and writes, until the connection ends.
func drive(t *testing.T, i *iser.Datamover) {
	n := newNotes()
	i.Start(n)
	next := func() bool {
		select {
		case <-n.pdus:
			return true
		case <-i.Done():
			return false
		}
	}
	if i.AllocateConnectionResources(iscsi.ConnectionResources{Window: 32, RecvDataSegment: 8192}) != nil ||
		i.SendControl(&iscsi.PDU{BHS: [48]byte(bhs(iscsi.OpLoginReq, 0x87, 1))}, nil) != nil || !next() {
		return
	}
	i.NoticeKeyValues(params())
	if i.EnableDatamover(nil) != nil {
		return
	}
	const size = 4096
	b, err := i.Alloc(size)
	require.NoError(t, err)
	defer func() {
		i.ConnectionTerminate(false)
		<-i.Done()
		b.Release()
	}()
	for k := range uint32(4) {
		err := i.SendControl(&iscsi.PDU{BHS: [48]byte(command(0xc1, 2*k, size))}, &iscsi.TaskBuffers{In: b, InLen: size})
		if err != nil || !next() {
			return
		}
		err = i.SendControl(&iscsi.PDU{BHS: [48]byte(command(0xa1, 2*k+1, size))}, &iscsi.TaskBuffers{Out: b, OutLen: size})
		if err != nil || !next() {
			return
		}
	}
}

// TestIdleConnectionIsSmall: what an idle connection with a window of 128 costs, both ends and everything
// below them together.
func TestIdleConnectionIsSmall(t *testing.T) {
	if raceEnabled {
		t.Skip("memory is measured without the race detector")
	}
	w := newWorld(t, setup{})
	const conns = 64
	used := func() int {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		is, gs := w.iDom.Stats(), w.gDom.Stats()
		return int(m.HeapInuse+m.StackInuse) + is.ReceiveOctets + is.BufferOctets + gs.ReceiveOctets + gs.BufferOctets
	}
	open := func() {
		i, g := w.connect(t)
		in, gn := newNotes(), newNotes()
		i.Start(in)
		g.Start(gn)
		require.NoError(t, i.AllocateConnectionResources(iscsi.ConnectionResources{Window: 128, RecvDataSegment: 8192}))
		require.NoError(t, i.SendControl(&iscsi.PDU{BHS: [48]byte(bhs(iscsi.OpLoginReq, 0x87, 1))}, nil))
		wait(t, gn.pdus)
		require.NoError(t, g.AllocateConnectionResources(iscsi.ConnectionResources{Target: true, Window: 128, RecvDataSegment: 8192}))
		require.NoError(t, g.EnableDatamover(&iscsi.PDU{BHS: [48]byte(bhs(iscsi.OpLoginRsp, 0x87, 1))}))
		wait(t, in.pdus)
		require.NoError(t, i.EnableDatamover(nil))
	}
	before := used()
	for range conns {
		open()
	}
	per := (used() - before) / conns
	t.Logf("%d KiB per connection for both ends, of %s connections", per>>10, strconv.Itoa(conns))
	require.Less(t, per, 512<<10)
}

// deaf are requests whose queue pairs refuse to send, as one does whose connection was lost a moment ago.
type deaf struct{ rnic.Request }

func (r deaf) CreateQP(cfg rnic.QPConfig) (rnic.QP, error) {
	qp, err := r.Request.CreateQP(cfg)
	return deafQP{qp}, err
}

type deafQP struct{ rnic.QP }

func (deafQP) PostSend(*rnic.SendWR) error { return rnic.ErrClosed }

// TestLostInLastLoginResponse: a connection whose loss shows when the final Login Response is sent ends once. EnableDatamover
// says so, and does not bring the connection back to life.
func TestLostInLastLoginResponse(t *testing.T) {
	w := newWorld(t, setup{})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	dialled := make(chan *iser.Datamover, 1)
	go func() {
		i, err := iser.Dial(ctx, w.iDev, w.ln.Addr().String(), w.iConfig)
		if assert.NoError(t, err) {
			dialled <- i
		}
		close(dialled)
	}()
	req, err := w.ln.Accept(ctx)
	require.NoError(t, err)
	g, err := iser.Accept(ctx, deaf{req}, w.gConfig)
	require.NoError(t, err)
	i := <-dialled

	g.NoticeKeyValues(params())
	require.ErrorIs(t, g.EnableDatamover(&iscsi.PDU{BHS: [48]byte(bhs(iscsi.OpLoginRsp, 0x87, 1))}), rnic.ErrClosed)
	g.ConnectionTerminate(false) // a second end would close Done twice
	<-g.Done()
	i.ConnectionTerminate(false)
	<-i.Done()
}
