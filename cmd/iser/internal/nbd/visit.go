package nbd

import "goiwarp/internal/sock"

var _ sock.Visitor = (*transmission)(nil)

// attend lets the poller take requests until there is one for this goroutine, or an error that the next read finds as well. It is true when the
// connection is over.
func (t *transmission) attend() bool {
	for len(t.in.ahead()) < requestLen {
		if _, err := t.guest.Await(&t.in); err != nil || t.over {
			break
		}
	}
	return t.over
}

// Visit implements sock.Visitor: it takes the requests that are there as a whole and wait for nothing. The others are for this connection's own
// goroutine.
func (t *transmission) Visit() (did, more bool) {
	if _, err := t.guest.TryRead(&t.in); err != nil {
		return false, false
	}
	for {
		b := t.in.ahead()
		if len(b) < requestLen {
			return did, true
		}
		r, err := parseRequest(b[:requestLen])
		if err != nil || r.typ == CmdDisconnect || r.payload() > readAhead-requestLen || !t.pool.has(r.moves()) {
			return did, false
		}
		if len(b) < requestLen+int(r.payload()) {
			return did, true // the rest is on its way
		}
		t.in.from += requestLen
		if more, err := t.take(r); err != nil || !more {
			t.over, t.end = true, err
			return did, false
		}
		did = true
	}
}
