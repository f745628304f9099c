package initiator

import (
	"errors"

	"goiwarp/iscsi"
)

// useCHAP makes Auth of CHAP, which has been checked.
func (c *Config) useCHAP() {
	chap := c.CHAP
	c.Auth = func() []iscsi.Authenticator {
		a, err := iscsi.NewCHAPInitiator(chap)
		if err != nil {
			return nil
		}
		return []iscsi.Authenticator{a}
	}
}

// avoidSHA256 changes what is offered for another attempt after err, if that may help: tgt, like the older target that it descends from,
// takes algorithm 7, by which everybody else means SHA-256, for SHA-1, and calls the longer answer an initiator error. A caller who
// named the algorithms gets those and no others.
func (c *Config) avoidSHA256(err error) bool {
	var refused *iscsi.LoginError
	if c.CHAP.Credentials.IsZero() || len(c.CHAP.Algorithms) > 0 || !errors.As(err, &refused) || !refused.Remote || refused.Status() != iscsi.LoginInitiatorError {
		return false
	}
	for _, a := range iscsi.CHAPAlgorithms() {
		if a != iscsi.CHAPSHA256 {
			c.CHAP.Algorithms = append(c.CHAP.Algorithms, a)
		}
	}
	c.useCHAP()
	return true
}
