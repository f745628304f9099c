package iscsi

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha3"
	"crypto/subtle"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"
)

// CHAPAlgorithm is a hash of the Challenge Handshake Authentication Protocol, by its number in CHAP_A (IANA's PPP
// authentication algorithms; RFC 7143, section 12.1.3; 6 to 8 as open-iscsi and LIO have them).
type CHAPAlgorithm uint8

// Algorithms.
const (
	CHAPMD5     CHAPAlgorithm = 5
	CHAPSHA1    CHAPAlgorithm = 6
	CHAPSHA256  CHAPAlgorithm = 7
	CHAPSHA3256 CHAPAlgorithm = 8
)

// CHAPAlgorithms are all algorithms there are, the strongest first: the default on both sides.
func CHAPAlgorithms() []CHAPAlgorithm {
	return []CHAPAlgorithm{CHAPSHA3256, CHAPSHA256, CHAPSHA1, CHAPMD5}
}

// ParseCHAPAlgorithm reads an algorithm's name, in any case, or number.
func ParseCHAPAlgorithm(s string) (CHAPAlgorithm, error) {
	for _, a := range CHAPAlgorithms() {
		if strings.EqualFold(s, a.String()) || s == strconv.Itoa(int(a)) {
			return a, nil
		}
	}
	return 0, fmt.Errorf("iscsi: no CHAP algorithm %q: want MD5, SHA1, SHA256 or SHA3-256", s)
}

func (a CHAPAlgorithm) String() string {
	switch a {
	case CHAPMD5:
		return "MD5"
	case CHAPSHA1:
		return "SHA1"
	case CHAPSHA256:
		return "SHA256"
	case CHAPSHA3256:
		return "SHA3-256"
	}
	return "CHAP algorithm " + strconv.Itoa(int(a))
}

// new is the algorithm's hash, nil for a number that is none.
func (a CHAPAlgorithm) new() hash.Hash {
	switch a {
	case CHAPMD5:
		return md5.New()
	case CHAPSHA1:
		return sha1.New()
	case CHAPSHA256:
		return sha256.New()
	case CHAPSHA3256:
		return sha3.New256()
	}
	return nil
}

// response is the proof that one knows a secret: the hash of the identifier, the secret and the challenge (RFC 1994, section 4.1).
func (a CHAPAlgorithm) response(id byte, secret Secret, challenge []byte) []byte {
	h := a.new()
	h.Write([]byte{id})
	_, _ = io.WriteString(h, secret.Reveal())
	h.Write(challenge)
	return h.Sum(nil)
}

// chapMethod is the name in AuthMethod.
const chapMethod = "CHAP"

// Keys of CHAP (RFC 7143, section 12.1.3).
const (
	keyCHAPAlgorithm  = "CHAP_A"
	keyCHAPIdentifier = "CHAP_I"
	keyCHAPChallenge  = "CHAP_C"
	keyCHAPName       = "CHAP_N"
	keyCHAPResponse   = "CHAP_R"
)

// ErrCHAP: an authentication by CHAP that fails. Which of user and secret was wrong it does not tell.
var ErrCHAP = errors.New("iscsi: CHAP")

func chapError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCHAP, fmt.Sprintf(format, args...))
}

// chapChallenge is one challenge: what its issuer remembers, and what the other side has to answer.
type chapChallenge struct {
	algorithm CHAPAlgorithm
	id        byte
	octets    []byte
}

// newChallenge makes a challenge as long as the hash, and an identifier, both random so that no two are alike.
func newChallenge(a CHAPAlgorithm, random io.Reader) (*chapChallenge, error) {
	b := make([]byte, 1+a.new().Size())
	if _, err := io.ReadFull(random, b); err != nil {
		return nil, chapError("no random octets: %v", err)
	}
	return &chapChallenge{algorithm: a, id: b[0], octets: b[1:]}, nil
}

// append puts the challenge into t.
func (c *chapChallenge) append(t *Text) {
	t.Add(keyCHAPIdentifier, strconv.Itoa(int(c.id)))
	t.Add(keyCHAPChallenge, FormatBinary(c.octets))
}

// readChallenge reads the peer's.
func readChallenge(a CHAPAlgorithm, id, octets string) (*chapChallenge, error) {
	n, err := ParseNumber(id)
	if err != nil || n > 255 {
		return nil, chapError("%s=%.20q is no octet", keyCHAPIdentifier, id)
	}
	b, err := ParseBinary(octets, MaxBinaryLen)
	if err != nil || len(b) == 0 {
		return nil, chapError("%s is no binary value of 1 to %d octets", keyCHAPChallenge, MaxBinaryLen)
	}
	return &chapChallenge{algorithm: a, id: byte(n), octets: b}, nil
}

// readResponse reads a CHAP_R, which has the hash's length.
func readResponse(a CHAPAlgorithm, v string) ([]byte, error) {
	b, err := ParseBinary(v, MaxBinaryLen)
	if size := a.new().Size(); err != nil || len(b) != size {
		return nil, chapError("%s is no binary value of %d octets", keyCHAPResponse, size)
	}
	return b, nil
}

// verify tells whether response proves secret. It takes the same time whatever is wrong.
func (c *chapChallenge) verify(secret Secret, response []byte) bool {
	return subtle.ConstantTimeCompare(c.algorithm.response(c.id, secret, c.octets), response) == 1
}

// same tells that two challenges have the same octets: one is the other's reflection.
func (c *chapChallenge) same(o *chapChallenge) bool {
	return subtle.ConstantTimeCompare(c.octets, o.octets) == 1
}

// chapKeys takes the keys of one exchange. A key that is not among those wanted, or is there twice, breaks the handshake.
func chapKeys(in Text, want ...string) (map[string]string, error) {
	m := make(map[string]string, len(want))
	for _, kv := range in {
		known := false
		for _, w := range want {
			known = known || w == kv.Key
		}
		if _, twice := m[kv.Key]; !known || twice {
			return nil, chapError("%.20s out of turn", kv.Key)
		}
		m[kv.Key] = kv.Value
	}
	return m, nil
}

// knownAlgorithms checks a configured list; an empty one is all.
func knownAlgorithms(list []CHAPAlgorithm) ([]CHAPAlgorithm, error) {
	if len(list) == 0 {
		return CHAPAlgorithms(), nil
	}
	for _, a := range list {
		if a.new() == nil {
			return nil, fmt.Errorf("iscsi: %v is not known", a)
		}
	}
	return list, nil
}
