package ddp

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const remote = RemoteWrite | RemoteRead

func TestReachFaults(t *testing.T) { // RFC 5041, section 7.1; RFC 5040, section 7.2
	table := NewTable()
	d := table.NewDomain()
	a, b := d.Join(), d.Join()
	mem := make([]byte, 100)
	r, err := d.Register(mem, 1000, remote, 0)
	require.NoError(t, err)
	own, err := d.Register(mem, 0, remote, a)
	require.NoError(t, err)
	foreign, err := table.NewDomain().Register(mem, 0, remote, 0)
	require.NoError(t, err)
	top, err := d.Register(mem, 1<<64-101, remote, 0)
	require.NoError(t, err)
	_, err = d.Register(mem, 1<<64-99, remote, 0)
	require.ErrorIs(t, err, ErrWrap)

	for _, c := range []struct {
		name   string
		stag   STag
		to, n  uint64
		need   Access
		stream StreamID
		want   Fault
		off    int
	}{
		{"all", r.STag(), 1000, 100, RemoteWrite, a, NoFault, 0},
		{"tail", r.STag(), 1099, 1, RemoteRead, b, NoFault, 99},
		{"nothing at the end", r.STag(), 1100, 0, RemoteRead, a, NoFault, 100},
		{"one too many", r.STag(), 1000, 101, RemoteWrite, a, FaultBounds, 0},
		{"before", r.STag(), 999, 1, RemoteWrite, a, FaultBounds, 0},
		{"behind", r.STag(), 1101, 0, RemoteWrite, a, FaultBounds, 0},
		{"wrap", r.STag(), 1<<64 - 1, 2, RemoteWrite, a, FaultWrap, 0},
		{"right", r.STag(), 1000, 1, RemoteAtomic, a, FaultAccess, 0},
		{"none", 0, 1000, 1, RemoteWrite, a, FaultSTag, 0},
		{"key", r.STag() ^ 3, 1000, 1, RemoteWrite, a, FaultSTag, 0},
		{"index", r.STag() ^ 0x100, 1000, 1, RemoteWrite, a, FaultSTag, 0},
		{"own", own.STag(), 0, 1, RemoteWrite, a, NoFault, 0},
		{"other stream", own.STag(), 0, 1, RemoteWrite, b, FaultStream, 0},
		{"other domain", foreign.STag(), 0, 1, RemoteWrite, a, FaultStream, 0},
		{"top of the offsets", top.STag(), 1<<64 - 2, 1, RemoteWrite, a, NoFault, 99},
	} {
		region, got, off, f := d.Reach(c.stag, c.to, c.n, c.need, c.stream)
		assert.Equal(t, c.want, f, c.name)
		if f == NoFault {
			assert.Equal(t, c.off, off, c.name)
			assert.Len(t, got, 100, c.name)
			region.Release()
		}
	}
	for _, r := range []*Region{r, own, foreign, top} {
		assert.Zero(t, r.state.Load()&holders, "a fault holds nothing")
	}
}

func TestRemoteInvalidation(t *testing.T) { // RFC 5040, section 8.1.1, rule 7
	d := NewTable().NewDomain()
	mem := make([]byte, 8)
	a := d.Join()
	bind := func(access Access, s StreamID) *Region {
		r, err := d.Register(mem, 0, access, s)
		require.NoError(t, err)
		return r
	}
	local, only := bind(LocalWrite, 0), bind(remote, 0)
	assert.Equal(t, FaultAccess, d.InvalidateRemote(local.STag(), a))
	stag := only.STag()
	assert.Equal(t, NoFault, d.InvalidateRemote(stag, a), "one stream: nobody shares it")
	assert.Equal(t, FaultSTag, d.InvalidateRemote(stag, a), "again")

	b := d.Join()
	shared, mine, claimed := bind(remote, 0), bind(remote, a), bind(remote|ClaimOnUse, 0)
	assert.Equal(t, FaultShared, d.InvalidateRemote(shared.STag(), a))
	assert.Equal(t, FaultStream, d.InvalidateRemote(mine.STag(), b))
	assert.Equal(t, NoFault, d.InvalidateRemote(mine.STag(), a))
	r, _, _, f := d.Reach(claimed.STag(), 0, 1, RemoteRead, b)
	require.Equal(t, NoFault, f)
	r.Release()
	assert.Equal(t, FaultStream, d.InvalidateRemote(claimed.STag(), a), "b was first")
	_, _, _, f = d.Reach(claimed.STag(), 0, 1, RemoteRead, a)
	assert.Equal(t, FaultStream, f)
	assert.Equal(t, NoFault, d.InvalidateRemote(claimed.STag(), b))
	assert.Equal(t, FaultSTag, d.InvalidateRemote(0, a))
}

// TestKeys walks a window through its bindings: no key comes back before all have been used, and
// the order is another one each time (RFC 5040, section 8.1.1, rule 8).
func TestKeys(t *testing.T) {
	d := NewTable().NewDomain()
	orders := map[[256]uint8]bool{}
	for range 8 {
		w, err := d.Reserve()
		require.NoError(t, err)
		assert.Zero(t, w.STag())
		var order [256]uint8
		seen := map[STag]bool{}
		for i := range order {
			s, err := w.Bind(make([]byte, 1), 0, remote, 0)
			require.NoError(t, err)
			assert.False(t, seen[s])
			seen[s] = true
			order[i] = s.Key()
			_, err = w.Bind(nil, 0, 0, 0)
			assert.ErrorIs(t, err, ErrBound)
			w.Invalidate()
			w.Invalidate()
		}
		assert.False(t, orders[order])
		orders[order] = true
		w.Free()
		w.Free()
		_, err = w.Bind(nil, 0, 0, 0)
		assert.ErrorIs(t, err, ErrFreed)
	}
}

