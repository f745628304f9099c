package target

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"goiwarp/iscsi/store"
	"goiwarp/iscsi/store/storetest"
)

// TestTurnsAreFair: 64 connections with queues of any depth get one command each per round, in the order in which they came to the
// queue, and each connection's own commands run in their order.
func TestTurnsAreFair(t *testing.T) {
	const conns = 64
	var q turns
	var queued [conns][]*task
	for c := range conns {
		w := new(turn)
		for range 1 + c%7*9 { // depths from 1 to 55
			tk := &task{turn: w}
			queued[c] = append(queued[c], tk)
			q.push(tk)
		}
	}
	for round := 0; q.next() != nil; round++ {
		for c := range conns {
			if len(queued[c]) <= round {
				continue
			}
			require.Same(t, queued[c][round], q.take(), "round %d, connection %d", round, c)
		}
	}
}

// TestTurnsModel: whatever is pushed, taken and withdrawn, nothing is lost, each connection's order is kept, and nobody waits longer
// than one command of each other connection.
func TestTurnsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q turns
		ws := make([]*turn, 5)
		for i := range ws {
			ws[i] = new(turn)
		}
		model := make(map[*turn][]*task)
		passed := make(map[*turn]int) // commands of others since this one had something to do and no turn
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				w := rapid.SampledFrom(ws).Draw(t, "who")
				tk := &task{turn: w}
				q.push(tk)
				model[w] = append(model[w], tk)
			},
			"take": func(t *rapid.T) {
				tk := q.take()
				if tk == nil {
					return
				}
				w := tk.turn
				if model[w][0] != tk {
					t.Fatal("not the oldest of its connection")
				}
				model[w] = model[w][1:]
				passed[w] = 0
				for _, o := range ws {
					if o != w && len(model[o]) > 0 {
						if passed[o]++; passed[o] >= len(ws) {
							t.Fatal("passed over")
						}
					}
				}
			},
			"withdraw": func(t *rapid.T) {
				w := rapid.SampledFrom(ws).Draw(t, "who")
				if len(model[w]) == 0 {
					return
				}
				i := rapid.IntRange(0, len(model[w])-1).Draw(t, "which")
				q.drop(model[w][i])
				model[w] = append(model[w][:i:i], model[w][i+1:]...)
				if len(model[w]) == 0 {
					passed[w] = 0
				}
			},
			"": func(t *rapid.T) {
				n := 0
				for _, w := range ws {
					n += len(model[w])
				}
				if (q.next() == nil) != (n == 0) {
					t.Fatal("lost or invented")
				}
			},
		})
	})
}

// TestSessionsShareALogicalUnit: one session's deep queue does not keep another one's command behind it.
func TestSessionsShareALogicalUnit(t *testing.T) {
	disk := storetest.Delay(memory(t, 1<<20))
	inBubble(t, func(c *Config) { c.Limits.Workers = 1 }, []store.Store{disk}, func(t *testing.T, s *Server) {
		var peers [3]*peer
		for i := range peers {
			peers[i] = connect(t, s, func(p *peer) { p.isid[5] = byte(i) }).disk()
		}
		disk.Hold(storetest.Read)
		deep := func(p *peer, first uint32, n int) {
			for i := range n {
				p.command(cmd{cdb: read10(first+uint32(i), 1), read: 512})
				synctest.Wait()
			}
		}
		deep(peers[0], 100, 6)
		deep(peers[1], 200, 1)
		deep(peers[2], 300, 2)
		var order []int64
		for range 9 {
			order = append(order, (<-disk.Arrived()).Off/512)
			disk.Step()
		}
		require.Equal(t, []int64{100, 101, 200, 300, 102, 301, 103, 104, 105}, order)
		disk.Release()
		for i, n := range []int{6, 1, 2} {
			for range n {
				require.Zero(t, peers[i].response().Status())
			}
			peers[i].leave()
		}
	})
}
