package datamovertest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// CheckData logs in over a pair and moves n octets each way: for transports whose streams do what
// Run has no time for.
func CheckData(t *testing.T, m Maker, n int) {
	t.Helper()
	err := moveData(t, m, n)
	require.NoError(t, err)
}

// CheckDataOrEnd is CheckData over a transport that may fail: the connection may end at any time, but
// data that is delivered is right.
func CheckDataOrEnd(t *testing.T, m Maker, n int) {
	t.Helper()
	if err := moveData(t, m, n); err != nil {
		require.True(t, isConnection(err), "%v", err)
	}
}

func moveData(t *testing.T, m Maker, n int) error {
	c := start(t, m).login()
	defer c.end()
	cl, d := newClient(c.i), newDisk(c.g)
	defer d.close()
	b := &heap{t: t, b: make([]byte, n)}
	err := cl.do(true, n, 0, 0, b)
	if err == nil {
		first := min(n, 1000)
		err = cl.do(true, n, first, min(n-first, 5000), b)
	}
	if err == nil {
		clear(b.b)
		err = cl.do(false, n, 0, 0, b)
	}
	c.i.dm.ConnectionTerminate(false)
	c.i.done()
	c.g.done()
	return err
}
