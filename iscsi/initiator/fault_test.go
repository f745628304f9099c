package initiator_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/store"
)

// Bounds of one run with faults.
const (
	faultRuns    = 200
	faultBlocks  = 3
	faultClients = 6
	faultOps     = 20 // per client
)

// faultPlan makes a network's faults from a seed. What happens to a connection depends on its number, the direction and the octet alone, so that
// a seed repeats it however goroutines are scheduled. Connections get better with time, so that every run comes to an end.
//
// Writes may come late only where a login can replace the session that they belong to: without that nothing but time keeps them away.
func faultPlan(seed uint64, lateness bool) plan {
	return func(conn int, out bool) []fault {
		if conn > 40 {
			return nil
		}
		side := uint64(conn) << 1
		if out {
			side |= 1
		}
		rnd := rand.New(rand.NewPCG(seed, side))
		var list []fault
		at := int64(0)
		for range rnd.IntN(4) {
			at += 1 + rnd.Int64N(int64(2000)<<rnd.IntN(4))
			f := fault{at: at, do: deed(rnd.IntN(5)), wait: time.Duration(rnd.IntN(8000)) * time.Millisecond}
			if f.do == late && !(out && lateness) {
				f.do = swallow
			}
			list = append(list, f)
			if f.do == cut || f.do == swallow || f.do == late {
				break
			}
		}
		return list
	}
}

// blockInput and blockOutput are one command on one block.
type blockInput struct {
	block int
	write bool
	value uint64
}

type blockOutput struct{ value uint64 }

// blockModel is a block that holds one value.
var blockModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := make([][]porcupine.Operation, faultBlocks)
		for _, op := range history {
			b := op.Input.(blockInput).block
			parts[b] = append(parts[b], op)
		}
		return parts
	},
	Init: func() any { return uint64(0) },
	Step: func(state, input, output any) (bool, any) {
		in, out := input.(blockInput), output.(blockOutput)
		if in.write {
			return true, in.value
		}
		return out.value == state.(uint64), state
	},
	DescribeOperation: func(input, output any) string {
		in, out := input.(blockInput), output.(blockOutput)
		if in.write {
			return fmt.Sprintf("write(%d, %x)", in.block, in.value)
		}
		return fmt.Sprintf("read(%d) = %x", in.block, out.value)
	},
}

// TestBlocksAreLinearizableUnderFaults lets clients read and write a few blocks while the network cuts, swallows, corrupts and delays, on TCP with
// digests and on iSER with CRC, by one path and by two, at ErrorRecoveryLevel 0, 1 and 2, with one connection per session and with several, and checks what they saw: no write that was answered is lost, no read is stale. FAULT_SEED runs one seed again.
func TestBlocksAreLinearizableUnderFaults(t *testing.T) {
	first, runs := uint64(1), uint64(faultRuns)
	if testing.Short() {
		runs = 20
	}
	if s := os.Getenv("FAULT_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 0, 64)
		require.NoError(t, err)
		first, runs = n, 1
	}
	for seed := first; seed < first+runs; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { faultRun(t, seed) })
		})
		if t.Failed() {
			return
		}
	}
}

