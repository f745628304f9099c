package soft_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/internal/faultproxy"
	"goiwarp/mpa"
	"goiwarp/rdmap"
	"goiwarp/rnic"
	"goiwarp/rnic/soft"
)

// party is one end of a connection under fault: it counts what it posted and what came back.
type party struct {
	t      testing.TB
	pd     rnic.PD
	cq     rnic.CQ
	mr     rnic.MR
	qp     rnic.QP
	events chan rnic.Event
	owed   map[uint64]bool
	ok     map[uint64]rnic.Completion // completed without error
}

// load is how many operations each party posts, of octets octets.
const (
	load   = 40
	octets = 4096
)

func newParty(t testing.TB, dev rnic.Device) *party {
	p := &party{t: t, events: make(chan rnic.Event, 4), owed: make(map[uint64]bool), ok: make(map[uint64]rnic.Completion)}
	var err error
	p.pd, err = dev.AllocPD()
	require.NoError(t, err)
	p.cq, err = dev.CreateCQ(rnic.CQConfig{})
	require.NoError(t, err)
	p.mr, err = p.pd.AllocMR(4*load*octets, rnic.LocalWrite|rnic.RemoteWrite|rnic.RemoteRead)
	require.NoError(t, err)
	for i := range load { // what is sent tells its number in every octet
		b := p.mr.Bytes()[i*octets : (i+1)*octets]
		copy(b, bytes.Repeat([]byte{byte(i + 1)}, octets))
	}
	return p
}

func (p *party) config() rnic.QPConfig {
	return rnic.QPConfig{PD: p.pd, SendCQ: p.cq, RecvCQ: p.cq, SendDepth: load, RecvDepth: load, OnEvent: func(e rnic.Event) { p.events <- e }}
}

const recvID = 1000

// receives posts a receive for each Send of the other party.
func (p *party) receives() {
	for i := range uint64(load) {
		if i%4 != 0 {
			continue
		}
		id := recvID + i
		require.NoError(p.t, p.qp.PostRecv(&rnic.RecvWR{ID: id, SGE: []rnic.SGE{{MR: p.mr, Off: (load + int(i)) * octets, Len: octets}}}))
		p.owed[id] = true
	}
}

// posts posts Sends, Writes and Reads in turn, until the connection refuses.
func (p *party) posts(to *party) {
	for i := range load {
		wr := rnic.SendWR{ID: uint64(i), Flags: rnic.Signaled, SGE: []rnic.SGE{{MR: p.mr, Off: i * octets, Len: octets}}, RemoteSTag: to.mr.STag(), RemoteAddr: to.mr.Addr() + uint64((2*load+i)*octets)}
		switch i % 4 {
		case 0:
			wr.Op = rnic.OpSend
		case 1, 2:
			wr.Op = rnic.OpWrite
		case 3:
			wr.Op = rnic.OpRead
			wr.RemoteAddr = to.mr.Addr() + uint64(i*octets)
			wr.SGE[0].Off = (3*load + i) * octets
		}
		if err := p.qp.PostSend(&wr); err != nil {
			require.ErrorIs(p.t, err, rnic.ErrClosed)
			return
		}
		p.owed[wr.ID] = true
	}
}

// collect takes completions until everything owed has come back once.
func (p *party) collect() error {
	var wc [16]rnic.Completion
	broken := false
	for len(p.owed) > 0 {
		n, err := p.cq.Poll(wc[:])
		if err != nil {
			return err
		}
		for _, c := range wc[:n] {
			switch {
			case !p.owed[c.ID]:
				return fmt.Errorf("completion of %d, which is not outstanding: %+v", c.ID, c)
			case c.Err == nil && c.ID < recvID && broken:
				return fmt.Errorf("work request %d succeeded behind a failure", c.ID)
			case c.Err == nil:
				p.ok[c.ID] = c
			case c.ID < recvID:
				broken = true
			}
			delete(p.owed, c.ID)
		}
		if n == 0 && len(p.owed) > 0 {
			if err := p.cq.Wait(context.Background()); err != nil {
				return err
			}
		}
	}
	return nil
}

