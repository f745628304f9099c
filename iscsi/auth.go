package iscsi

// Authenticator is one authentication method's part in one login of one side (RFC 7143, section 12.1). The login machines
// choose a method by AuthMethod, pass its keys through, and do not leave the security stage before both say that they are content.
//
//	initiator                          target
//	Exchange(nil)   -> CHAP_A      ->  Exchange
//	Exchange        <- CHAP_A,I,C  <-
//	                -> CHAP_N,R    ->  Exchange, Done == nil: stage ends
type Authenticator interface {
	// Method is the method's name as a value of AuthMethod.
	Method() string
	// Exchange takes the method's keys that the peer sent in one text and returns those to send. The initiator's first call
	// has none. last tells that this side will send no more keys. An error refuses the login (status 0201).
	Exchange(in Text) (out Text, last bool, err error)
	// Done is nil once the peer has proven all that this side asks for. It is asked before the security stage ends.
	Done() error
}

// pickAuth is the target's choice among the methods that the initiator offers (RFC 7143, section 6.3.2): the first it accepts.
// Without authenticators None is accepted, and nothing else. name is "" if there is no choice.
func pickAuth(offer string, own []Authenticator) (name string, a Authenticator) {
	k, _ := LookupKey(KeyAuthMethod)
	list := None
	for i, m := range own {
		if i == 0 {
			list = m.Method()
		} else {
			list += "," + m.Method()
		}
	}
	name, ok := k.Combine(offer, list)
	if !ok {
		return "", nil
	}
	for _, m := range own {
		if m.Method() == name {
			return name, m
		}
	}
	return name, nil
}