// faultRun is the run of a seed: which also chooses transport and paths.
func faultRun(t *testing.T, seed uint64) {
	transport, portals := [...]string{"tcp", "iser"}[seed%2], twoPortals[:1+seed/2%2]
	s := prepareSim(t, transport, faultBlocks*8*512)
	s.tag = uint16(seed / 4 % 2)
	s.disk = &slowStore{Memory: s.store, seed: seed, count: map[int64]uint64{}}
	s.begin(portals)
	defer s.end()
	cfg := s.config()
	cfg.ReplacementTimeout = 10 * time.Minute
	cfg.Session.PingInterval, cfg.Session.PingTimeout = time.Second, 2*time.Second
	cfg.Session.CommandTimeout, cfg.Session.AbortTimeout = 10*time.Second, 3*time.Second
	cfg.Session.Settings.ErrorRecoveryLevel = int(seed / 8 % 3)
	cfg.Session.Settings.MaxConnections = 1 + int(seed/16%3)
	cfg.OnPath = func(e initiator.PathEvent) { s.net.log("%v (%v)", e.PathInfo, e.Err) }
	d := s.open(cfg, portals...)
	s.net.mu.Lock()
	s.net.plan = faultPlan(seed, len(portals) == 1 || s.tag != 0)
	s.net.mu.Unlock()
	for _, p := range portals { // the first connections were without faults
		s.net.unplug(p)
		s.net.plug(p)
	}

	var mu sync.Mutex
	var history []porcupine.Operation
	var wg sync.WaitGroup
	for client := range faultClients {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, 1000+uint64(client)))
			b := make([]byte, 8*512)
			for i := range faultOps {
				in := blockInput{block: rnd.IntN(faultBlocks), write: rnd.IntN(2) == 0, value: uint64(client+1)<<32 | uint64(i+1)}
				op := porcupine.Operation{ClientId: client, Input: in, Call: int64(time.Since(s.net.begun))}
				out := blockOutput{}
				var err error
				off := int64(in.block) * int64(len(b))
				if in.write {
					fillBlock(b, in.value)
					_, err = d.WriteAt(b, off)
				} else {
					_, err = d.ReadAt(b, off)
					out.value = valueOf(t, b)
				}
				op.Output, op.Return = out, int64(time.Since(s.net.begun))
				s.net.log("client %d: %s: %v", client, blockModel.DescribeOperation(in, out), err)
				if err != nil {
					t.Errorf("seed %d: client %d: %v", seed, client, err)
					return
				}
				mu.Lock()
				history = append(history, op)
				mu.Unlock()
				<-time.After(time.Duration(rnd.IntN(150)) * time.Millisecond)
			}
		})
	}
	wg.Wait()
	require.NoError(t, d.Flush(context.Background()))
	stats := d.Stats()
	require.NoError(t, d.Close())
	s.net.log("%+v", stats)
	// Nothing may come late: what the store holds now is what the clients have to have agreed on.
	for i := range faultBlocks {
		op := porcupine.Operation{ClientId: faultClients, Input: blockInput{block: i}, Call: int64(time.Since(s.net.begun)) + int64(i), Return: int64(time.Since(s.net.begun)) + int64(i)}
		op.Output = blockOutput{value: stored(t, s.store, i)}
		history = append(history, op)
	}
	if r := porcupine.CheckOperationsTimeout(blockModel, history, 0); r != porcupine.Ok {
		t.Errorf("seed %d, %s, %d paths: what was read is not what was written: %v", seed, transport, len(portals), r)
	}
	if t.Failed() || os.Getenv("FAULT_SEED") != "" {
		t.Logf("FAULT_SEED=%d repeats it. What happened:\n%s", seed, s.net.story())
	}
}

// slowStore takes its time for some commands, so that they are under way when their session is lost. Which, is the seed's and the block's affair.
type slowStore struct {
	*store.Memory
	seed  uint64
	mu    sync.Mutex
	count map[int64]uint64
}

func (s *slowStore) Info() store.Info {
	i := s.Memory.Info()
	i.Blocks = true
	return i
}

func (s *slowStore) pause(off int64) {
	s.mu.Lock()
	s.count[off]++
	rnd := rand.New(rand.NewPCG(s.seed^uint64(off), s.count[off]))
	s.mu.Unlock()
	if rnd.IntN(4) == 0 {
		<-time.After(time.Duration(rnd.IntN(3000)) * time.Millisecond)
	}
}

func (s *slowStore) ReadAt(p []byte, off int64) (int, error) {
	s.pause(off)
	return s.Memory.ReadAt(p, off)
}

func (s *slowStore) WriteAt(p []byte, off int64) (int, error) {
	s.pause(off)
	return s.Memory.WriteAt(p, off)
}

// fillBlock fills a block with a value, all over, so that a mixture shows.
func fillBlock(b []byte, v uint64) {
	for i := 0; i < len(b); i += 8 {
		binary.BigEndian.PutUint64(b[i:], v)
	}
}

// valueOf is a block's value. A command is not atomic beyond one sector, so that the first sector counts; each has to be of one piece.
func valueOf(t *testing.T, b []byte) uint64 {
	v := binary.BigEndian.Uint64(b)
	for i := 8; i < 512; i += 8 {
		if binary.BigEndian.Uint64(b[i:]) != v {
			t.Errorf("a sector of two writes: %x and %x", v, binary.BigEndian.Uint64(b[i:]))
			break
		}
	}
	return v
}

func stored(t *testing.T, m *store.Memory, i int) uint64 {
	b := make([]byte, 512)
	_, err := m.ReadAt(b, int64(i)*8*512)
	require.NoError(t, err)
	return valueOf(t, b)
}