// verify looks at the data of what succeeded.
func (p *party) verify() {
	for id := range p.ok {
		i, area := int(id), 0
		switch {
		case id >= recvID:
			i, area = i-recvID, load
		case id%4 == 3:
			area = 3 * load
		default:
			continue
		}
		want := bytes.Repeat([]byte{byte(i + 1)}, octets)
		require.True(p.t, bytes.Equal(want, p.mr.Bytes()[(area+i)*octets:(area+i+1)*octets]), "data of work request %d is damaged although it succeeded", id)
	}
}

// faulty is one connection through a proxy.
type faulty struct {
	client, server *party
	proxy          *faultproxy.Proxy
	connectErr     error
}

// connectThrough connects two parties through a proxy with the script.
func connectThrough(t testing.TB, network soft.Network, script faultproxy.Script, opts *rnic.LinkOptions) *faulty {
	dev := newDevice(t, soft.Config{Network: network})
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	ln, err := dev.Listen(ctx, "127.0.0.1:0", opts)
	require.NoError(t, err)
	f := &faulty{client: newParty(t, dev), server: newParty(t, dev)}
	f.proxy = faultproxy.NewOn(t, network, "127.0.0.1:0", ln.Addr().String(), script)
	depths := rnic.ConnParams{IRD: 4, ORD: 4}
	served := make(chan error, 1)
	go func() {
		served <- func() error {
			r, err := ln.Accept(ctx)
			if err != nil {
				return err
			}
			if f.server.qp, err = r.CreateQP(f.server.config()); err != nil {
				return err
			}
			f.server.receives()
			return r.Accept(ctx, depths)
		}()
	}()
	k, err := dev.Dial(ctx, f.proxy.Addr(), opts)
	require.NoError(t, err)
	f.client.qp, err = k.CreateQP(f.client.config())
	require.NoError(t, err)
	f.client.receives()
	_, f.connectErr = k.Connect(ctx, depths)
	if f.connectErr != nil {
		cancel()
	}
	if err := <-served; err != nil && f.connectErr == nil {
		f.connectErr = err
	}
	require.NoError(t, ln.Close())
	return f
}

// exercise loads both directions and waits until all work has come back. Stalls are ended by Close.
func (f *faulty) exercise(t testing.TB, closeAfter <-chan struct{}) {
	parties := []*party{f.client, f.server}
	errs := make(chan error, 2)
	var posted sync.WaitGroup
	for i, p := range parties {
		posted.Add(1)
		go func() {
			if p.qp == nil {
				posted.Done()
				errs <- nil
				return
			}
			if f.connectErr == nil {
				p.posts(parties[1-i])
			}
			posted.Done()
			errs <- p.collect()
		}()
	}
	posted.Wait()
	if closeAfter != nil || f.connectErr != nil {
		if f.connectErr == nil {
			<-closeAfter
		}
		for _, p := range parties {
			if p.qp != nil {
				require.NoError(t, p.qp.Close())
			}
		}
	}
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
	for _, p := range parties {
		if p.qp != nil {
			require.NoError(t, p.qp.Close())
		}
		n, err := p.cq.Poll(make([]rnic.Completion, 1))
		require.NoError(t, err)
		require.Zero(t, n, "a completion came twice")
		p.verify()
	}
}

// onBothNetworks runs a test on loopback TCP, and in memory within virtual time.
func onBothNetworks(t *testing.T, run func(t *testing.T, network soft.Network)) {
	t.Run("tcp", func(t *testing.T) { run(t, soft.TCP{}) })
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { run(t, soft.NewMemNetwork(soft.MemConfig{Buffer: 8 << 10})) })
	})
}

// noFault passes everything.
var noFault = faultproxy.Script{}

// offsets lie in the startup frames, in the first FPDU's length, header, payload and CRC, and far behind.
var offsets = []int64{0, 1, 16, 19, 23, 24, 25, 26, 30, 43, 44, 500, 1480, 1484, 5000, 20000, 60000}

