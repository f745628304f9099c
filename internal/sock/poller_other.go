//go:build !linux

package sock

import (
	"net"
	"time"
)

// Poller is busy polling by the readers of some connections, for their own and for guests: on Linux. A nil *Poller polls nothing.
type Poller struct{}

// NewPoller is nil: nothing is polled on this system.
func NewPoller(time.Duration) *Poller { return nil }

// Lead returns c.
func (*Poller) Lead(c net.Conn) net.Conn { return c }

// Join returns nil.
func (*Poller) Join(net.Conn, Visitor) *Guest { return nil }

// Guest is a connection that is visited by who polls. There is none on this system.
type Guest struct{ Socket }

// Leave ends the visits.
func (*Guest) Leave() {}

// Begun and Ended say that a request has come and that it was answered.
func (*Guest) Begun() {}

// Ended is said of each request that was Begun.
func (*Guest) Ended() {}

// TryRead reads without waiting.
func (*Guest) TryRead(Scatter) (int, error) { return 0, nil }

// Await is Read with visits while it waits.
func (*Guest) Await(Scatter) (int, error) { return 0, nil }
