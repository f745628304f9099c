package rnictest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/rnic"
)

// sizes of messages: none, one octet, around an FPDU, around many.
var sizes = []int{0, 1, 3, 4, 1453, 1454, 1455, 4096, 30000, memorySize / 2}

func testGatherScatter(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{})
	s, c := pr.server, pr.client
	fill(c.mr.Bytes(), 1)
	max := min(p.Client.Attributes().MaxSendSGE, p.Server.Attributes().MaxRecvSGE, 8)
	var gather, scatter []rnic.SGE
	var want []byte
	off := 0
	for i := range max { // gathered pieces of growing size, with gaps
		n := 100 * i
		gather = append(gather, rnic.SGE{MR: c.mr, Off: off, Len: n})
		want = append(want, c.mr.Bytes()[off:off+n]...)
		off += n + 7
	}
	rest := len(want)
	off = 0
	for i := range max { // scattered pieces of another size, the last one longer than needed
		n := min(len(want)/max+i, rest)
		rest -= n
		if i == max-1 {
			n += rest + 50
		}
		scatter = append(scatter, rnic.SGE{MR: s.mr, Off: off, Len: n})
		off += n + 13
	}
	s.recv(rnic.RecvWR{ID: 1, SGE: scatter})
	c.send(rnic.SendWR{ID: 2, Op: rnic.OpSend, Flags: rnic.Signaled, SGE: gather})
	require.Equal(t, 0, c.ok(2).Len*0)
	require.Equal(t, len(want), s.ok(1).Len)
	var got []byte
	for _, g := range scatter {
		got = append(got, s.mr.Bytes()[g.Off:g.Off+g.Len]...)
	}
	require.Equal(t, want, got[:len(want)])
	require.Equal(t, make([]byte, len(got)-len(want)), got[len(want):], "nothing behind the message is touched")

	tooMany := make([]rnic.SGE, p.Client.Attributes().MaxSendSGE+1)
	for i := range tooMany {
		tooMany[i] = rnic.SGE{MR: c.mr, Off: i, Len: 1}
	}
	require.ErrorIs(t, c.qp.PostSend(&rnic.SendWR{Op: rnic.OpSend, SGE: tooMany}), rnic.ErrTooLarge)
	require.ErrorIs(t, c.qp.PostSend(&rnic.SendWR{Op: rnic.OpWrite, SGE: tooMany}), rnic.ErrTooLarge)
	tooMany = make([]rnic.SGE, p.Client.Attributes().MaxRecvSGE+1)
	for i := range tooMany {
		tooMany[i] = rnic.SGE{MR: c.mr, Off: i, Len: 1}
	}
	require.ErrorIs(t, c.qp.PostRecv(&rnic.RecvWR{SGE: tooMany}), rnic.ErrTooLarge)
}

func testSendSizes(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{})
	ends := []*end{pr.client, pr.server}
	for i, from := range ends {
		to := ends[1-i]
		for k, n := range sizes {
			fill(from.mr.Bytes()[:n], byte(k))
			clear(to.mr.Bytes())
			to.recv(rnic.RecvWR{ID: uint64(k), SGE: to.sge(0, n)})
			from.send(rnic.SendWR{ID: uint64(k), Op: rnic.OpSend, Flags: rnic.Signaled, SGE: from.sge(0, n)})
			from.ok(uint64(k))
			wc := to.ok(uint64(k))
			require.Equal(t, n, wc.Len)
			require.Equal(t, rnic.OpRecv, wc.Op)
			require.False(t, wc.HasImm)
			require.Zero(t, wc.InvalidatedSTag)
			require.Equal(t, from.mr.Bytes()[:n], to.mr.Bytes()[:n])
		}
	}
}