// TestCutAnywhere: a connection that is lost at any octet gives everything back once.
func TestCutAnywhere(t *testing.T) {
	for _, dir := range []faultproxy.Direction{faultproxy.ToTarget, faultproxy.FromTarget} {
		for _, at := range offsets {
			t.Run(fmt.Sprintf("dir %d at %d", dir, at), func(t *testing.T) {
				onBothNetworks(t, func(t *testing.T, network soft.Network) {
					f := connectThrough(t, network, faultproxy.Script{Steps: []faultproxy.Step{{Dir: dir, Offset: at, Do: faultproxy.Cut}}}, nil)
					f.exercise(t, nil)
					if f.connectErr == nil {
						f.client.last() // Failed, or Disconnected where a FIN between two FPDUs was seen first
						require.Less(t, len(f.client.ok)+len(f.server.ok), 2*(load+load/4), "not all can have arrived")
					}
				})
			})
		}
	}
}

// last waits for the event that ends the connection.
func (p *party) last() rnic.Event {
	for {
		if e := <-p.events; e.Kind != rnic.Established {
			return e
		}
	}
}

// TestFinishAnywhere: the same with a FIN in place of a loss.
func TestFinishAnywhere(t *testing.T) {
	for _, at := range offsets {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			onBothNetworks(t, func(t *testing.T, network soft.Network) {
				f := connectThrough(t, network, faultproxy.Script{Steps: []faultproxy.Step{{Dir: faultproxy.ToTarget, Offset: at, Do: faultproxy.Finish}}}, nil)
				f.exercise(t, nil)
			})
		})
	}
}

// TestCorruptAnywhere: no damaged octet is delivered, whichever it is; the CRC error is told to the
// peer (RFC 5044, section 8; RFC 5040, section 4.8).
func TestCorruptAnywhere(t *testing.T) {
	for _, at := range offsets {
		if at < 24 {
			continue // startup frames carry no CRC (RFC 5044, section 7.1)
		}
		for _, opts := range []*rnic.LinkOptions{nil, {Markers: rnic.On}} {
			t.Run(fmt.Sprintf("at %d, options %t", at, opts != nil), func(t *testing.T) {
				onBothNetworks(t, func(t *testing.T, network soft.Network) {
					f := connectThrough(t, network, faultproxy.Script{Steps: []faultproxy.Step{{Dir: faultproxy.ToTarget, Offset: at, Do: faultproxy.Corrupt, Mask: 0x10}}}, opts)
					require.NoError(t, f.connectErr)
					stuck := make(chan struct{})
					go func() { // a damaged length makes the receiver wait for octets that never come
						<-f.proxy.Reached(0)
						select {
						case e := <-f.server.events:
							f.server.events <- e
						case <-time.After(10 * time.Second):
						}
						close(stuck)
					}()
					f.exercise(t, stuck)
				})
			})
		}
	}
}

// TestCorruptPayloadIsNamed: both sides learn what happened. The damage is behind the first FPDU, for a
// responder that has seen no valid one may not send a Terminate Message.
func TestCorruptPayloadIsNamed(t *testing.T) {
	onBothNetworks(t, func(t *testing.T, network soft.Network) {
		f := connectThrough(t, network, faultproxy.Script{Steps: []faultproxy.Step{{Dir: faultproxy.ToTarget, Offset: 6000, Do: faultproxy.Corrupt}}}, nil)
		require.NoError(t, f.connectErr)
		f.client.posts(f.server)
		e := f.server.last()
		require.Equal(t, rnic.Failed, e.Kind)
		var m *mpa.Error
		require.ErrorAs(t, e.Err, &m)
		require.Equal(t, mpa.CodeCRC, m.Code)
		require.EqualValues(t, 1, f.server.qp.Stats().CRCErrors)
		e = f.client.last()
		require.Equal(t, rnic.Failed, e.Kind)
		var term *rdmap.TerminateError
		require.ErrorAs(t, e.Err, &term)
		require.True(t, term.Remote)
		require.EqualValues(t, mpa.TerminateLayer, term.Layer)
		require.EqualValues(t, mpa.CodeCRC, term.Code)
		require.NoError(t, f.client.collect())
		require.NoError(t, f.server.collect())
		require.NoError(t, f.client.qp.Close())
		require.NoError(t, f.server.qp.Close())
	})
}

