package tcp

import (
	"context"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/internal/faultproxy"
	"goiwarp/internal/sock"
	"goiwarp/iscsi"
	"goiwarp/iscsi/datamovertest"
)

// TestCrumbs moves data over streams that deliver it in pieces of 1 to 7 octets and across PDUs, as networks may.
func TestCrumbs(t *testing.T) {
	for n := 1; n <= 7; n++ {
		datamovertest.CheckData(t, overPipe(n, n%2 == 0, n%3 == 0), 2500*n)
	}
	for _, n := range []int{1, 5, 48, 1448} {
		datamovertest.CheckData(t, overProxy(faultproxy.Script{Chunk: n}), min(2500*n, 32<<10))
	}
}

// overProxy makes pairs with a proxy between them.
func overProxy(script faultproxy.Script) datamovertest.Maker {
	return func(t testing.TB) datamovertest.Pair {
		ln, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer ln.Close()
		proxy := faultproxy.New(t, ln.Addr().String(), script)
		dm, err := (&Dialer{Config: suiteConfig}).Dial(context.Background(), proxy.Addr())
		require.NoError(t, err)
		conn, err := ln.Accept()
		require.NoError(t, err)
		p := pairOf(t, dm.(*Datamover), NewTarget(conn, suiteConfig, nil), true, true)
		p.Cut = proxy.CutAll
		return p
	}
}

// TestCorruption flips one octet after another of a stream with both digests: what arrives is right or the connection ends,
// but wrong data is never delivered.
func TestCorruption(t *testing.T) {
	for _, dir := range []faultproxy.Direction{faultproxy.ToTarget, faultproxy.FromTarget} {
		for k := range 40 {
			at := int64(400 + 211*k)
			m := overProxy(faultproxy.Script{Steps: []faultproxy.Step{{Dir: dir, Offset: at, Do: faultproxy.Corrupt}}})
			datamovertest.CheckDataOrEnd(t, m, 8<<10)
		}
	}
}

// TestFailureResets: what the kernel holds of a connection that has failed does not reach the peer later, over a connection that was wrapped either.
func TestFailureResets(t *testing.T) {
	for name, wrap := range map[string]func(net.Conn) net.Conn{"plain": nil, "polled": sock.NewPoller(time.Millisecond).Lead} {
		t.Run(name, func(t *testing.T) {
			ln, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer ln.Close()
			dm, err := (&Dialer{Config: suiteConfig, Wrap: wrap}).Dial(context.Background(), ln.Addr().String())
			require.NoError(t, err)
			peer, err := ln.Accept()
			require.NoError(t, err)
			defer peer.Close()
			d := dm.(*Datamover)
			d.Start(make(ticks, 1))
			d.fail(iscsi.ErrConnection, true)
			<-d.Done()
			_, err = peer.Read(make([]byte, 1))
			require.Error(t, err)
			require.NotErrorIs(t, err, io.EOF)
		})
	}
}

// TestDialFails returns the network's own error.
func TestDialFails(t *testing.T) {
	ln, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := ln.Addr().String()
	require.NoError(t, ln.Close())
	_, err = new(Dialer).Dial(context.Background(), addr)
	var op *net.OpError
	require.ErrorAs(t, err, &op)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = new(Dialer).Dial(ctx, addr)
	require.Error(t, err)
}

// TestInfo tells what was negotiated.
func TestInfo(t *testing.T) {
	a, _ := sock.MemPipe(100)
	d := newOnSocket(a, Config{}, true, nil)
	defer d.ConnectionTerminate(false)
	require.Equal(t, loginData, d.Info().MaxPutData)
	p := params()
	p.HeaderDigest = true
	d.NoticeKeyValues(p)
	require.NoError(t, d.EnableDatamover(&iscsi.PDU{}))
	i := d.Info()
	require.Equal(t, []any{"tcp", 4096, 0, false}, []any{i.Transport, i.MaxPutData, i.MaxSendSegment, i.RDMA})
	require.Equal(t, iscsi.Fact{Layer: "tcp", Name: "HeaderDigest", Value: "CRC32C"}, i.Facts[0])
	require.Equal(t, iscsi.Fact{Layer: "tcp", Name: "DataDigest", Value: "None"}, i.Facts[1])
}

// ticks is a layer above that counts PDUs.
type ticks chan struct{}

func (c ticks) ControlNotify(p *iscsi.PDU)                 { p.Release(); c <- struct{}{} }
func (c ticks) DataCompletionNotify(uint32, uint64, error) {}
func (c ticks) DataACKNotify(uint32, uint32)               {}
func (c ticks) ConnectionTerminateNotify(error)            {}

// TestIdleConnectionIsSmall measures what a connection costs that has done some work and now waits.
func TestIdleConnectionIsSmall(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector has memory of its own")
	}
	const n, limit = 100, 64 << 10
	size := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // pools let go of what they hold
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	before := size()
	all := make([]*Datamover, n)
	for k := range all {
		a, b := connect(t)
		d, seen := NewTarget(a, Config{}, nil), make(ticks, 1)
		d.Start(seen)
		f, err := iscsi.AppendPDU(nil, nopOutPDU(1, octets(1, 8000)), false, false)
		require.NoError(t, err)
		_, err = b.Write(f)
		require.NoError(t, err)
		defer b.Close()
		<-seen
		all[k] = d
	}
	t.Logf("%d octets", (size()-before)/n)
	require.Less(t, (size()-before)/n, uint64(limit))
	for _, d := range all {
		d.ConnectionTerminate(false)
		<-d.Done()
	}
}

// TestErrorsRead well in a log, and tell their kind.
func TestErrorsRead(t *testing.T) {
	h := iscsi.BHS(dataOutPDU(0x11, 9, 0, 0, nil, true).BHS[:])
	err := violation(Sequence, h, "DataSN %d, expected %d", 3, 1)
	require.Equal(t, "iscsi/tcp: sequence error: opcode 0x05 ITT 0x11: DataSN 3, expected 1", err.Error())
	require.ErrorIs(t, err, &Error{Kind: Sequence})
	require.NotErrorIs(t, err, &Error{Kind: Format})
	require.ErrorIs(t, err, iscsi.ErrConnection)
	require.Equal(t, "iscsi/tcp: header digest error", (&Error{Kind: HeaderDigest}).Error())
	require.Equal(t, "error kind 99", Kind(99).String())
}
