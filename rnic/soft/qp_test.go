package soft_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/rnic"
	"goiwarp/rnic/soft"
)

// TestReadPostedBeforeConnect: work that was accepted before the depths were known, and that the
// connection then cannot do, completes in error.
func TestReadPostedBeforeConnect(t *testing.T) {
	dev := newDevice(t, soft.Config{Network: soft.NewMemNetwork(soft.MemConfig{})})
	ctx := context.Background()
	ln, err := dev.Listen(ctx, "target:0", nil)
	require.NoError(t, err)
	client, server := newParty(t, dev), newParty(t, dev)
	k, err := dev.Dial(ctx, ln.Addr().String(), nil)
	require.NoError(t, err)
	client.qp, err = k.CreateQP(client.config())
	require.NoError(t, err)
	client.receives()
	client.posts(server) // Reads among them
	require.Len(t, client.owed, load+load/4)
	served := make(chan error, 1)
	go func() {
		r, err := ln.Accept(ctx)
		if err == nil {
			server.qp, err = r.CreateQP(server.config())
		}
		if err == nil {
			err = r.Accept(ctx, rnic.ConnParams{})
		}
		served <- err
	}()
	_, err = k.Connect(ctx, rnic.ConnParams{}) // ORD 0
	require.NoError(t, err)
	require.NoError(t, <-served)
	require.NoError(t, client.collect())
	require.Empty(t, client.ok)
	require.Equal(t, rnic.Failed, client.last().Kind)
	require.NoError(t, client.qp.Close())
	require.NoError(t, dev.Close())
}

// TestCloseUnderPosts: many goroutines post while the QP is closed; what was accepted completes
// once, before Close returns, and nothing is accepted afterwards.
func TestCloseUnderPosts(t *testing.T) {
	for range 20 {
		pr := benchPair(t, &rnic.LinkOptions{}, 0)
		sink, err := pr.server.pd.AllocMR(4096, rnic.LocalWrite|rnic.RemoteWrite)
		require.NoError(t, err)
		var accepted, completed atomic.Int64
		started := make(chan struct{}, 1)
		pr.client.handle(func(wc []rnic.Completion) {
			completed.Add(int64(len(wc)))
			select {
			case started <- struct{}{}:
			default:
			}
		})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				wr := rnic.SendWR{Op: rnic.OpWrite, Flags: rnic.Signaled, SGE: []rnic.SGE{{MR: pr.client.mr, Len: 4096}}, RemoteSTag: sink.STag(), RemoteAddr: sink.Addr()}
				for {
					switch err := pr.client.qp.PostSend(&wr); {
					case err == nil:
						accepted.Add(1)
					case !isQueueFull(err):
						return
					}
				}
			})
		}
		<-started
		require.NoError(t, pr.client.qp.Close())
		wg.Wait()
		require.Equal(t, accepted.Load(), completed.Load())
	}
}

func isQueueFull(err error) bool { return errors.Is(err, rnic.ErrQueue) }
