package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"goiwarp/internal/faultproxy"
)

const mib = 1 << 20

// patchy are size octets of which only the parts at the given offsets, of 100000 octets each, are not zeros.
func patchy(size int, at ...int) []byte {
	b := make([]byte, size)
	for i, off := range at {
		copy(b[off:], randomBytes(byte(i+1), 100000))
	}
	return b
}

// fill writes a disk's contents where they are not zeros.
func (s *countingStore) fill(t testing.TB, b []byte) {
	t.Helper()
	for off := 0; off < len(b); off += 4096 {
		p := b[off:min(off+4096, len(b))]
		if !allZero(p) {
			_, err := s.Memory.WriteAt(p, int64(off))
			require.NoError(t, err)
		}
	}
}

// TestCopySkipsWhatIsUnmapped: holes are neither read nor sent, on neither side, and the copy is right all the same.
func TestCopySkipsWhatIsUnmapped(t *testing.T) {
	const size = 64 * mib
	want := patchy(size, 0, 5*mib+4096, 40*mib, size-100000)
	s := newTestSite(t, size, size)
	src, dst := s.disks[0], s.disks[1]
	src.fill(t, want)

	for name, urls := range map[string][2]string{"tcp": {s.url("0"), s.url("1")}, "iser": {s.isers("0"), s.isers("1")}} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, dst.Memory.Discard(0, size))
			src.reset()
			dst.reset()
			out := mustRun(t, "cp", "--verify", urls[0], urls[1])
			require.Contains(t, out, "of it zeros that were not moved")
			require.Equal(t, want, dst.contents(t, 0, size))
			assert.Less(t, src.read.Load(), int64(mib), "only what is mapped was read")
			assert.Less(t, dst.written.Load(), int64(mib), "and written")
			assert.Zero(t, dst.discarded.Load(), "the destination was zeros already")
		})
	}

	// What the destination held before has to go, with and without its room.
	for _, unmap := range []string{"--unmap", "--unmap=false"} {
		dst.fill(t, randomBytes(8, 20*mib))
		dst.reset()
		mustRun(t, "cp", "--verify", unmap, s.url("0"), s.url("1"))
		require.Equal(t, want, dst.contents(t, 0, size))
		assert.Less(t, dst.written.Load(), int64(mib))
	}

	src.reset()
	mustRun(t, "cp", "--sparse=false", s.url("0"), s.url("1"))
	require.EqualValues(t, size, src.read.Load())
	require.Equal(t, want, dst.contents(t, 0, size))
}

// TestCopyMakesSparseFiles: a file gets holes, and holes of a file are not sent; what was in the file before is gone.
func TestCopyMakesSparseFiles(t *testing.T) {
	const size = 32 * mib
	want := patchy(size, 3*mib, 20*mib)
	s := newTestSite(t, size, size)
	s.disks[0].fill(t, want)
	path := writeFile(t, "copy.raw", randomBytes(5, 40*mib))
	mustRun(t, "cp", "--verify", s.url("0"), path)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	f, err := openSource(path)
	require.NoError(t, err)
	defer f.Close()
	zero, n, err := f.Extent(t.Context(), 8*mib)
	require.NoError(t, err)
	holes := zero && n > 8*mib
	t.Logf("the file system tells of holes: %v", holes)

	mustRun(t, "cp", "--verify", path, s.url("1"))
	require.Equal(t, want, s.disks[1].contents(t, 0, size))
	if holes {
		assert.Less(t, s.disks[1].written.Load(), int64(2*mib))
	}

	// Zeros that were written out count as zeros with --unmap.
	full := writeFile(t, "full.raw", want)
	s.disks[1].fill(t, randomBytes(6, size))
	s.disks[1].reset()
	mustRun(t, "cp", "--verify", "--unmap", "--sparse=false", full, s.url("1"))
	require.Equal(t, want, s.disks[1].contents(t, 0, size))
	assert.Less(t, s.disks[1].written.Load(), int64(5*mib))
	assert.Positive(t, s.disks[1].discarded.Load())
}

// TestCopyOddSizes: sizes that are no multiple of anything arrive whole.
func TestCopyOddSizes(t *testing.T) {
	s := newTestSite(t, 4*mib)
	for _, n := range []int{1, 511, 513, mib - 1, mib + 1, 3*mib + 12345} {
		in := randomBytes(byte(n), n)
		before := s.disks[0].contents(t, int64(n), 4*mib-int64(n))
		mustRun(t, "cp", "--verify", writeFile(t, "in", in), s.isers("0"))
		require.Equal(t, in, s.disks[0].contents(t, 0, int64(n)))
		require.Equal(t, before, s.disks[0].contents(t, int64(n), 4*mib-int64(n)), "what lies behind stays")
	}
}

func TestCopyVerifyFindsCorruption(t *testing.T) {
	s := newTestSite(t, 8*mib)
	disk := s.disks[0]
	disk.onWrite = func(p []byte, off int64) error {
		if off <= 5*mib+99 && 5*mib+99 < off+int64(len(p)) {
			p[5*mib+99-off] ^= 1
		}
		return nil
	}
	in := writeFile(t, "in", randomBytes(1, 8*mib))
	refused(t, false, "differs from what was written, within the 1048576 octets at 5242880", "cp", "--verify", in, s.url("0"))
}

