package initiator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
)

func TestDiscover(t *testing.T) { // RFC 7143, appendix C
	f := newFake()
	answer := "TargetName=IQN.2026-11.com.example:A\x00TargetAddress=10.0.0.1:3260,1\x00TargetAddress=[2001:db8::1]:3260,1\x00TargetName=iqn.2026-11.com.example:b\x00"
	round := 0
	f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
		if p.Opcode() != iscsi.OpTextReq {
			return false
		}
		h := iscsi.TextRequest(p.BHS[:])
		wantTTT, wantData := iscsi.ReservedTag, "SendTargets=All\x00"
		if round > 0 {
			wantTTT, wantData = uint32(round), ""
		}
		if h.TTT() != wantTTT || string(p.Data) != wantData || !h.Final() {
			panic(h.String())
		}
		round++
		q := new(iscsi.PDU)
		r := iscsi.TextResponse(q.BHS[:])
		r.Init()
		r.SetITT(h.ITT())
		from, to := (round-1)*40, min(round*40, len(answer))
		q.Data = []byte(answer[from:to])
		if to < len(answer) {
			r.SetContinue(true)
			r.SetTTT(uint32(round))
		} else {
			r.SetFinal(true)
		}
		f.up(q, true)
		return true
	}
	c := testConfig()
	got, err := Discover(t.Context(), f, c)
	require.NoError(t, err)
	require.Equal(t, []iscsi.TargetInfo{
		{Name: "iqn.2026-11.com.example:a", Portals: []iscsi.Portal{{Addr: "10.0.0.1:3260", Group: 1, HasGroup: true}, {Addr: "[2001:db8::1]:3260", Group: 1, HasGroup: true}}},
		{Name: "iqn.2026-11.com.example:b", Portals: []iscsi.Portal{{Addr: "10.0.0.1:3260"}}},
	}, got)
	require.True(t, f.allocated.Discovery)
	require.True(t, f.graceful)
}

func TestTextWithoutEnd(t *testing.T) {
	for _, data := range []string{"", "A=b\x00"} {
		f := newFake()
		f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
			if p.Opcode() != iscsi.OpTextReq {
				return false
			}
			q := new(iscsi.PDU)
			r := iscsi.TextResponse(q.BHS[:])
			r.Init()
			r.SetITT(iscsi.BHS(p.BHS[:]).ITT())
			r.SetTTT(1)
			q.Data = []byte(data)
			f.up(q, true)
			return true
		}
		_, err := Discover(t.Context(), f, testConfig())
		require.Error(t, err)
	}
}