func testInline(t *testing.T, p Provider) {
	need(t, p, rnic.CapInline)
	pr := newPair(t, p, pairConfig{})
	s, c := pr.server, pr.client
	limit := c.dev.Attributes().MaxInline
	for _, n := range []int{0, 1, limit} {
		payload := fill(make([]byte, n), byte(n))
		want := append([]byte{}, payload...)
		s.recv(rnic.RecvWR{ID: 1, SGE: s.sge(0, limit)})
		c.owe(1)
		c.owe(2)
		wr := rnic.SendWR{ID: 1, Op: rnic.OpWrite, Flags: rnic.Signaled, Inline: payload, RemoteSTag: s.mr.STag(), RemoteAddr: s.at(4096)}
		wr.Next = &rnic.SendWR{ID: 2, Op: rnic.OpSend, Flags: rnic.Signaled, Inline: payload}
		require.NoError(t, c.qp.PostSend(&wr))
		clear(payload) // it was copied
		c.ok(1)
		c.ok(2)
		require.Equal(t, n, s.ok(1).Len)
		require.Equal(t, want, append([]byte{}, s.mr.Bytes()[:n]...))
		require.Equal(t, want, append([]byte{}, s.mr.Bytes()[4096:4096+n]...))
	}
	require.ErrorIs(t, c.qp.PostSend(&rnic.SendWR{Op: rnic.OpSend, Inline: make([]byte, limit+1)}), rnic.ErrTooLarge)
	require.ErrorIs(t, c.qp.PostSend(&rnic.SendWR{Op: rnic.OpSend, Inline: []byte{1}, SGE: c.sge(0, 1)}), rnic.ErrBadWR)
	require.ErrorIs(t, c.qp.PostSend(&rnic.SendWR{Op: rnic.OpRead, Inline: []byte{1}}), rnic.ErrBadWR)
}

func testSolicited(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{})
	s, c := pr.server, pr.client
	s.recv(rnic.RecvWR{ID: 1}, rnic.RecvWR{ID: 2})
	c.send(rnic.SendWR{ID: 1, Op: rnic.OpSend, Flags: rnic.Signaled | rnic.Solicited}, rnic.SendWR{ID: 2, Op: rnic.OpSend, Flags: rnic.Signaled})
	c.ok(1)
	c.ok(2)
	require.True(t, s.ok(1).Solicited)
	require.False(t, s.ok(2).Solicited)
	if p.Server.Attributes().Caps.Has(rnic.CapWindows|rnic.CapSendInvalidate) && p.Client.Attributes().Caps.Has(rnic.CapSendInvalidate) {
		w, err := s.pd.AllocWindow()
		require.NoError(t, err)
		defer w.Free()
		stag, err := w.Bind(s.mr, 0, 8, rnic.RemoteRead)
		require.NoError(t, err)
		s.recv(rnic.RecvWR{ID: 3})
		c.send(rnic.SendWR{ID: 3, Op: rnic.OpSendInvalidate, Flags: rnic.Signaled | rnic.Solicited, RemoteSTag: stag})
		c.ok(3)
		wc := s.ok(3)
		require.True(t, wc.Solicited)
		require.Equal(t, stag, wc.InvalidatedSTag)
	}
}

func testImmediate(t *testing.T, p Provider) {
	need(t, p, rnic.CapImmediate)
	pr := newPair(t, p, pairConfig{})
	s, c := pr.server, pr.client
	imm := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}
	fill(c.mr.Bytes()[:5000], 7)
	s.recv(rnic.RecvWR{ID: 1, SGE: s.sge(0, 64)}, rnic.RecvWR{ID: 2})
	c.send(rnic.SendWR{ID: 1, Op: rnic.OpWrite, Flags: rnic.Signaled, SGE: c.sge(0, 5000), RemoteSTag: s.mr.STag(), RemoteAddr: s.at(1000)},
		rnic.SendWR{ID: 2, Op: rnic.OpImmediate, Flags: rnic.Signaled, Imm: imm},
		rnic.SendWR{ID: 3, Op: rnic.OpImmediate, Flags: rnic.Signaled | rnic.Solicited, Imm: imm})
	c.ok(1)
	c.ok(2)
	c.ok(3)
	wc := s.ok(1)
	require.True(t, wc.HasImm)
	require.Equal(t, imm, wc.Imm)
	require.False(t, wc.Solicited)
	// RFC 7306, section 6.4: it tells that the Write before it was placed.
	require.Equal(t, c.mr.Bytes()[:5000], s.mr.Bytes()[1000:6000])
	require.Equal(t, make([]byte, 64), s.mr.Bytes()[:64], "Immediate Data does not go into the buffer")
	wc = s.ok(2)
	require.True(t, wc.HasImm)
	require.True(t, wc.Solicited)
	require.ErrorIs(t, c.qp.PostSend(&rnic.SendWR{Op: rnic.OpImmediate, SGE: c.sge(0, 8)}), rnic.ErrBadWR)
}

