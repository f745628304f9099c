package iscsi

// Bounds of the login phase.
const (
	// LoginSegment is the longest data segment of login PDUs: the default MaxRecvDataSegmentLength holds
	// through the login, whatever is being negotiated (RFC 7143, section 6.3).
	LoginSegment = 8192
	// maxLoginExchanges is how many requests one login may take. The RFC wants 6 at least; a text of MaxTextLen takes 8
	// per direction.
	maxLoginExchanges = 64
)

// loginText is what both login machines know about text: the peer's being collected, the own being sent.
type loginText struct {
	in        TextCollector
	out       TextSplitter
	seen      map[string]struct{} // keys that the peer has sent in this login
	received  int                 // octets of text in all
	exchanges int
}

// add takes a PDU's data segment. It returns the text once it is whole.
func (l *loginText) add(data []byte, more bool) (t Text, whole bool, err error) {
	if l.received += len(data); l.received > MaxTextLen {
		return nil, false, NewLoginError(LoginInitiatorError, "more than %d octets of text", MaxTextLen)
	}
	t, whole, err = l.in.Add(data, more)
	if err != nil {
		return nil, false, &LoginError{Class: LoginInitiatorError.Class(), Err: err}
	}
	if l.seen == nil {
		l.seen = make(map[string]struct{})
	}
	for _, kv := range t {
		if _, again := l.seen[kv.Key]; again {
			return nil, false, NewLoginError(LoginInitiatorError, "key %s sent twice", kv.Key)
		}
		l.seen[kv.Key] = struct{}{}
	}
	return t, whole, nil
}

// take removes key from t.
func take(t *Text, key string) (value string, ok bool) {
	for i, kv := range *t {
		if kv.Key == key {
			*t = append((*t)[:i:i], (*t)[i+1:]...)
			return kv.Value, true
		}
	}
	return "", false
}

// takeAuth removes the keys of authentication exchanges from t.
func takeAuth(t *Text) (auth Text) {
	var rest Text
	for _, kv := range *t {
		if isAuthKey(kv.Key) {
			auth = append(auth, kv)
		} else {
			rest = append(rest, kv)
		}
	}
	*t = rest
	return auth
}

// stageForbids is the first key of t that may not be sent in the security stage (RFC 7143, section 12), "" if there is none.
func stageForbids(t Text) string {
	for _, kv := range t {
		if i, ok := keyIndex[kv.Key]; ok && !keys[i].AnyStage {
			return kv.Key
		}
	}
	return ""
}
