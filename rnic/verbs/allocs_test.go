//go:build verbs && cgo && linux

package verbs_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/rnic"
)

// TestAllocs: in steady state nothing is allocated per work request, by whoever posts or by what completes it.
func TestAllocs(t *testing.T) {
	_, addr := address(t)
	d := newDevice(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pd, err := d.AllocPD()
	require.NoError(t, err)
	mr, err := pd.AllocMR(8192, rnic.LocalWrite|rnic.RemoteWrite)
	require.NoError(t, err)
	var sent, received atomic.Int64
	recv := rnic.RecvWR{SGE: []rnic.SGE{{MR: mr, Off: 4096, Len: 4096}}}
	cq, err := d.CreateCQ(rnic.CQConfig{Handler: func(wc []rnic.Completion) {
		for i := range wc {
			switch {
			case wc[i].Err != nil:
			case wc[i].Op == rnic.OpRecv:
				received.Add(1)
				if err := wc[i].QP.PostRecv(&recv); err != nil {
					t.Error(err)
				}
			default:
				sent.Add(1)
			}
		}
	}})
	require.NoError(t, err)
	cfg := rnic.QPConfig{PD: pd, SendCQ: cq, RecvCQ: cq}
	ln, err := d.Listen(ctx, addr, nil)
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() {
		req, err := ln.Accept(ctx)
		if err == nil {
			var q rnic.QP
			if q, err = req.CreateQP(cfg); err == nil {
				for range 4 {
					err = q.PostRecv(&recv)
				}
				if err == nil {
					err = req.Accept(ctx, rnic.ConnParams{})
				}
			}
		}
		served <- err
	}()
	k, err := d.Dial(ctx, ln.Addr().String(), nil)
	require.NoError(t, err)
	q, err := k.CreateQP(cfg)
	require.NoError(t, err)
	_, err = k.Connect(ctx, rnic.ConnParams{})
	require.NoError(t, err)
	require.NoError(t, <-served)

	send := rnic.SendWR{Op: rnic.OpSend, Flags: rnic.Signaled, Inline: []byte("done")}
	write := rnic.SendWR{Op: rnic.OpWrite, SGE: []rnic.SGE{{MR: mr, Len: 4096}}, RemoteSTag: mr.STag(), RemoteAddr: mr.Addr(), Next: &send}
	var rounds int64
	round := func() {
		rounds++
		if err := q.PostSend(&write); err != nil {
			t.Error(err)
		}
		for sent.Load() < rounds || received.Load() < rounds {
			if ctx.Err() != nil {
				t.Fatal("no completion")
			}
			runtime.Gosched()
		}
	}
	for range 50 { // scratch grows to its size
		round()
	}
	require.Less(t, testing.AllocsPerRun(200, round), 1.0)
	require.NoError(t, ln.Close())
}