// TestCopySurvives: connections that are cut at an octet, each of them, are made again, and all of the data arrives, once.
func TestCopySurvives(t *testing.T) {
	const size = 32 * mib
	s := newTestSite(t, size, size)
	in := randomBytes(5, size)
	s.disks[1].fill(t, in)
	for name, dir := range map[string]faultproxy.Direction{"writing": faultproxy.ToTarget, "reading": faultproxy.FromTarget} {
		t.Run(name, func(t *testing.T) {
			p := faultproxy.New(t, s.tcp, faultproxy.Script{Steps: []faultproxy.Step{{Dir: dir, Offset: 20 * mib, Do: faultproxy.Cut}}})
			through := "iscsi://" + p.Addr() + "/" + siteTarget
			var out string
			if dir == faultproxy.ToTarget {
				out = mustRun(t, "cp", "--verify", writeFile(t, "in", in), through+"/0")
				require.True(t, bytes.Equal(in, s.disks[0].contents(t, 0, size)))
			} else {
				file := filepath.Join(t.TempDir(), "out")
				out = mustRun(t, "cp", through+"/1", file)
				got, err := os.ReadFile(file)
				require.NoError(t, err)
				require.True(t, bytes.Equal(in, got))
			}
			require.Regexp(t, `LUN \d of \S+: 1 lost connection was made again, \d+ commands? sent again\n`, out)
		})
	}
}

// TestCopyResumes: a connection that is cut at an octet, and that cannot be made again, ends the copy; the same command goes on from what was noted, and does
// not move again what lies before.
func TestCopyResumes(t *testing.T) {
	const size = 32 * mib
	s := newTestSite(t, size, size)
	in := randomBytes(3, size)
	for name, c := range map[string]struct {
		dir  faultproxy.Direction
		args func(proxy string) []string
		got  func(t *testing.T) []byte
	}{
		"to a disk": {faultproxy.ToTarget, func(proxy string) []string {
			return []string{filepath.Join(t.TempDir(), "in"), proxy + "/0"}
		}, func(t *testing.T) []byte { return s.disks[0].contents(t, 0, size) }},
		"to a file": {faultproxy.FromTarget, func(proxy string) []string {
			return []string{proxy + "/1", filepath.Join(t.TempDir(), "out")}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := faultproxy.New(t, s.tcp, faultproxy.Script{Steps: []faultproxy.Step{{Dir: c.dir, Offset: 20 * mib, Do: faultproxy.Cut}}})
			args := c.args("iscsi://" + p.Addr() + "/" + siteTarget)
			if c.got != nil {
				require.NoError(t, os.WriteFile(args[0], in, 0o600))
			} else {
				s.disks[1].fill(t, in)
			}
			state := filepath.Join(t.TempDir(), "state")
			args = append([]string{"cp", "--verify", "--resume", state, "--checkpoint", "2M", "--replacement-timeout", "100ms"}, args...)
			go func() {
				<-p.Reached(0)
				p.Close()
			}()
			r := iserTool(t.Context(), args...)
			require.ErrorContains(t, r.err, "the same command goes on where it was")
			was, err := loadState(state)
			require.NoError(t, err)
			require.NotNil(t, was)
			require.Positive(t, was.Done)
			require.Less(t, was.Done, int64(20*mib))

			// Another source or destination is not gone on with, and nothing is touched.
			other := append([]string{}, args...)
			other[len(other)-1] = strings.Replace(other[len(other)-1], p.Addr(), s.tcp, 1)
			other[len(other)-2] = writeFile(t, "other", randomBytes(4, size))
			before := s.disks[0].contents(t, 0, size)
			refused(t, false, "belongs to another copy: the source was ", other...)
			require.Equal(t, before, s.disks[0].contents(t, 0, size))

			s.disks[0].reset()
			s.disks[1].reset()
			args[len(args)-1] = strings.Replace(args[len(args)-1], p.Addr(), s.tcp, 1) // by another way: it is the same disk
			args[len(args)-2] = strings.Replace(args[len(args)-2], p.Addr(), s.tcp, 1)
			out := mustRun(t, args...)
			require.Contains(t, out, octets(was.Done)+" had been copied before")
			if c.got != nil {
				require.True(t, bytes.Equal(in, c.got(t)))
				require.EqualValues(t, size-was.Done, s.disks[0].written.Load())
			} else {
				got, err := os.ReadFile(args[len(args)-1])
				require.NoError(t, err)
				require.True(t, bytes.Equal(in, got))
			}
			require.NoFileExists(t, state)
		})
	}
}

