package rnictest

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/rnic"
)

// testBothWays moves large messages in both directions at once, by Writes and by Reads. Two readers
// that wait for room to send would stand still for ever.
func testBothWays(t *testing.T, p Provider) {
	const size, rounds = 1 << 20, 6
	cfg := endConfig{memory: 4 * size, params: rnic.ConnParams{IRD: 4, ORD: 4}}
	pr := newPair(t, p, pairConfig{client: cfg, server: cfg})
	errs := make(chan error, 2)
	ends := []*end{pr.client, pr.server}
	for _, e := range ends {
		fill(e.mr.Bytes()[:2*size], byte(len(e.events)+1))
	}
	for i, e := range ends {
		peer := ends[1-i]
		go func() {
			for r := range uint64(rounds) {
				e.send(
					rnic.SendWR{ID: 2 * r, Op: rnic.OpWrite, Flags: rnic.Signaled, SGE: e.sge(0, size), RemoteSTag: peer.mr.STag(), RemoteAddr: peer.at(2 * size)},
					rnic.SendWR{ID: 2*r + 1, Op: rnic.OpRead, Flags: rnic.Signaled, SGE: e.sge(3*size, size), RemoteSTag: peer.mr.STag(), RemoteAddr: peer.at(size)},
				)
			}
			for range 2 * rounds {
				if wc := e.next(); wc.Err != nil {
					errs <- wc.Err
					return
				}
			}
			errs <- nil
		}()
	}
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
	for i, e := range ends {
		peer := ends[1-i]
		require.True(t, bytes.Equal(e.mr.Bytes()[:size], peer.mr.Bytes()[2*size:3*size]), "written data")
		require.True(t, bytes.Equal(peer.mr.Bytes()[size:2*size], e.mr.Bytes()[3*size:]), "read data")
	}
}

func testStats(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{})
	s, c := pr.server, pr.client
	before := c.qp.Stats()
	s.recv(rnic.RecvWR{ID: 1, SGE: s.sge(0, 100)})
	c.send(rnic.SendWR{ID: 1, Op: rnic.OpWrite, Flags: rnic.Signaled, SGE: c.sge(0, 5000), RemoteSTag: s.mr.STag(), RemoteAddr: s.at(1000)},
		rnic.SendWR{ID: 2, Op: rnic.OpRead, Flags: rnic.Signaled, SGE: c.sge(0, 3000), RemoteSTag: s.mr.STag(), RemoteAddr: s.at(1000)},
		rnic.SendWR{ID: 3, Op: rnic.OpSend, Flags: rnic.Signaled, SGE: c.sge(0, 100)})
	c.ok(1)
	c.ok(2)
	c.ok(3)
	s.ok(1)
	a, b := c.qp.Stats(), s.qp.Stats()
	require.EqualValues(t, 1, a.WritesSent-before.WritesSent)
	require.EqualValues(t, 1, a.ReadsSent-before.ReadsSent)
	require.EqualValues(t, 1, a.SendsSent-before.SendsSent)
	require.Equal(t, a.SendsSent, b.SendsReceived)
	require.EqualValues(t, 5100, a.OctetsSent-before.OctetsSent)
	require.EqualValues(t, 3000, a.OctetsReceived-before.OctetsReceived)
	require.Zero(t, a.CRCErrors)
	if a.FPDUsSent == 0 || b.FPDUsSent == 0 {
		return // a device that counts no frames does not see what the peer does to its side's memory either
	}
	require.Equal(t, a.WritesSent, b.WritesReceived)
	require.Equal(t, a.ReadsSent, b.ReadsReceived)
	require.Equal(t, a.OctetsSent, b.OctetsReceived)
	require.Equal(t, a.FPDUsSent, b.FPDUsReceived)
	require.GreaterOrEqual(t, a.FPDUsSent, uint64(3))
	require.Equal(t, a.CRCsGenerated, b.CRCsChecked)
}
