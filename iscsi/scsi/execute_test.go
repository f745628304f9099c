package scsi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/store/storetest"
)

// stage is a Transfer with one buffer that is lent again and again: it allocates nothing.
type stage struct {
	buf    []byte
	in, on int64
}

func (s *stage) InLength() int64  { return s.in }
func (s *stage) OutLength() int64 { return s.on }
func (s *stage) Chunk() int       { return cap(s.buf) }
func (s *stage) Bytes() []byte    { return s.buf }
func (s *stage) Release()         {}

func (s *stage) Buffer(n int) (scsi.Buffer, error) {
	s.buf = s.buf[:n]
	return s, nil
}
func (s *stage) In(scsi.Buffer, int64, int) error { return nil }
func (s *stage) Out(_ int64, n int) (scsi.Buffer, error) {
	s.buf = s.buf[:n]
	return s, nil
}

func nullDevice(tb testing.TB, s store.Store) (*scsi.Device, *scsi.Nexus) {
	tb.Helper()
	lu, err := scsi.NewLU(s, scsi.LUConfig{})
	require.NoError(tb, err)
	d := scsi.NewDevice(testPort)
	require.NoError(tb, d.Add(0, lu))
	n := d.NewNexus("a")
	c := scsi.TestUnitReady()
	d.Execute(context.Background(), n, 0, c[:], nil)
	return d, n
}

func TestReadAndWriteAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("pools drop at random under the race detector")
	}
	null, err := store.NewNull(1 << 40)
	require.NoError(t, err)
	defer null.Close()
	for _, s := range []store.Store{null, memory(t, 1<<20)} {
		d, n := nullDevice(t, s)
		x := &stage{buf: make([]byte, 64<<10), in: 128 << 10, on: 128 << 10}
		for _, c := range []scsi.CDB{scsi.Read(0, 256, 0), scsi.Write(0, 256, 0), scsi.Write(0, 8, scsi.FUA), scsi.Read16(0, 8, 0), scsi.TestUnitReady(), scsi.SynchronizeCache(0, 0)} {
			ctx := context.Background()
			assert.Zero(t, testing.AllocsPerRun(200, func() {
				p := d.Plan(0, c[:])
				if r := d.Execute(ctx, n, 0, c[:], x); r.Status != scsi.StatusGood || r.In != p.DataIn || r.Out != p.DataOut {
					t.Fatal(r.Status)
				}
			}), "%s on %s", scsi.OpcodeName(c[:]), s.Info().Kind)
		}
	}
}

func BenchmarkExecute(b *testing.B) {
	null, err := store.NewNull(1 << 40)
	require.NoError(b, err)
	defer null.Close()
	mem, err := store.NewMemory(64 << 20)
	require.NoError(b, err)
	defer mem.Close()
	for _, s := range []store.Store{null, mem} {
		for _, c := range []scsi.CDB{scsi.Read(0, 8, 0), scsi.Write(0, 8, 0), scsi.Read(0, 2048, 0)} {
			d, n := nullDevice(b, s)
			size := d.Plan(0, c[:])
			b.Run(fmt.Sprintf("%s/%s/%d", s.Info().Kind, scsi.OpcodeName(c[:]), size.DataIn+size.DataOut), func(b *testing.B) {
				x := &stage{buf: make([]byte, 256<<10), in: size.DataIn, on: size.DataOut}
				b.SetBytes(size.DataIn + size.DataOut)
				b.ReportAllocs()
				for b.Loop() {
					d.Execute(context.Background(), n, 0, c[:], x)
				}
			})
		}
	}
}

// A disk that forgets, driven by random commands and losing power at random: what was acknowledged
// as durable is there, and every block holds a value that was written to it, no older than the last
// durable one.
func TestDurableWritesSurviveCrashes(t *testing.T) {
	const blocks, bs = 64, 512
	rapid.Check(t, func(rt *rapid.T) {
		mem, err := store.NewMemory(blocks * bs)
		if err != nil {
			rt.Fatal(err)
		}
		defer mem.Close()
		disk := storetest.Forget(mem)
		lu, err := scsi.NewLU(disk, scsi.LUConfig{WriteThrough: rapid.Bool().Draw(rt, "write through")})
		if err != nil {
			rt.Fatal(err)
		}
		// possible[i] are the values that block i may have after a crash; the last one is the
		// current one.
		var possible [blocks][]byte
		for i := range possible {
			possible[i] = []byte{0}
		}
		run := func(rt *rapid.T, c scsi.CDB, out []byte, in int64) []byte {
			w := &wire{expect: in, out: out, chunk: 4096}
			if r := lu.Execute(context.Background(), nil, c[:], w); r.Status != scsi.StatusGood || r.Err != nil {
				rt.Fatalf("%s: %v %x", scsi.OpcodeName(c[:]), r.Status, r.Sense())
			}
			return w.in
		}
		seed := byte(0)
		extent := func(rt *rapid.T) (lba, n int) {
			lba = rapid.IntRange(0, blocks-1).Draw(rt, "lba")
			return lba, rapid.IntRange(1, blocks-lba).Draw(rt, "blocks")
		}
		wrote := func(lba, n int, value byte, durable bool) {
			for i := lba; i < lba+n; i++ {
				if durable {
					possible[i] = possible[i][:0]
				}
				possible[i] = append(possible[i], value)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				lba, n := extent(rt)
				seed++
				flags := rapid.SampledFrom([]byte{0, scsi.FUA}).Draw(rt, "flags")
				run(rt, scsi.Write(uint64(lba), uint32(n), flags), bytes.Repeat([]byte{seed}, n*bs), 0)
				wrote(lba, n, seed, flags != 0 || !lu.WriteCache())
			},
			"unmap": func(rt *rapid.T) {
				lba, n := extent(rt)
				run(rt, scsi.Unmap(1), scsi.AppendUnmap(nil, []scsi.Extent{{LBA: uint64(lba), Blocks: uint32(n)}}), 0)
				wrote(lba, n, 0, !lu.WriteCache())
			},
			"same": func(rt *rapid.T) {
				lba, n := extent(rt)
				seed++
				run(rt, scsi.WriteSame(uint64(lba), uint32(n), false), bytes.Repeat([]byte{seed}, bs), 0)
				wrote(lba, n, seed, !lu.WriteCache())
			},
			"flush": func(rt *rapid.T) {
				run(rt, scsi.SynchronizeCache(0, 0), nil, 0)
				for i, p := range possible {
					possible[i] = p[len(p)-1:]
				}
			},
			"crash": func(rt *rapid.T) {
				keep := rapid.Uint64().Draw(rt, "what the cache wrote back")
				if err := disk.Crash(func(storetest.Op) bool {
					keep = keep>>1 | keep<<63
					return keep&1 != 0
				}); err != nil {
					rt.Fatal(err)
				}
				got := run(rt, scsi.Read(0, blocks, 0), nil, blocks*bs)
				for i := range possible {
					block := got[i*bs : (i+1)*bs]
					if !bytes.Contains(possible[i], block[:1]) {
						rt.Fatalf("block %d holds %d, which is none of %d", i, block[0], possible[i])
					}
					if !bytes.Equal(block, bytes.Repeat(block[:1], bs)) {
						rt.Fatalf("block %d is torn", i)
					}
					possible[i] = []byte{block[0]}
				}
			},
			"read": func(rt *rapid.T) {
				got := run(rt, scsi.Read(0, blocks, 0), nil, blocks*bs)
				for i, p := range possible {
					if got[i*bs] != p[len(p)-1] {
						rt.Fatalf("block %d holds %d, must be %d", i, got[i*bs], p[len(p)-1])
					}
				}
			},
		})
	})
}

