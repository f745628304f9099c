package initiator

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
)

// misreads plays a target that takes the first algorithm that it knows by number, 7 or 5, and 7 for SHA-1: an answer of 32 octets
// is an initiator error to it.
func misreads(t *testing.T, user iscsi.Credentials) *fake {
	f := newFake()
	f.tgt.Identify = func(iscsi.Identity) (iscsi.Grant, error) {
		a, err := iscsi.NewCHAPTarget(iscsi.CHAPTargetConfig{
			Users: []iscsi.Credentials{user}, Algorithms: []iscsi.CHAPAlgorithm{iscsi.CHAPSHA256, iscsi.CHAPMD5},
		})
		require.NoError(t, err)
		return iscsi.Grant{Auth: []iscsi.Authenticator{a}}, nil
	}
	f.script = func(f *fake, p *iscsi.PDU, _ *iscsi.TaskBuffers) bool {
		_, response, ok := bytes.Cut(p.Data, []byte("CHAP_R=0x"))
		if !ok || bytes.IndexByte(response, 0) != 64 {
			return false
		}
		q := new(iscsi.PDU)
		h := iscsi.LoginResponse(q.BHS[:])
		h.Init()
		h.SetStatus(iscsi.LoginInitiatorError)
		h.SetITT(iscsi.BHS(p.BHS[:]).ITT())
		f.n.ControlNotify(q)
		return true
	}
	return f
}

func TestLoginToATargetThatTakesSHA256ForSHA1(t *testing.T) {
	secret, err := iscsi.NewSecret("secret-of-sixteen")
	require.NoError(t, err)
	user := iscsi.Credentials{User: "alice", Secret: secret}
	dials := 0
	d := dialer(func(string) (iscsi.Datamover, error) {
		dials++
		return misreads(t, user), nil
	})
	cfg := testConfig()
	cfg.CHAP.Credentials = user
	s, err := Login(t.Context(), d, cfg)
	require.NoError(t, err)
	s.Close()
	require.Equal(t, 2, dials)

	// Who names the algorithms means it.
	dials = 0
	cfg.CHAP.Algorithms = iscsi.CHAPAlgorithms()
	_, err = Login(t.Context(), d, cfg)
	require.ErrorIs(t, err, &iscsi.LoginError{Class: 2})
	require.Equal(t, 1, dials)

	// A wrong secret is no reason to try again.
	dials = 0
	cfg.CHAP.Algorithms = []iscsi.CHAPAlgorithm{iscsi.CHAPMD5}
	cfg.CHAP.Secret, err = iscsi.NewSecret("another-of-sixteen")
	require.NoError(t, err)
	_, err = Login(t.Context(), d, cfg)
	require.ErrorIs(t, err, iscsi.NewLoginError(iscsi.LoginAuthFailed, ""))
	require.Equal(t, 1, dials)
}
