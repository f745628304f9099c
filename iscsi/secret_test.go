package iscsi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func secret(t require.TestingT, s string) Secret {
	v, err := NewSecret(s)
	require.NoError(t, err)
	return v
}

// TestSecretDoesNotShow: no way of printing, logging or marshalling shows a secret, alone or inside of something else.
func TestSecretDoesNotShow(t *testing.T) {
	s := secret(t, "swordfish")
	type hidden struct{ inner Credentials }
	values := []any{
		s, &s,
		[]Secret{s},
		map[string]Secret{"a": s},
		Credentials{User: "u", Secret: s},
		&Credentials{User: "u", Secret: s},
		hidden{Credentials{User: "u", Secret: s}},
		&hidden{Credentials{User: "u", Secret: s}},
		CHAPTargetConfig{Users: []Credentials{{User: "u", Secret: s}}},
		CHAPInitiatorConfig{Credentials: Credentials{User: "u", Secret: s}},
	}
	for _, v := range values {
		for _, f := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%08b", "%T"} {
			got := fmt.Sprintf(f, v)
			require.NotContains(t, got, "swordfish", "%s of %T", f, v)
			require.NotContains(t, strings.ToLower(got), fmt.Sprintf("%x", "swordfish"), "%s of %T", f, v)
		}
		b, err := json.Marshal(v)
		require.NoError(t, err)
		require.NotContains(t, string(b), "swordfish")
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("m", "v", v)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("m", "v", v)
		require.NotContains(t, log.String(), "swordfish")
	}
	require.Equal(t, "swordfish", s.Reveal())
	require.Equal(t, "[secret]", fmt.Sprint(s))
}

func TestSecretBounds(t *testing.T) { // RFC 7143, section 12.1.3: 96 bits
	for _, bad := range []string{"", strings.Repeat("swordfish", 40)} {
		_, err := NewSecret(bad)
		require.ErrorIs(t, err, ErrSecret)
		require.NotContains(t, err.Error(), "swordfish")
	}
	require.True(t, secret(t, "elevenchars").Weak())
	require.False(t, secret(t, "twelve chars").Weak())
	require.False(t, Secret{}.Weak())
	require.True(t, Secret{}.IsZero())
	require.Empty(t, Secret{}.Reveal())
	require.True(t, secret(t, "a").Equal(secret(t, "a")))
	require.False(t, secret(t, "a").Equal(secret(t, "b")))
	require.False(t, Secret{}.Equal(Secret{}), "no secret is nobody's")
	for _, c := range []Credentials{{}, {User: "u"}, {Secret: secret(t, "a")}, {User: "a\x00b", Secret: secret(t, "a")}, {User: strings.Repeat("u", 256), Secret: secret(t, "a")}} {
		require.ErrorIs(t, c.Check(), ErrSecret)
	}
}
