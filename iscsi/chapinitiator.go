package iscsi

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// CHAPInitiatorConfig is what an initiator proves itself with, and what it asks the target to prove.
type CHAPInitiatorConfig struct {
	Credentials
	// Mutual is what the target has to prove: its secret, which must be another than this side's, and the name that it has to give;
	// without a User any name will do. Zero: nothing is asked.
	Mutual Credentials
	// Algorithms are those offered, in order of preference. Empty: all, the strongest first.
	Algorithms []CHAPAlgorithm
	// Rand is where challenges come from; nil: crypto/rand.
	Rand io.Reader
}

// Check tells what of c cannot be used. Errors wrap ErrSecret and show no secret.
func (c *CHAPInitiatorConfig) Check() error {
	_, err := NewCHAPInitiator(*c)
	return err
}

// CHAPInitiator is an initiator's part in one authentication by CHAP.
//
//	start --CHAP_A--> challenged --CHAP_N, CHAP_R--> done
//	                      |                            ^
//	                      +--the same, CHAP_I, CHAP_C--> answered --the target's CHAP_N, CHAP_R--+
type CHAPInitiator struct {
	cfg       CHAPInitiatorConfig
	state     chapState
	challenge *chapChallenge // this side's
	response  []byte         // this side's
}

var _ Authenticator = (*CHAPInitiator)(nil)

// NewCHAPInitiator begins an authentication. Errors wrap ErrSecret and show no secret.
func NewCHAPInitiator(cfg CHAPInitiatorConfig) (*CHAPInitiator, error) {
	if err := cfg.Credentials.Check(); err != nil {
		return nil, err
	}
	switch {
	case cfg.Mutual.User != "" && cfg.Mutual.Secret.IsZero():
		return nil, fmt.Errorf("%w: the target's user %q has none", ErrSecret, cfg.Mutual.User)
	case cfg.Mutual.Secret.Equal(cfg.Secret):
		return nil, fmt.Errorf("%w: it is the same in both directions; the two need two secrets", ErrSecret)
	}
	var err error
	if cfg.Algorithms, err = knownAlgorithms(cfg.Algorithms); err != nil {
		return nil, err
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.Reader
	}
	return &CHAPInitiator{cfg: cfg}, nil
}

// Method implements Authenticator.
func (c *CHAPInitiator) Method() string { return chapMethod }

// Done implements Authenticator.
func (c *CHAPInitiator) Done() error {
	if c.state != chapDone {
		return chapError("the target has not proven itself")
	}
	return nil
}

// Exchange implements Authenticator. Errors wrap ErrCHAP.
func (c *CHAPInitiator) Exchange(in Text) (out Text, last bool, err error) {
	switch {
	case c.state == chapStart && len(in) == 0:
		names := make([]string, len(c.cfg.Algorithms))
		for i, a := range c.cfg.Algorithms {
			names[i] = strconv.Itoa(int(a))
		}
		c.state = chapChallenged
		return Text{{keyCHAPAlgorithm, strings.Join(names, ",")}}, false, nil
	case c.state == chapChallenged:
		out, err = c.answer(in)
		last = true
	case c.state == chapAnswered:
		err = c.verify(in)
		last = true
	default:
		err = chapError("keys out of turn")
	}
	if err != nil {
		c.state = chapFailed
		return nil, false, err
	}
	return out, last, nil
}

// answer proves this side, and asks for the target's proof.
func (c *CHAPInitiator) answer(in Text) (Text, error) {
	keys, err := chapKeys(in, keyCHAPAlgorithm, keyCHAPIdentifier, keyCHAPChallenge)
	if err != nil {
		return nil, err
	}
	n, err := ParseNumber(keys[keyCHAPAlgorithm])
	if err != nil || n > 255 || !slices.Contains(c.cfg.Algorithms, CHAPAlgorithm(n)) {
		return nil, chapError("the target chose %s=%.20q, which was not offered", keyCHAPAlgorithm, keys[keyCHAPAlgorithm])
	}
	theirs, err := readChallenge(CHAPAlgorithm(n), keys[keyCHAPIdentifier], keys[keyCHAPChallenge])
	if err != nil {
		return nil, err
	}
	c.response = theirs.algorithm.response(theirs.id, c.cfg.Secret, theirs.octets)
	out := Text{{keyCHAPName, c.cfg.User}, {keyCHAPResponse, FormatBinary(c.response)}}
	if c.cfg.Mutual.Secret.IsZero() {
		c.state = chapDone
		return out, nil
	}
	if c.challenge, err = newChallenge(theirs.algorithm, c.cfg.Rand); err != nil {
		return nil, err
	}
	if c.challenge.same(theirs) { // a challenge has to be fresh, by chance or by mischief this one is not
		return nil, chapError("both sides have the same challenge")
	}
	c.challenge.append(&out)
	c.state = chapAnswered
	return out, nil
}

// verify looks at the target's proof.
func (c *CHAPInitiator) verify(in Text) error {
	keys, err := chapKeys(in, keyCHAPName, keyCHAPResponse)
	if err != nil {
		return err
	}
	name := keys[keyCHAPName]
	if name == "" {
		return chapError("no %s of the target", keyCHAPName)
	}
	response, err := readResponse(c.challenge.algorithm, keys[keyCHAPResponse])
	if err != nil {
		return err
	}
	switch {
	case bytes.Equal(response, c.response):
		return chapError("the target sends this side's own proof back")
	case !c.challenge.verify(c.cfg.Mutual.Secret, response):
		return chapError("the target does not know its secret")
	case c.cfg.Mutual.User != "" && name != c.cfg.Mutual.User:
		return chapError("the target is %.40q, not %q", name, c.cfg.Mutual.User)
	}
	c.state = chapDone
	return nil
}
