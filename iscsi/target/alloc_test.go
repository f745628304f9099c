package target

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/store"
)

// raceEnabled: with the race detector sync.Pool forgets at random, so that nothing can be said about allocations.
var raceEnabled bool

// direct is a session on a null store whose upcalls the caller makes itself.
type direct struct {
	*peer
	req *iscsi.PDU
}

func newDirect(t testing.TB, s *Server) *direct {
	d := &direct{req: &iscsi.PDU{}}
	d.peer = connect(t, s, func(p *peer) { p.manual = true })
	<-d.begun
	d.inject(d.loginRequest(normalKeys("MaxRecvDataSegmentLength", "65536", "ImmediateData", "Yes", "InitialR2T", "Yes")...))
	d.pump()
	d.pdu(iscsi.OpLoginRsp)
	d.run1(make([]byte, 6), 0, 0, 0)
	d.quiet = true
	return d
}

// run1 runs one command to its end.
func (d *direct) run1(cdb []byte, in, out, immediate int) {
	h := iscsi.SCSICommand(d.req.BHS[:])
	h.Init()
	h.SetFinal(true)
	h.SetITT(uint32(d.cmdSN) & 0xff)
	h.SetCmdSN(d.cmdSN)
	h.SetCDB(cdb)
	h.SetRead(in > 0)
	h.SetWrite(out > 0)
	h.SetEDTL(uint32(in + out))
	d.req.Data = zeros[:immediate]
	d.cmdSN++
	d.n.ControlNotify(d.req)
	d.pump()
}

var zeros [64 << 10]byte

// close ends the connection as the peer would.
func (d *direct) close() {
	d.n.ConnectionTerminateNotify(nil)
	d.ConnectionTerminate(false)
	close(d.done)
	<-d.serve
}

func nullServer(t testing.TB) *Server {
	n, err := store.NewNull(1 << 40)
	require.NoError(t, err)
	return newServer(t, nil, n)
}

// TestNoAllocations: in steady state a command costs no allocation, whichever way its data goes.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("not with the race detector")
	}
	s := nullServer(t)
	d := newDirect(t, s)
	rd, wr, big := read10(64, 8), write10(64, 8), read10(0, 256)
	read16 := make([]byte, 16)
	read16[0] = 0x88
	binary.BigEndian.PutUint32(read16[10:], 8)
	for _, c := range []struct {
		name               string
		cdb                []byte
		in, out, immediate int
	}{
		{"READ(10) of 4 KiB", rd, 4096, 0, 0},
		{"READ(16) of 4 KiB", read16, 4096, 0, 0},
		{"READ(10) of 128 KiB in two pieces", big, 128 << 10, 0, 0},
		{"WRITE(10) of 4 KiB, immediate", wr, 0, 4096, 4096},
		{"WRITE(10) of 4 KiB, by GetData", wr, 0, 4096, 0},
		{"WRITE(10) of 4 KiB, both", wr, 0, 4096, 512},
		{"TEST UNIT READY", make([]byte, 6), 0, 0, 0},
	} {
		before := d.nSent
		require.Zero(t, testing.AllocsPerRun(500, func() { d.run1(c.cdb, c.in, c.out, c.immediate) }), c.name)
		require.Equal(t, 501, d.nSent-before, "responses")
	}
	require.Zero(t, s.Status().Sessions[0].Counters.Failed-1, "but the first unit attention")
	require.Zero(t, d.lent)
	d.close()
	require.NoError(t, s.Shutdown(context.Background()))
}

func BenchmarkRead4K(b *testing.B)  { benchmark(b, read10(0, 8), 4096, 0, 0) }
func BenchmarkWrite4K(b *testing.B) { benchmark(b, write10(0, 8), 0, 4096, 4096) }

func benchmark(b *testing.B, cdb []byte, in, out, immediate int) {
	s := nullServer(b)
	d := newDirect(b, s)
	b.ReportAllocs()
	b.SetBytes(int64(in + out))
	for b.Loop() {
		d.run1(cdb, in, out, immediate)
	}
	d.close()
	_ = s.Shutdown(context.Background())
}
