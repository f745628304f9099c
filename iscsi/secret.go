package iscsi

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
)

// MinSecret is the length in octets below which a secret is weak: RFC 7143, section 12.1.3, asks for 96 random bits unless IPsec
// protects the connection. Linux takes shorter ones, so here they are a warning and no error (Secret.Weak).
const MinSecret = 12

// MaxSecret is the longest secret taken, in octets.
const MaxSecret = 255

// redacted is what a secret shows of itself.
const redacted = "[secret]"

// Secret is a shared secret that does not show itself: however it is printed, logged or marshalled, by itself or inside of another
// value, it reads [secret]. Reveal is the only way to its octets. The zero value is no secret at all.
type Secret struct {
	// A pointer, because fmt calls no methods on unexported fields of others and prints an address then.
	p *string
}

// ErrSecret: not usable as a secret.
var ErrSecret = errors.New("iscsi: unusable secret")

// NewSecret makes a secret of 1 to MaxSecret octets. Errors wrap ErrSecret and do not show s.
func NewSecret(s string) (Secret, error) {
	switch {
	case s == "":
		return Secret{}, fmt.Errorf("%w: it is empty", ErrSecret)
	case len(s) > MaxSecret:
		return Secret{}, fmt.Errorf("%w: %d octets, at most %d", ErrSecret, len(s), MaxSecret)
	}
	return Secret{p: &s}, nil
}

// IsZero tells that there is no secret.
func (s Secret) IsZero() bool { return s.p == nil }

// Weak tells that the secret is shorter than MinSecret.
func (s Secret) Weak() bool { return s.p != nil && len(*s.p) < MinSecret }

// Reveal is the secret itself.
func (s Secret) Reveal() string {
	if s.p == nil {
		return ""
	}
	return *s.p
}

// Equal compares in a time that depends on the lengths alone. No secret equals none.
func (s Secret) Equal(o Secret) bool {
	return s.p != nil && o.p != nil && subtle.ConstantTimeCompare([]byte(*s.p), []byte(*o.p)) == 1
}

// String implements fmt.Stringer: it shows nothing.
func (s Secret) String() string { return redacted }

// GoString implements fmt.GoStringer: it shows nothing.
func (s Secret) GoString() string { return redacted }

// Format implements fmt.Formatter for all verbs: it shows nothing.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// LogValue implements slog.LogValuer: it shows nothing.
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements encoding.TextMarshaler: it shows nothing.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Credentials are a user and its secret.
type Credentials struct {
	User   string
	Secret Secret
}

// IsZero tells that there are none.
func (c Credentials) IsZero() bool { return c.User == "" && c.Secret.IsZero() }

// Check tells what of c cannot be used: a user of no or more than 255 octets or with a zero octet, or no secret. Errors wrap ErrSecret.
func (c Credentials) Check() error {
	switch {
	case c.User == "":
		return fmt.Errorf("%w: no user", ErrSecret)
	case len(c.User) > MaxValueLen:
		return fmt.Errorf("%w: user of %d octets, at most %d", ErrSecret, len(c.User), MaxValueLen)
	case c.Secret.IsZero():
		return fmt.Errorf("%w: user %q has none", ErrSecret, c.User)
	}
	for i := range len(c.User) {
		if c.User[i] == 0 {
			return fmt.Errorf("%w: zero octet in user %q", ErrSecret, c.User)
		}
	}
	return nil
}
