package iscsi

import (
	"bytes"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// CHAPTargetConfig is what a target needs to authenticate an initiator.
type CHAPTargetConfig struct {
	// Users are those of whom the initiator has to be one; at least one.
	Users []Credentials
	// Mutual is what the target proves itself with when the initiator asks. Its secret must be none of the Users', since whoever knows
	// such a one could play the target (RFC 7143, section 12.1.3). Zero: to be asked ends the login.
	Mutual Credentials
	// Algorithms are those taken; the initiator's order decides among them. Empty: all.
	Algorithms []CHAPAlgorithm
	// Rand is where challenges come from; nil: crypto/rand.
	Rand io.Reader
}

// CHAPTarget is a target's part in one authentication by CHAP.
//
//	start --CHAP_A--> challenged --CHAP_N, CHAP_R [CHAP_I, CHAP_C]--> done
//	  |                   |                                             |
//	  +-------------------+--- anything else, a wrong proof ---> failed-+--- any more keys
type CHAPTarget struct {
	cfg       CHAPTargetConfig
	state     chapState
	challenge *chapChallenge
	user      string
}

type chapState uint8

const (
	chapStart chapState = iota
	chapChallenged
	chapAnswered // initiator: waits for the target's proof
	chapDone
	chapFailed
)

var _ Authenticator = (*CHAPTarget)(nil)

// NewCHAPTarget begins an authentication. Errors are about cfg and show no secret.
func NewCHAPTarget(cfg CHAPTargetConfig) (*CHAPTarget, error) {
	if len(cfg.Users) == 0 {
		return nil, fmt.Errorf("%w: CHAP without users", ErrSecret)
	}
	var err error
	for i, u := range cfg.Users {
		if err := u.Check(); err != nil {
			return nil, err
		}
		for _, o := range cfg.Users[:i] {
			if o.User == u.User {
				return nil, fmt.Errorf("%w: user %q is there twice", ErrSecret, u.User)
			}
		}
		if u.Secret.Equal(cfg.Mutual.Secret) {
			return nil, fmt.Errorf("%w: user %q has the secret that the target proves itself with; the two directions need two secrets", ErrSecret, u.User)
		}
	}
	if !cfg.Mutual.IsZero() {
		if err := cfg.Mutual.Check(); err != nil {
			return nil, err
		}
	}
	if cfg.Algorithms, err = knownAlgorithms(cfg.Algorithms); err != nil {
		return nil, err
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.Reader
	}
	return &CHAPTarget{cfg: cfg}, nil
}

// Method implements Authenticator.
func (c *CHAPTarget) Method() string { return chapMethod }

// Done implements Authenticator.
func (c *CHAPTarget) Done() error {
	if c.state != chapDone {
		return chapError("the initiator has not proven itself")
	}
	return nil
}

// User is who the initiator has proven to be, "" before.
func (c *CHAPTarget) User() string {
	if c.state != chapDone {
		return ""
	}
	return c.user
}

// Exchange implements Authenticator. Errors wrap ErrCHAP.
func (c *CHAPTarget) Exchange(in Text) (out Text, last bool, err error) {
	switch c.state {
	case chapStart:
		out, err = c.offer(in)
	case chapChallenged:
		out, err = c.prove(in)
		last = true
	default:
		err = chapError("keys after the end")
	}
	if err != nil {
		c.state = chapFailed
		return nil, false, err
	}
	return out, last, nil
}

// offer picks an algorithm and makes the challenge.
func (c *CHAPTarget) offer(in Text) (Text, error) {
	keys, err := chapKeys(in, keyCHAPAlgorithm)
	if err != nil {
		return nil, err
	}
	list := keys[keyCHAPAlgorithm]
	for s := range strings.SplitSeq(list, ",") {
		n, err := ParseNumber(s)
		if err != nil || n > 255 || !slices.Contains(c.cfg.Algorithms, CHAPAlgorithm(n)) {
			continue // one that this side does not know, or not want
		}
		if c.challenge, err = newChallenge(CHAPAlgorithm(n), c.cfg.Rand); err != nil {
			return nil, err
		}
		out := Text{{keyCHAPAlgorithm, strconv.Itoa(int(n))}}
		c.challenge.append(&out)
		c.state = chapChallenged
		return out, nil
	}
	return nil, chapError("no common algorithm in %.40q", list)
}

var errWrongProof = errors.New("unknown user or wrong secret")

// prove looks at the initiator's proof, and proves this side if it is asked to.
func (c *CHAPTarget) prove(in Text) (Text, error) {
	keys, err := chapKeys(in, keyCHAPName, keyCHAPResponse, keyCHAPIdentifier, keyCHAPChallenge)
	if err != nil {
		return nil, err
	}
	name, named := keys[keyCHAPName]
	if !named || name == "" {
		return nil, chapError("no %s", keyCHAPName)
	}
	response, err := readResponse(c.challenge.algorithm, keys[keyCHAPResponse])
	if err != nil {
		return nil, err
	}
	id, hasID := keys[keyCHAPIdentifier]
	octets, hasOctets := keys[keyCHAPChallenge]
	if hasID != hasOctets {
		return nil, chapError("one of %s and %s without the other", keyCHAPIdentifier, keyCHAPChallenge)
	}
	var theirs *chapChallenge
	if hasID {
		if theirs, err = readChallenge(c.challenge.algorithm, id, octets); err != nil {
			return nil, err
		}
	}
	if !c.proven(name, response) {
		return nil, fmt.Errorf("%w: %w", ErrCHAP, errWrongProof)
	}
	if theirs == nil {
		c.user, c.state = name, chapDone
		return nil, nil
	}
	switch {
	case theirs.same(c.challenge):
		return nil, chapError("the initiator sends this side's own challenge back")
	case c.cfg.Mutual.IsZero():
		return nil, chapError("the initiator asks for a proof, and none is configured")
	}
	proof := theirs.algorithm.response(theirs.id, c.cfg.Mutual.Secret, theirs.octets)
	if bytes.Equal(proof, response) { // the same challenge, identifier and secret in both directions
		return nil, chapError("the two directions have the same proof")
	}
	c.user, c.state = name, chapDone
	return Text{{keyCHAPName, c.cfg.Mutual.User}, {keyCHAPResponse, FormatBinary(proof)}}, nil
}

// proven verifies a response. A user that nobody knows costs what one with another secret does: all names are compared, and one hash is
// made and compared, so that time tells nothing about names.
func (c *CHAPTarget) proven(name string, response []byte) bool {
	found, secret := 0, c.cfg.Users[0].Secret
	for _, u := range c.cfg.Users {
		if subtle.ConstantTimeCompare([]byte(u.User), []byte(name)) == 1 {
			found, secret = 1, u.Secret
		}
	}
	ok := c.challenge.verify(secret, response)
	return found == 1 && ok
}
