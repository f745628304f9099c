package initiator

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
)

func TestLoginOverRDMAAllocatesItsReceives(t *testing.T) {
	f := newFake()
	f.info.RDMA = true
	s := start(t, f)
	require.Equal(t, 8192, f.allocated.RecvDataSegment)
	require.True(t, s.Params().RDMAExtensions)
	require.True(t, s.Params().InitialR2T && s.Params().ImmediateData)
	require.Equal(t, 8192, s.maxData)
}

func TestLoginRefused(t *testing.T) {
	f := newFake()
	f.tgt.Identify = func(iscsi.Identity) (iscsi.Grant, error) {
		return iscsi.Grant{}, iscsi.NewLoginError(iscsi.LoginNotFound, "")
	}
	_, err := Login(t.Context(), f, testConfig())
	require.EqualError(t, err, "iscsi: login refused by the target: 0203 (target not found)")
	require.True(t, f.freed, "resources allocated for nothing are given back")
	<-f.done
}

func TestLoginFollowsATargetThatMoved(t *testing.T) {
	var asked []string
	d := dialer(func(addr string) (iscsi.Datamover, error) {
		asked = append(asked, addr)
		f := newFake()
		f.tgt.Identify = func(iscsi.Identity) (iscsi.Grant, error) {
			if len(asked) < 3 {
				return iscsi.Grant{}, &iscsi.LoginError{Class: 1, Detail: 1, Address: fmt.Sprintf("10.0.0.%d", len(asked)+1)}
			}
			return iscsi.Grant{}, nil
		}
		return f, nil
	})
	s, err := Login(t.Context(), d, testConfig())
	require.NoError(t, err)
	s.Close()
	require.Equal(t, []string{"10.0.0.1:3260", "10.0.0.2:3260", "10.0.0.3:3260"}, asked)

	asked = nil
	d = func(addr string) (iscsi.Datamover, error) {
		asked = append(asked, addr)
		f := newFake()
		f.tgt.Identify = func(iscsi.Identity) (iscsi.Grant, error) {
			return iscsi.Grant{}, &iscsi.LoginError{Class: 1, Detail: 2, Address: "10.0.0.1"}
		}
		return f, nil
	}
	_, err = Login(t.Context(), d, testConfig())
	require.ErrorContains(t, err, "more than 4 redirections")
	require.Len(t, asked, 5)
}

type dialer func(addr string) (iscsi.Datamover, error)

func (d dialer) Dial(_ context.Context, addr string) (iscsi.Datamover, error) { return d(addr) }

func TestLoginEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.script = func(*fake, *iscsi.PDU, *iscsi.TaskBuffers) bool { return true } // says nothing
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		begun := time.Now()
		_, err := Login(ctx, f, testConfig())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(begun))
		<-f.done
	})
}

func TestLoginWithoutEnd(t *testing.T) {
	f := newFake()
	f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
		h := iscsi.LoginRequest(p.BHS[:])
		q := new(iscsi.PDU)
		r := iscsi.LoginResponse(q.BHS[:])
		r.Init()
		r.SetCSG(h.CSG())
		r.SetISID(h.ISID())
		r.SetITT(h.ITT())
		f.n.ControlNotify(q)
		return true
	}
	_, err := Login(t.Context(), f, testConfig())
	require.ErrorContains(t, err, "no end after")
}

func TestLoginWhenTheConnectionIsLost(t *testing.T) {
	f := newFake()
	f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
		f.hangUp(errors.New("reset"))
		return true
	}
	_, err := Login(t.Context(), f, testConfig())
	require.ErrorIs(t, err, iscsi.ErrConnection)
	require.EqualError(t, err, "initiator: session with iqn.2026-11.com.example:disk ended: reset")
}

func TestBadConfig(t *testing.T) {
	c := testConfig()
	c.TargetName = ""
	_, err := Login(t.Context(), newFake(), c)
	require.Error(t, err)
	c.TargetName = "disk"
	_, err = Login(t.Context(), newFake(), c)
	require.ErrorIs(t, err, iscsi.ErrName)
	c = testConfig()
	c.InitiatorName = "me"
	_, err = Login(t.Context(), newFake(), c)
	require.ErrorIs(t, err, iscsi.ErrName)
	c = testConfig()
	c.Settings.MaxBurstLength = 1
	_, err = Login(t.Context(), newFake(), c)
	require.ErrorIs(t, err, iscsi.ErrSettings)
	c = testConfig()
	c.InitiatorAlias = "a\x00b"
	_, err = Login(t.Context(), newFake(), c)
	require.ErrorContains(t, err, "alias")
	n, err := iscsi.NormalizeName(DefaultName())
	require.NoError(t, err)
	require.Equal(t, DefaultName(), n)
	require.NotEqual(t, RandomISID(), RandomISID())
	require.EqualValues(t, 0x80, RandomISID()[0])
}
