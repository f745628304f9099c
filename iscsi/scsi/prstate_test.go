package scsi

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestReservationStates: whatever nexuses ask for, in whatever order, the state stays one that can be; what was refused has changed
// nothing; and a state that is to be kept is the same when it comes back.
func TestReservationStates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, err := decodeKept(nil)
		require.NoError(t, err)
		nexus := rapid.Custom(func(t *rapid.T) nexusID {
			return nexusID{rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "initiator"), rapid.Uint16Range(1, 2).Draw(t, "port")}
		})
		key := rapid.Uint64Range(0, 3)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			r := prRequest{
				action: rapid.Byte().Draw(t, "action") % 8, from: nexus.Draw(t, "from"), ports: []uint16{1, 2},
				key: key.Draw(t, "key"), sark: key.Draw(t, "sark"),
				kind:  rapid.SampledFrom([]ReservationType{1, 3, 5, 6, 7, 8}).Draw(t, "type"),
				allTG: rapid.Bool().Draw(t, "all ports"), aptpl: rapid.Bool().Draw(t, "aptpl"), unreg: rapid.Bool().Draw(t, "unreg"),
				dest: nexus.Draw(t, "dest"),
			}
			if r.action == SARegister {
				r.others = rapid.SliceOfN(nexus, 0, 2).Draw(t, "others")
			}
			if k, ok := s.key(r.from); ok && rapid.Bool().Draw(t, "right key") {
				r.key = k
			}
			before := s.clone()
			next, o := s.apply(&r)
			require.Equal(t, before, s, "a published state does not change")
			if o.conflict || o.sense != nil {
				require.False(t, o.changed)
				require.False(t, o.counts)
				require.Empty(t, o.notices)
				continue
			}
			if !o.changed {
				continue
			}
			s = next
			require.Len(t, s.keys, len(s.list), "nobody is registered twice")
			for id, i := range s.keys {
				require.Equal(t, id, s.list[i].id)
				require.NotZero(t, s.list[i].key)
				require.True(t, s.kind == 0 || s.holds(id) || !s.kind.allRegistrants())
			}
			switch {
			case s.kind == 0:
				require.Zero(t, s.holder)
			case s.kind.allRegistrants():
				require.NotEmpty(t, s.list, "somebody holds it")
			default:
				_, ok := s.key(s.holder)
				require.True(t, ok, "the holder is registered")
			}
			for _, n := range o.notices {
				require.NotEqual(t, r.from, n.to, "who asked knows")
			}
			if !s.aptpl || len(s.list) == 0 {
				continue
			}
			data, err := s.encode()
			require.NoError(t, err)
			again, err := decodeKept(data)
			require.NoError(t, err)
			require.Equal(t, s.list, again.list)
			require.Equal(t, s.kind, again.kind)
			if s.kind != 0 && !s.kind.allRegistrants() {
				require.Equal(t, s.holder, again.holder)
			}
		}
	})
}