func testTooLong(t *testing.T, p Provider) {
	for _, n := range []int{101, 5000} {
		pr := newPair(t, p, pairConfig{})
		s, c := pr.server, pr.client
		s.recv(rnic.RecvWR{ID: 1, SGE: s.sge(0, 100)}, rnic.RecvWR{ID: 2, SGE: s.sge(200, 100)})
		c.send(rnic.SendWR{ID: 1, Op: rnic.OpSend, Flags: rnic.Signaled, SGE: c.sge(0, n)})
		wantStatus(t, p, rnic.StatusLocalLength, s.fails(1))
		require.Equal(t, rnic.StatusFlushed, s.fails(2).Status)
		wantFailed(t, p, s)
		wantFailed(t, p, c) // the peer's Terminate Message says why (RFC 5041, section 7.2)
		require.Equal(t, make([]byte, 100), s.mr.Bytes()[100:200], "nothing is written behind the buffer")
	}
}

func testNoReceive(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{})
	pr.client.send(rnic.SendWR{ID: 1, Op: rnic.OpSend, Flags: rnic.Signaled, SGE: pr.client.sge(0, 100)})
	pr.client.next()
	wantFailed(t, p, pr.server)
	wantFailed(t, p, pr.client)
}

func testWriteSizes(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{})
	ends := []*end{pr.client, pr.server}
	for i, from := range ends {
		to := ends[1-i]
		for k, n := range sizes {
			fill(from.mr.Bytes()[:n], byte(k+50))
			clear(to.mr.Bytes())
			a := n / 3
			sge := []rnic.SGE{{MR: from.mr, Off: 0, Len: a}, {MR: from.mr, Off: a, Len: 0}, {MR: from.mr, Off: a, Len: n - a}}
			to.recv(rnic.RecvWR{ID: 1})
			from.send(rnic.SendWR{ID: 1, Op: rnic.OpWrite, Flags: rnic.Signaled, SGE: sge[:min(3, from.dev.Attributes().MaxSendSGE)], RemoteSTag: to.mr.STag(), RemoteAddr: to.at(11)},
				rnic.SendWR{ID: 2, Op: rnic.OpSend, Flags: rnic.Signaled})
			from.ok(1)
			from.ok(2)
			to.ok(1)
			require.Equal(t, from.mr.Bytes()[:n], to.mr.Bytes()[11:11+n])
			require.Equal(t, make([]byte, 11), to.mr.Bytes()[:11])
			require.Equal(t, make([]byte, 100), to.mr.Bytes()[11+n:111+n])
		}
	}
}

// testWriteBeforeSend: what was written is there when a Send behind it is delivered (RFC 5040,
// section 5.5, rules 5 and 10).
func testWriteBeforeSend(t *testing.T, p Provider) {
	pr := newPair(t, p, pairConfig{})
	s, c := pr.server, pr.client
	const rounds, n = 50, 3000
	for i := range rounds {
		s.recv(rnic.RecvWR{ID: uint64(i), SGE: s.sge(0, 8)})
	}
	for i := range rounds {
		fill(c.mr.Bytes()[:n], byte(i))
		c.send(rnic.SendWR{ID: 1, Op: rnic.OpWrite, Flags: rnic.Signaled, SGE: c.sge(0, n), RemoteSTag: s.mr.STag(), RemoteAddr: s.at(100)},
			rnic.SendWR{ID: 2, Op: rnic.OpSend, Flags: rnic.Signaled, SGE: c.sge(0, 8)})
		s.ok(uint64(i))
		require.Equal(t, fill(make([]byte, n), byte(i)), s.mr.Bytes()[100:100+n])
		c.ok(1)
		c.ok(2)
	}
}
