package soft_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/rnic"
)

// TestReadRacesWrite: with CRCs on, RDMA Reads of memory that the same peer overwrites through a second
// connection meanwhile are legal, and common on a block device. Neither connection may die of it: what
// is sent is a copy that the CRC was computed over.
func TestReadRacesWrite(t *testing.T) {
	const size, rounds = 256 << 10, 60
	reader := benchPair(t, &rnic.LinkOptions{}, 0)
	writer := benchPairOn(t, &rnic.LinkOptions{}, reader)
	target, err := reader.server.pd.AllocMR(size, rnic.LocalWrite|rnic.RemoteRead|rnic.RemoteWrite)
	require.NoError(t, err)
	run := func(c *side, op rnic.Opcode, access rnic.Access) error {
		mr, err := c.pd.AllocMR(size, access)
		if err != nil {
			return err
		}
		defer mr.Deregister()
		done := make(chan error, 1)
		c.handle(func(wc []rnic.Completion) {
			for i := range wc {
				done <- wc[i].Err
			}
		})
		for i := range rounds {
			for k := range mr.Bytes() {
				if op == rnic.OpWrite {
					mr.Bytes()[k] = byte(i)
				}
			}
			wr := rnic.SendWR{Op: op, Flags: rnic.Signaled, SGE: []rnic.SGE{{MR: mr, Len: size}}, RemoteSTag: target.STag(), RemoteAddr: target.Addr()}
			if err := c.qp.PostSend(&wr); err != nil {
				return err
			}
			if err := <-done; err != nil {
				return err
			}
		}
		return nil
	}
	var wg sync.WaitGroup
	errs := make(chan error, 2)
	wg.Go(func() { errs <- run(reader.client, rnic.OpRead, rnic.LocalWrite|rnic.RemoteWrite) })
	wg.Go(func() { errs <- run(writer.client, rnic.OpWrite, 0) })
	wg.Wait()
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
	require.Zero(t, reader.client.qp.Stats().CRCErrors)
	require.NotZero(t, reader.client.qp.Stats().CRCsChecked)
}