// TestStallAnywhere: a peer that takes nothing more holds up neither posts nor Close.
func TestStallAnywhere(t *testing.T) {
	for _, dir := range []faultproxy.Direction{faultproxy.ToTarget, faultproxy.FromTarget} {
		for _, at := range offsets {
			if at < 24 {
				continue
			}
			t.Run(fmt.Sprintf("dir %d at %d", dir, at), func(t *testing.T) {
				onBothNetworks(t, func(t *testing.T, network soft.Network) {
					f := connectThrough(t, network, faultproxy.Script{Steps: []faultproxy.Step{{Dir: dir, Offset: at, Do: faultproxy.Stall}}}, nil)
					require.NoError(t, f.connectErr)
					f.exercise(t, f.proxy.Reached(0))
				})
			})
		}
	}
}

// TestDisconnectFromStalledPeer ends within the configured time, in virtual time.
func TestDisconnectFromStalledPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := connectThrough(t, soft.NewMemNetwork(soft.MemConfig{Buffer: 2 << 10}), faultproxy.Script{Steps: []faultproxy.Step{{Dir: faultproxy.ToTarget, Offset: 3000, Do: faultproxy.Stall}}}, nil)
		require.NoError(t, f.connectErr)
		f.client.posts(f.server)
		<-f.proxy.Reached(0)
		begin := time.Now()
		require.NoError(t, f.client.qp.Disconnect())
		require.Equal(t, rnic.Failed, f.client.last().Kind)
		require.LessOrEqual(t, time.Since(begin), 4*rdmap.DefaultLinger)
		require.NoError(t, f.client.collect())
		require.NoError(t, f.client.qp.Close())
		f.proxy.CutAll()
		require.NoError(t, f.server.collect())
		require.NoError(t, f.server.qp.Close())
	})
}

// TestChunks: octets that arrive in pieces of a few at a time make no difference.
func TestChunks(t *testing.T) {
	for _, n := range []int{1, 7, 100} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			onBothNetworks(t, func(t *testing.T, network soft.Network) {
				f := connectThrough(t, network, faultproxy.Script{Chunk: n}, nil)
				require.NoError(t, f.connectErr)
				f.exercise(t, nil)
				require.Len(t, f.client.ok, load+load/4)
				require.Len(t, f.server.ok, load+load/4)
			})
		})
	}
}

// TestStartupTimeouts: a peer that says nothing is given up on, in virtual time.
func TestStartupTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := soft.NewMemNetwork(soft.MemConfig{})
		dev := newDevice(t, soft.Config{Network: network})
		ctx := context.Background()
		opts := &rnic.LinkOptions{RequestTimeout: 2 * time.Second, ReplyTimeout: 3 * time.Second}

		silent, err := network.Listen(ctx, "silent:1") // takes the connection and never answers
		require.NoError(t, err)
		defer silent.Close()
		p := newParty(t, dev)
		k, err := dev.Dial(ctx, "silent:1", opts)
		require.NoError(t, err)
		p.qp, err = k.CreateQP(p.config())
		require.NoError(t, err)
		begin := time.Now()
		_, err = k.Connect(ctx, rnic.ConnParams{})
		var m *mpa.Error
		require.ErrorAs(t, err, &m)
		require.Equal(t, 3*time.Second, time.Since(begin))
		require.NoError(t, p.qp.Close())

		ln, err := dev.Listen(ctx, "target:1", opts)
		require.NoError(t, err)
		mute, err := network.Dial(ctx, "target:1")
		require.NoError(t, err)
		defer mute.Close()
		begin = time.Now()
		_, err = mute.Read(make([]byte, 1)) // until the responder gives up
		require.Error(t, err)
		require.Equal(t, 2*time.Second, time.Since(begin))
		// It held up nobody else.
		other, err := dev.Dial(ctx, "target:1", opts)
		require.NoError(t, err)
		q := newParty(t, dev)
		q.qp, err = other.CreateQP(q.config())
		require.NoError(t, err)
		connected := make(chan error, 1)
		go func() {
			_, err := other.Connect(ctx, rnic.ConnParams{})
			connected <- err
		}()
		r, err := ln.Accept(ctx)
		require.NoError(t, err)
		require.NoError(t, r.Reject([]byte("no")))
		var rej *rnic.RejectedError
		require.True(t, errors.As(<-connected, &rej))
		require.Equal(t, "no", string(rej.PrivateData))
		require.NoError(t, q.qp.Close())
		require.NoError(t, ln.Close())
	})
}