// TestCopyState: a state is one whole file at any time, and what is none is refused.
func TestCopyState(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	for i := range int64(5) {
		require.NoError(t, (&copyState{Version: 1, Source: "a", Destination: "b", Size: 10, Done: i}).save(path))
		s, err := loadState(path)
		require.NoError(t, err)
		require.Equal(t, i, s.Done)
	}
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, names, 1, "nothing else is left behind")
	for _, text := range []string{"", "hello", `{"version":2}`, `{"version":1,"size":1,"done":2}`, `{"version":1,"more":1}`} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := loadState(path)
		require.EqualError(t, err, path+" does not hold the state of a copy; remove it to begin anew")
	}
	s, err := loadState(filepath.Join(dir, "none"))
	require.NoError(t, err)
	require.Nil(t, s)
	require.Error(t, (&copyState{}).save(filepath.Join(dir, "no", "folder")))
}

func TestCopyRefuses(t *testing.T) {
	s := newTestSite(t, mib)
	small, large := writeFile(t, "small", make([]byte, 1000)), writeFile(t, "large", make([]byte, 2*mib))
	refused(t, true, "--checkpoint 0", "cp", "--checkpoint", "0", small, s.url("0"))
	refused(t, false, "larger", "cp", large, s.url("0"))
	refused(t, false, "are the same file", "cp", small, small)
	refused(t, false, "are the same disk", "cp", s.url("0"), strings.Replace(s.url("0"), "iscsi:", "iser:", 1))
	refused(t, false, "no such file", "cp", "--resume", "/nonexistent/state", small, s.url("0"))
	require.Zero(t, s.disks[0].written.Load())
	b, err := os.ReadFile(small)
	require.NoError(t, err)
	require.Len(t, b, 1000)
}

// fakeEnd is an end of a copy in memory, whose map of zeros is what it says.
type fakeEnd struct {
	b     []byte
	grain int64
	told  []bool // per grain: the map says zeros
}

func (e *fakeEnd) Size() int64               { return int64(len(e.b)) }
func (e *fakeEnd) Alloc(int) (memory, error) { return nil, nil }
func (e *fakeEnd) Begin(int64) error         { return nil }
func (e *fakeEnd) Grain() int64              { return e.grain }
func (e *fakeEnd) Close() error              { return nil }
func (e *fakeEnd) String() string            { return "fake" }
func (e *fakeEnd) Flush(context.Context) error {
	return nil
}
func (e *fakeEnd) Identity(context.Context, bool) (string, error) { return "fake", nil }
func (e *fakeEnd) Read(_ context.Context, m memory, n int, off int64) error {
	copy(m.Bytes()[:n], e.b[off:])
	return nil
}

func (e *fakeEnd) Write(_ context.Context, m memory, n int, off int64) error {
	copy(e.b[off:off+int64(n)], m.Bytes())
	return nil
}

func (e *fakeEnd) Zero(_ context.Context, off, n int64, _ bool) error {
	if off%e.grain != 0 || n%e.grain != 0 {
		return fmt.Errorf("zeros at %d for %d: grain %d", off, n, e.grain)
	}
	clear(e.b[off : off+n])
	return nil
}

func (e *fakeEnd) Extent(_ context.Context, off int64) (bool, int64, error) {
	i := int(off / e.grain)
	if i >= len(e.told) {
		return false, e.Size() - off, nil
	}
	k := i
	for k < len(e.told) && e.told[k] == e.told[i] {
		k++
	}
	return e.told[i], min(int64(k)*e.grain, e.Size()) - off, nil
}

// TestCopyIsExact: whatever is mapped where, at whatever grains, the destination becomes the source.
func TestCopyIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		grains := rapid.SampledFrom([]int64{512, 4096})
		src := &fakeEnd{grain: grains.Draw(t, "source grain")}
		dst := &fakeEnd{grain: grains.Draw(t, "destination grain")}
		size := rapid.Int64Range(1, mib+mib/4).Draw(t, "size")
		src.b = randomBytes(1, int(size))
		dst.b = randomBytes(2, int(size+dst.grain)/int(dst.grain)*int(dst.grain))
		for _, e := range []*fakeEnd{src, dst} {
			for off := int64(0); off+e.grain <= e.Size(); {
				zero := rapid.Bool().Draw(t, "zero")
				for range rapid.IntRange(1, 400).Draw(t, "run") {
					if off+e.grain > e.Size() {
						break
					}
					if zero {
						clear(e.b[off : off+e.grain])
					}
					e.told = append(e.told, zero)
					off += e.grain
				}
			}
		}
		behind := bytes.Clone(dst.b[size:])
		c := &copier{
			copyOptions: copyOptions{sparse: true, verify: true, unmap: rapid.Bool().Draw(t, "unmap"), every: 64 << 10},
			src:         src, dst: dst, size: size, progress: func(int) {},
		}
		last := int64(0)
		c.note = func(done int64) error { last = max(last, done); return nil }
		require.NoError(t, c.run(t.Context()))
		require.True(t, bytes.Equal(src.b, dst.b[:size]))
		require.Equal(t, behind, dst.b[size:], "what lies behind stays")
		require.LessOrEqual(t, last, size)
		dst.told = nil
		require.NoError(t, c.check(t.Context()))
		dst.b[rapid.Int64Range(0, size-1).Draw(t, "spoilt")] ^= 0x40
		require.ErrorContains(t, c.check(t.Context()), "differs")
	})
}
