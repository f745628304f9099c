package datamovertest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
)

// ways are all the ways in which one side ends a connection.
func ways(t *testing.T, f func(t *testing.T, byTarget, graceful bool)) {
	for _, byTarget := range []bool{false, true} {
		for _, graceful := range []bool{false, true} {
			t.Run(fmt.Sprintf("byTarget=%t,graceful=%t", byTarget, graceful), func(t *testing.T) { f(t, byTarget, graceful) })
		}
	}
}

// sides orders the ends: the one that ends the connection, and its peer.
func (c *conn) sides(byTarget bool) (by, peer *end) {
	if byTarget {
		return c.g, c.i
	}
	return c.i, c.g
}

// testGracefulDelivers: what was given to SendControl arrives before a graceful end.
func testGracefulDelivers(t *testing.T, m Maker) {
	for _, byTarget := range []bool{false, true} {
		c := start(t, m).login()
		by, peer := c.sides(byTarget)
		const n = 30
		for k := range uint32(n) {
			p := nopOut(k, pattern(k, 0, by.segment()))
			if byTarget {
				p = nopIn(k, k, pattern(k, 0, by.segment()))
			}
			by.send(p, nil)
		}
		by.dm.ConnectionTerminate(true)
		for k := range uint32(n) {
			ev := peer.next()
			require.Equal(t, control, ev.kind, "PDU %d: %+v", k, ev)
			require.Equal(t, k, ev.itt)
			require.NoError(t, mismatch(ev.pdu.Data, k, 0))
		}
		ev := peer.next()
		require.Equal(t, terminated, ev.kind)
		require.NoError(t, ev.err, "closed gracefully by the peer")
		by.done()
		peer.done()
		by.quiet()
		c.end()
	}
}

// testTerminateIdle: both ends go down, the peer is told once, the one that ended it is not.
func testTerminateIdle(t *testing.T, m Maker) {
	ways(t, func(t *testing.T, byTarget, graceful bool) {
		c := start(t, m).login()
		by, peer := c.sides(byTarget)
		c.roundTrip(1)
		by.dm.ConnectionTerminate(graceful)
		require.Equal(t, terminated, peer.next().kind)
		by.done()
		peer.done()
		by.quiet()
		peer.quiet()
		by.dm.ConnectionTerminate(!graceful) // again, and on both: harmless
		peer.dm.ConnectionTerminate(graceful)
		c.settled()
	})
}

// testTerminateLoad ends the connection in the middle of transfers both ways.
func testTerminateLoad(t *testing.T, m Maker) {
	ways(t, func(t *testing.T, byTarget, graceful bool) {
		breakUnderLoad(t, m, func(c *conn) {
			by, _ := c.sides(byTarget)
			by.dm.ConnectionTerminate(graceful)
		})
	})
}

// testCut breaks the transport in the middle of transfers both ways.
func testCut(t *testing.T, m Maker) {
	rounds := 5
	if testing.Short() {
		rounds = 2
	}
	for range rounds {
		breakUnderLoad(t, m, (*conn).cut)
	}
}

// breakUnderLoad runs load, calls f in its middle, and expects both ends down and all memory back.
func breakUnderLoad(t *testing.T, m Maker, f func(*conn)) {
	c := start(t, m).login()
	cl, d := newClient(c.i), newDisk(c.g)
	var once sync.Once
	var mu sync.Mutex
	count := 0
	load(t, cl, 8, 1<<30, func() {
		mu.Lock()
		count++
		enough := count > 40
		mu.Unlock()
		if enough {
			once.Do(func() { f(c) })
		}
	})
	c.i.done()
	c.g.done()
	d.close()
	c.settled()
}

// testTerminateUpcall ends the connection from within an upcall, which must not wait for itself.
func testTerminateUpcall(t *testing.T, m Maker) {
	ways(t, func(t *testing.T, byTarget, graceful bool) {
		c := start(t, m).login()
		by, peer := c.sides(byTarget)
		by.setHandle(func(ev event) bool {
			if ev.kind == control {
				by.dm.ConnectionTerminate(graceful)
			}
			return true
		})
		p := nopIn(reservedTag, 1, nil)
		if byTarget {
			p = nopOut(1, nil)
		}
		peer.send(p, nil)
		require.Equal(t, terminated, peer.next().kind)
		by.done()
		peer.done()
		c.settled()
	})
}

// testTerminateEarly ends connections on which nobody logged in.
func testTerminateEarly(t *testing.T, m Maker) {
	ways(t, func(t *testing.T, byTarget, graceful bool) {
		c := start(t, m)
		by, peer := c.sides(byTarget)
		by.dm.ConnectionTerminate(graceful)
		require.Equal(t, terminated, peer.next().kind)
		by.done()
		peer.done()
		c.settled()
	})
}

// testAfterEnd: every method of a dead connection returns, with an error that says so, and what it was
// given is released.
func testAfterEnd(t *testing.T, m Maker) {
	c := start(t, m).login()
	lent := map[*end]iscsi.Buffer{c.i: c.i.alloc(4096), c.g: c.g.alloc(4096)}
	c.cut()
	c.i.done()
	c.g.done()
	for e, b := range lent {
		require.Len(t, b.Bytes(), 4096, "lent memory outlives the connection")
		clear(b.Bytes())
		if e.target {
			require.True(t, isConnection(e.dm.PutData(&iscsi.DataIn{ITT: 1, TTT: reservedTag, Buf: b, Len: 10})))
			continue // released: PutData takes the buffer over in any case
		}
		require.True(t, isConnection(e.dm.SendControl(command(1, 1, 4096, 0, nil, false), &iscsi.TaskBuffers{In: b, InLen: 4096})))
		b.Release()
	}
	require.True(t, isConnection(c.g.dm.GetData(&iscsi.DataOut{ITT: 1, TTT: 1, Buf: &heap{t: t, b: make([]byte, 10)}, Len: 10})))
	for _, e := range []*end{c.i, c.g} {
		require.True(t, isConnection(e.dm.SendControl(nopOut(1, nil), nil)))
		e.dm.DeallocateTaskResources(1)
		e.dm.DeallocateConnectionResources()
		e.dm.ConnectionTerminate(true)
		_ = e.dm.Info()
	}
	c.settled()
}