// FuzzExecute gives any CDB with any data to a Device: nothing panics, nothing is moved beyond the
// plan, every buffer comes back, and every answer is a defined one.
func FuzzExecute(f *testing.F) {
	for _, c := range []scsi.CDB{
		scsi.TestUnitReady(), scsi.Inquiry(255), scsi.InquiryVPD(0x83, 255), scsi.Read(0, 8, scsi.FUA), scsi.Read16(1<<63, 1<<31, 0), scsi.Write(1, 2, 0),
		scsi.Verify(0, 3, scsi.VerifyData), scsi.CompareAndWrite(0, 1, 0), scsi.WriteSame(0, 5, true), scsi.WriteZeroes(1, 9, false),
		scsi.ModeSense6(0x3f, 255), scsi.ModeSense10(8, 100), scsi.ReportLUNs(64), scsi.ReportSupportedOpcodes(1000),
		scsi.GetLBAStatus(0, 100), scsi.RequestSense(252), scsi.ReadCapacity16(), scsi.Reserve6(), scsi.StartStop(false),
	} {
		f.Add(c.Append(nil), []byte("data"), uint64(0), uint16(512), uint16(1024))
	}
	list := scsi.AppendUnmap(nil, []scsi.Extent{{LBA: 1, Blocks: 4}, {LBA: 3, Blocks: 4}})
	f.Add(scsi.Unmap(2).Append(nil), list, uint64(0), uint16(0), uint16(len(list)))
	mode := append([]byte{0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 2, 0}, 0x08, 0x12, 0x04, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	f.Add(scsi.ModeSelect6(uint8(len(mode))).Append(nil), mode, uint64(1)<<48, uint16(0), uint16(len(mode)))
	f.Fuzz(func(t *testing.T, cdb, data []byte, lun uint64, edtl, outLength uint16) {
		mem, err := store.NewMemory(64 << 10)
		require.NoError(t, err)
		defer mem.Close()
		lu, err := scsi.NewLU(storetest.Forget(mem), scsi.LUConfig{MaxTransfer: 32 << 10})
		require.NoError(t, err)
		d := scsi.NewDevice(testPort)
		require.NoError(t, d.Add(0, lu))
		n := d.NewNexus("fuzz")
		out := make([]byte, outLength)
		copy(out, data)
		for range 2 { // the first one may end with a unit attention
			w := &wire{expect: int64(edtl), out: out, chunk: 4096}
			plan := d.Plan(lun, cdb)
			r := d.Execute(context.Background(), n, lun, cdb, w)
			if w.broken != "" || w.lent != 0 {
				t.Fatalf("%x: %s, %d buffers lent", cdb, w.broken, w.lent)
			}
			if plan.DataIn < 0 || plan.DataOut < 0 || r.In > plan.DataIn || r.Out > plan.DataOut || r.In < 0 || r.Out < 0 {
				t.Fatalf("%x: moves %d and %d, planned %+v", cdb, r.In, r.Out, plan)
			}
			if r.Err != nil {
				t.Fatalf("%x: %v", cdb, r.Err)
			}
			s, ok := scsi.ParseSense(r.Sense())
			if (r.Status == scsi.StatusCheckCondition) != ok {
				t.Fatalf("%x: %v with sense %x", cdb, r.Status, r.Sense())
			}
			if ok && s.FieldValid && s.InCDB && int(s.Field) >= len(cdb) {
				t.Fatalf("%x: points to octet %d", cdb, s.Field)
			}
		}
	})
}

func TestExecuteHonoursContext(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c := scsi.Write(0, 1, 0)
	res := r.lu.Execute(ctx, nil, c[:], &wire{out: pattern(512, 1), chunk: 4096})
	assert.True(t, errors.Is(res.Err, context.Canceled))
	assert.Equal(t, make([]byte, 512), r.read(0, 1))
}
