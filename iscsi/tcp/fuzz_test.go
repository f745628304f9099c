package tcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/internal/sock"
	"goiwarp/iscsi"
)

// glutton is a layer above that answers whatever it is told, as a careless one would.
type glutton struct {
	d   *Datamover
	ttt uint32
	got int
}

func (g *glutton) ControlNotify(p *iscsi.PDU) {
	h := iscsi.BHS(p.BHS[:])
	g.got += len(p.AHS) + len(p.Data)
	itt, op := h.ITT(), p.Opcode()
	p.Release()
	switch {
	case !g.d.target:
		_ = g.d.SendControl(nopOutPDU(itt, nil), nil)
	case op == iscsi.OpSCSICommand:
		for range 2 {
			if b, err := g.d.Alloc(700); err == nil {
				g.ttt++
				if g.d.GetData(&iscsi.DataOut{ITT: itt, TTT: g.ttt, Offset: 5, Buf: b, Len: 700, Tag: uint64(g.ttt)}) != nil {
					b.Release()
				}
			}
		}
		if b, err := g.d.Alloc(600); err == nil {
			_ = g.d.PutData(&iscsi.DataIn{ITT: itt, TTT: iscsi.ReservedTag, Buf: b, Len: 600, Final: true, More: true})
		}
		_ = g.d.SendControl(responsePDU(itt, 1, 1), nil)
	case op == iscsi.OpTaskMgmtReq:
		g.d.DeallocateTaskResources(itt)
	default:
		_ = g.d.SendControl(nopInPDU(itt), nil)
	}
}

func (g *glutton) DataCompletionNotify(uint32, uint64, error) {}
func (g *glutton) DataACKNotify(uint32, uint32)               {}
func (g *glutton) ConnectionTerminateNotify(error)            {}

// feed runs stream through a Datamover in full feature phase and waits for its end.
func feed(t *testing.T, target bool, digests byte, stream []byte, start func(d *Datamover)) *Datamover {
	ours, peer := sock.MemPipe(2048)
	d := newOnSocket(ours, Config{Memory: 1 << 20, Linger: time.Second}, target, nil)
	g := &glutton{d: d}
	p := params()
	p.HeaderDigest, p.DataDigest = digests&1 != 0, digests&2 != 0
	d.NoticeKeyValues(p)
	if target {
		require.NoError(t, d.EnableDatamover(responsePDU(0, 0, 0)))
	} else {
		require.NoError(t, d.EnableDatamover(nil))
	}
	d.Start(g)
	if start != nil {
		start(d)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		room := sock.SliceScatter{}
		for {
			room.B = make([]byte, 4096)
			if _, err := peer.Read(&room); err != nil {
				return
			}
		}
	}()
	for len(stream) > 0 {
		n, err := peer.Write([][]byte{stream})
		if err != nil {
			break
		}
		stream = stream[n:]
	}
	_ = peer.CloseWrite()
	<-d.Done()
	<-done
	_ = peer.Close()
	require.LessOrEqual(t, g.got, 1<<20, "more data than octets were sent")
	return d
}

// seeds are streams that reach far.
func seeds(f *testing.F, pdus ...*iscsi.PDU) {
	for digests := range byte(4) {
		var all []byte
		for _, p := range pdus {
			b, err := iscsi.AppendPDU(nil, p, digests&1 != 0, digests&2 != 0)
			require.NoError(f, err)
			f.Add(digests, b)
			all = append(all, b...)
		}
		f.Add(digests, all)
	}
}

// FuzzTarget feeds a target what no initiator should send: it ends, and its memory is whole.
func FuzzTarget(f *testing.F) {
	withAHS := nopOutPDU(1, []byte("hello"))
	withAHS.AHS = []byte{0, 1, 0x3f, 0}
	tmf := commandPDU(5, 0)
	tmf.BHS[0] = byte(iscsi.OpTaskMgmtReq)
	seeds(f, commandPDU(5, 0x60), dataOutPDU(5, 1, 0, 5, octets(1, 300), false), dataOutPDU(5, 1, 1, 305, octets(1, 400), true),
		withAHS, dataOutPDU(5, iscsi.ReservedTag, 0, 0, octets(1, 30), true), tmf, dataOutPDU(5, 2, 0, 5, octets(1, 700), true))
	f.Fuzz(func(t *testing.T, digests byte, stream []byte) {
		if len(stream) > 1<<18 {
			return
		}
		feed(t, true, digests, stream, nil)
	})
}

// FuzzInitiator feeds an initiator what no target should send: it ends, and nothing outside its
// tasks' buffers has changed.
func FuzzInitiator(f *testing.F) {
	final := dataInPDU(5, 1, 300, octets(1, 700), true)
	iscsi.DataInPDU(final.BHS[:]).SetHasStatus(true)
	seeds(f, dataInPDU(5, 0, 0, octets(1, 300), false), final, r2tPDU(6, 1, 0, 0, 500), r2tPDU(6, 2, 1, 500, 500),
		responsePDU(6, 1, 2), nopInPDU(3))
	f.Fuzz(func(t *testing.T, digests byte, stream []byte) {
		if len(stream) > 1<<18 {
			return
		}
		room := make([]byte, 3000)
		out := octets(4, 1000)
		feed(t, false, digests, stream, func(d *Datamover) {
			_ = d.SendControl(commandPDU(5, 0x40), &iscsi.TaskBuffers{In: &heap{room[1000:]}, InLen: 1000})
			_ = d.SendControl(commandPDU(6, 0x20), &iscsi.TaskBuffers{Out: &heap{out}, OutLen: 1000})
		})
		require.Equal(t, make([]byte, 1000), room[:1000])
		require.Equal(t, make([]byte, 1000), room[2000:])
		require.Equal(t, octets(4, 1000), out)
	})
}