// TestSTagsAreSparse: indices differ, none is 0, and neighbours are rare.
func TestSTagsAreSparse(t *testing.T) {
	d := NewTable().NewDomain()
	seen := map[uint32]bool{}
	near := 0
	for range 4096 {
		r, err := d.Reserve()
		require.NoError(t, err)
		assert.NotZero(t, r.index)
		assert.False(t, seen[r.index])
		if seen[r.index-1] || seen[r.index+1] {
			near++
		}
		seen[r.index] = true
	}
	assert.Less(t, near, 40, "4096 of 2^24 at random have about two neighbours")
}

// TestInvalidateWaitsForHoldersOnly: it returns as soon as the last non-blocking use is over.
func TestInvalidateWaitsForHoldersOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewTable().NewDomain()
		r, err := d.Register(make([]byte, 8), 0, remote, 0)
		require.NoError(t, err)
		stag := r.STag()
		_, ok := r.Acquire(stag)
		require.True(t, ok)
		_, ok = r.Hold()
		require.True(t, ok)
		var over atomic.Bool
		for range 2 { // both callers have the promise
			go func() { r.Invalidate(); over.Store(true) }()
		}
		synctest.Wait()
		assert.False(t, over.Load())
		_, ok = r.Acquire(stag)
		assert.False(t, ok, "nobody new gets in")
		r.Release()
		synctest.Wait()
		assert.False(t, over.Load())
		r.Release()
		synctest.Wait()
		assert.True(t, over.Load())
	})
}

// TestRebindRace binds and invalidates under the eyes of users: none sees memory of another binding.
func TestRebindRace(t *testing.T) {
	d := NewTable().NewDomain()
	w, err := d.Reserve()
	require.NoError(t, err)
	var current atomic.Uint64
	var users sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		users.Add(1)
		go func() {
			defer users.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				v := current.Load()
				mem, ok := w.Acquire(STag(v >> 8))
				if !ok {
					continue
				}
				if mem[0] != byte(v) {
					t.Errorf("octet %d of binding %d", mem[0], byte(v))
				}
				w.Release()
			}
		}()
	}
	for i := range 5000 {
		mem := []byte{byte(i)}
		s, err := w.Bind(mem, 0, remote, 0)
		require.NoError(t, err)
		current.Store(uint64(s)<<8 | uint64(byte(i)))
		w.Invalidate()
		mem[0] = ^mem[0]
	}
	close(stop)
	users.Wait()
}

func TestDomainClose(t *testing.T) {
	d := NewTable().NewDomain()
	id := d.Join()
	r, err := d.Reserve()
	require.NoError(t, err)
	assert.ErrorIs(t, d.Close(), ErrBusy)
	d.Leave(id)
	assert.ErrorIs(t, d.Close(), ErrBusy)
	assert.Equal(t, d, r.Domain())
	r.Free()
	assert.NoError(t, d.Close())
	_, err = d.Reserve()
	assert.ErrorIs(t, err, ErrFreed)
}

func TestCheckSegs(t *testing.T) {
	table := NewTable()
	d, e := table.NewDomain(), table.NewDomain()
	mem := make([]byte, 100)
	r, err := d.Register(mem, 7, LocalWrite, 0)
	require.NoError(t, err)
	for _, c := range []struct {
		seg  Seg
		dom  *Domain
		need Access
		want error
	}{
		{Seg{r, 0, 100}, d, LocalWrite, nil},
		{Seg{r, 100, 0}, d, 0, nil},
		{Seg{r, 1, 100}, d, 0, ErrBounds},
		{Seg{r, -1, 1}, d, 0, ErrBounds},
		{Seg{r, 1, -1}, d, 0, ErrBounds},
		{Seg{r, 101, 0}, d, 0, ErrBounds},
		{Seg{r, 1 << 62, 1 << 62}, d, 0, ErrBounds},
		{Seg{r, 0, 1}, d, RemoteRead, ErrAccess},
		{Seg{r, 0, 1}, e, 0, ErrInvalid},
		{Seg{nil, 0, 1}, d, 0, ErrInvalid},
	} {
		_, err := CheckSegs(c.dom, []Seg{c.seg}, c.need)
		assert.ErrorIs(t, err, c.want, "%+v", c)
	}
	s, to, access, ok := (&Seg{r, 5, 1}).Target()
	assert.True(t, ok)
	assert.Equal(t, []any{r.STag(), uint64(12), LocalWrite}, []any{s, to, access})
	r.Invalidate()
	_, err = CheckSegs(d, []Seg{{r, 0, 0}}, 0)
	assert.ErrorIs(t, err, ErrInvalid)
	_, _, _, ok = (&Seg{r, 5, 1}).Target()
	assert.False(t, ok)
}

func BenchmarkReach(b *testing.B) {
	d := NewTable().NewDomain()
	var last *Region
	for range 1000 {
		r, err := d.Register(make([]byte, 4096), 0, remote, 0)
		if err != nil {
			b.Fatal(err)
		}
		last = r
	}
	s := last.STag()
	b.ReportAllocs()
	for range b.N {
		r, _, _, f := d.Reach(s, 100, 1000, RemoteWrite, 1)
		if f != NoFault {
			b.Fatal(f)
		}
		r.Release()
	}
}
