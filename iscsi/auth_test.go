package iscsi

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// scriptAuth is a method of two exchanges, in the keys of CHAP so that they are passed through.
type scriptAuth struct {
	target bool
	mutual bool
	deny   bool
	round  int
	proven bool
}

func (a *scriptAuth) Method() string { return "CHAP" }

func (a *scriptAuth) Exchange(in Text) (Text, bool, error) {
	a.round++
	if a.target {
		if a.round == 1 {
			if _, ok := in.Get("CHAP_A"); !ok {
				return nil, false, errors.New("no algorithm")
			}
			return Text{{"CHAP_A", "5"}, {"CHAP_I", "1"}, {"CHAP_C", "0x01"}}, false, nil
		}
		if v, _ := in.Get("CHAP_R"); v != "0x02" || a.deny {
			return nil, false, errors.New("wrong response")
		}
		a.proven = true
		if _, ok := in.Get("CHAP_I"); ok {
			return Text{{"CHAP_N", "target"}, {"CHAP_R", "0x03"}}, true, nil
		}
		return nil, true, nil
	}
	switch a.round {
	case 1:
		return Text{{"CHAP_A", "5"}}, false, nil
	case 2:
		out := Text{{"CHAP_N", "host"}, {"CHAP_R", "0x02"}}
		if a.mutual {
			out = append(out, KeyValue{"CHAP_I", "2"}, KeyValue{"CHAP_C", "0x04"})
		} else {
			a.proven = true
		}
		return out, true, nil
	}
	if v, _ := in.Get("CHAP_R"); v != "0x03" {
		return nil, false, errors.New("the target does not know the secret")
	}
	a.proven = true
	return nil, true, nil
}

func (a *scriptAuth) Done() error {
	if !a.proven {
		return errors.New("nothing proven")
	}
	return nil
}

func TestAuthenticationTakesItsExchanges(t *testing.T) { // RFC 7143, sections 6.3.2 and 12.1
	for _, mutual := range []bool{false, true} {
		ic, tc := initiatorConfig(), targetConfig()
		ic.Auth = []Authenticator{&scriptAuth{mutual: mutual}}
		tc.Identify = func(Identity) (Grant, error) {
			return Grant{PortalGroup: 3, Auth: []Authenticator{&scriptAuth{target: true}}}, nil
		}
		ip, _, _, ierr, terr := drive(t, NewInitiatorLogin(ic), NewTargetLogin(tc))
		require.NoError(t, ierr)
		require.NoError(t, terr)
		require.EqualValues(t, 3, ip.PortalGroup)
		require.Equal(t, 1<<20, ip.MaxBurstLength, "the operational stage follows")
	}
}

func TestWrongProofIsRefused(t *testing.T) {
	ic, tc := initiatorConfig(), targetConfig()
	ic.Auth = []Authenticator{&scriptAuth{}}
	tc.Identify = func(Identity) (Grant, error) {
		return Grant{Auth: []Authenticator{&scriptAuth{target: true, deny: true}}}, nil
	}
	_, _, _, ierr, terr := drive(t, NewInitiatorLogin(ic), NewTargetLogin(tc))
	require.ErrorIs(t, terr, &LoginError{Class: 2, Detail: 1})
	require.ErrorIs(t, ierr, &LoginError{Class: 2, Detail: 1})
}

func TestAuthenticationCannotBeSkipped(t *testing.T) {
	c := targetConfig()
	c.Identify = func(Identity) (Grant, error) {
		return Grant{Auth: []Authenticator{&scriptAuth{target: true}}}, nil
	}
	require.Equal(t, LoginAuthFailed, status(t, c, request(StageOperational, true, StageFullFeature, names()...)), "starting behind it")
	require.Equal(t, LoginAuthFailed, status(t, c, request(StageSecurity, true, StageOperational, names("AuthMethod=None")...)), "offering None alone")
	l := NewTargetLogin(c)
	step, err := l.Step(request(StageSecurity, true, StageFullFeature, names("AuthMethod=CHAP,None")...))
	require.NoError(t, err)
	require.False(t, LoginResponse(step.Response.BHS[:]).Transit(), "asking for the next stage at once")
	require.Equal(t, "CHAP", answers(t, step.Response)["AuthMethod"])
	require.Equal(t, "0", answers(t, step.Response)["TargetPortalGroupTag"], "the tag is in the first response")

	_, _, _, ierr, _ := drive(t, NewInitiatorLogin(initiatorConfig()), NewTargetLogin(c))
	require.ErrorContains(t, ierr, "the target demands authentication and no credentials are configured")
}

func TestTargetCannotPassOverAuthentication(t *testing.T) {
	for name, reply := range map[string]*PDU{
		"no method":    response(StageSecurity, true, StageOperational, "TargetPortalGroupTag=1"),
		"None":         response(StageSecurity, true, StageOperational, "AuthMethod=None"),
		"Reject":       response(StageSecurity, false, 0, "AuthMethod=Reject"),
		"another":      response(StageSecurity, false, 0, "AuthMethod=SRP"),
		"at once":      response(StageSecurity, true, StageOperational, "AuthMethod=CHAP"),
		"keys unasked": response(StageSecurity, false, 0, "CHAP_A=5"),
	} {
		c := initiatorConfig()
		c.Auth = []Authenticator{&scriptAuth{mutual: true}}
		l := NewInitiatorLogin(c)
		l.First()
		_, err := l.Step(reply)
		require.Error(t, err, name)
	}
	// Mutual: the target leaves the stage without proof of its own.
	c := initiatorConfig()
	c.Auth = []Authenticator{&scriptAuth{mutual: true}}
	l := NewInitiatorLogin(c)
	l.First()
	_, err := l.Step(response(StageSecurity, false, 0, "AuthMethod=CHAP"))
	require.NoError(t, err)
	step, err := l.Step(response(StageSecurity, false, 0, "CHAP_A=5", "CHAP_I=1", "CHAP_C=0x01"))
	require.NoError(t, err)
	require.True(t, LoginRequest(step.Request.BHS[:]).Transit())
	_, err = l.Step(response(StageSecurity, true, StageOperational))
	require.ErrorContains(t, err, "nothing proven")
}

func TestSecurityStageWithoutAuthentication(t *testing.T) { // RFC 7143, section 6.3.1
	l := NewTargetLogin(targetConfig())
	step, err := l.Step(request(StageSecurity, true, StageOperational, names("AuthMethod=CHAP,None")...))
	require.NoError(t, err)
	h := LoginResponse(step.Response.BHS[:])
	require.True(t, h.Transit())
	require.Equal(t, StageOperational, h.NSG())
	require.Equal(t, map[string]string{"AuthMethod": "None", "TargetPortalGroupTag": "7"}, answers(t, step.Response))
	step, err = l.Step(request(StageOperational, true, StageFullFeature))
	require.NoError(t, err)
	require.True(t, step.Ready)

	l = NewTargetLogin(targetConfig())
	step, err = l.Step(request(StageSecurity, true, StageFullFeature, names()...))
	require.NoError(t, err)
	require.True(t, step.Ready, "defaults alone")
	require.Equal(t, 8192, step.Params.MaxRecvDataSegment, "nothing was declared")
}
