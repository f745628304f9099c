package tcp

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"goiwarp/iscsi"
)

func newShare(poolOctets, shareOctets int) *share {
	return &share{pool: NewPool(poolOctets), limit: int64(shareOctets)}
}

// TestPoolModel lends and takes back at random: no two buffers share an octet, all are page-aligned, and when
// all are back the largest can be lent again.
func TestPoolModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newShare(2*zoneSize, 2*zoneSize)
		type loan struct {
			b    iscsi.Buffer
			mark byte
		}
		var loans []loan
		giveBack := func(k int) {
			l := loans[k]
			m := l.b.Bytes()
			if len(m) > 0 {
				require.Equal(t, []byte{l.mark, l.mark}, []byte{m[0], m[len(m)-1]}, "someone else wrote to it")
			}
			l.b.Release()
			loans = append(loans[:k], loans[k+1:]...)
		}
		steps := rapid.SliceOfN(rapid.IntRange(-50, 5<<20), 1, 200).Draw(t, "steps")
		for k, n := range steps {
			if n < 0 {
				if len(loans) > 0 {
					giveBack(-n % len(loans))
				}
				continue
			}
			if k%3 != 0 {
				n %= 20000
			}
			b, err := s.alloc(n)
			if err != nil {
				require.ErrorIs(t, err, iscsi.ErrNoMemory)
				continue
			}
			m := b.Bytes()
			require.Len(t, m, n)
			require.Zero(t, uintptr(unsafe.Pointer(unsafe.SliceData(m)))%page)
			mark := byte(k)
			if n > 0 {
				m[0], m[n-1] = mark, mark
			}
			loans = append(loans, loan{b, mark})
			require.EqualValues(t, len(loans), s.lent.Load())
		}
		for len(loans) > 0 {
			giveBack(0)
		}
		require.Zero(t, s.used.Load())
		require.LessOrEqual(t, len(s.pool.zones), 2)
		b, err := s.alloc(zoneSize)
		require.NoError(t, err, "free blocks did not become whole again")
		b.Release()
		for _, z := range s.pool.zones {
			unmapZone(z.mem)
		}
	})
}

// TestPoolBounds: the share and the pool are bounds of their own, and a connection that is out of memory takes
// none from others.
func TestPoolBounds(t *testing.T) {
	pool := NewPool(1)
	a, b := &share{pool: pool, limit: 3 * page}, &share{pool: pool, limit: 2 * zoneSize}
	x, err := a.alloc(2*page + 1)
	require.ErrorIs(t, err, iscsi.ErrNoMemory, "a block of 4 pages")
	require.Nil(t, x)
	x, err = a.alloc(page + 1)
	require.NoError(t, err)
	_, err = a.alloc(page + 1)
	require.ErrorIs(t, err, errShareUsed)
	_, err = b.alloc(zoneSize)
	require.ErrorIs(t, err, errPoolUsed)
	x.Release()
	y, err := b.alloc(zoneSize)
	require.NoError(t, err)
	require.Len(t, y.Bytes(), zoneSize)
	y.Release()
	for _, n := range []int{-1, zoneSize + 1} {
		_, err = b.alloc(n)
		require.ErrorIs(t, err, iscsi.ErrNoMemory)
	}
	require.Zero(t, b.used.Load())
	require.Zero(t, b.lent.Load())
}

// TestPoolGivesZonesBack: after a peak one empty zone is left.
func TestPoolGivesZonesBack(t *testing.T) {
	s := newShare(4*zoneSize, 4*zoneSize)
	var bs []iscsi.Buffer
	for range 4 {
		b, err := s.alloc(zoneSize)
		require.NoError(t, err)
		bs = append(bs, b)
	}
	require.Len(t, s.pool.zones, 4)
	for _, b := range bs {
		b.Release()
	}
	require.Len(t, s.pool.zones, 1)
}

// TestDoubleReleasePanics: the memory may be another task's already.
func TestDoubleReleasePanics(t *testing.T) {
	s := newShare(zoneSize, zoneSize)
	b := &buffer{share: s}
	require.Panics(t, b.Release)
}

// TestPoolLimitChanges: what is lent stays lent, what is empty goes back at once, and the new bound holds for what comes next.
func TestPoolLimitChanges(t *testing.T) {
	s := newShare(3*zoneSize, 4*zoneSize)
	var lent []iscsi.Buffer
	take := func() error {
		b, err := s.alloc(zoneSize)
		if err == nil {
			lent = append(lent, b)
		}
		return err
	}
	for range 3 {
		require.NoError(t, take())
	}
	require.ErrorIs(t, take(), errPoolUsed)
	s.pool.SetLimit(4 * zoneSize)
	require.NoError(t, take())
	s.pool.SetLimit(zoneSize + 1)
	require.Equal(t, PoolStats{Held: 4 * zoneSize, Lent: 4 * zoneSize, Limit: 2 * zoneSize}, s.pool.Stats())
	lent[0].Bytes()[zoneSize-1] = 1
	lent[0].Release()
	require.EqualValues(t, 3*zoneSize, s.pool.Stats().Held, "it is not kept as a spare one")
	lent = lent[1:]
	require.ErrorIs(t, take(), errPoolUsed)
	for _, b := range lent {
		b.Release()
	}
	s.pool.SetLimit(1)
	require.LessOrEqual(t, s.pool.Stats().Held, int64(zoneSize))
	lent = nil
	require.NoError(t, take())
	require.ErrorIs(t, take(), errPoolUsed)
	lent[0].Release()
	for _, z := range s.pool.zones {
		unmapZone(z.mem)
	}
}
