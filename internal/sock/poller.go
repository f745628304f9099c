package sock

// Busy polling. A thread that sleeps until a socket has something for it costs whoever wakes it, and then the one who waits for its answer,
// some microseconds each. A server that stands between two sockets pays twice for each request. With a Poller the goroutine that reads one
// of them, the leader, does not sleep when it finds nothing: for a while it looks at both in turn, and does the other's work, too.
//
//	              Poller
//	guest <--visit--- leader's Read ---attempt--> leader's connection
//	(NBD client)      (goroutine)                 (target)
//
// Who polls has the processor for nothing if nothing comes. So it is done only while one of the last two waits of the same kind was shorter
// than the limit: waits for a guest's next request, or for the leader's answer to one. And it is not done while requests are answered later
// with it than without it, which is tried now and then: where others want the processor, they are.
//
// The runtime's poller must not know of a socket that is polled: it would wake a thread for what the polling one has taken already. So both
// kinds of connections are taken out of it, and who sleeps until one has something does so at a gate of its own, which is shut while
// somebody polls.

// Visitor is the work that waits for a guest's connection.
type Visitor interface {
	// Visit does what can be done at once, with no wait but for locks, and tells whether that was anything. It reads by Guest.TryRead. more
	// is false if the guest's own goroutine is to go on: then Guest.Await returns there. It runs on the leader's goroutine while the guest's
	// is in Await.
	Visit() (did, more bool)
}

// Nobody polls while more than maxPolled requests are under way, nor for the next calmDown requests: then there is always work for all
// processors, and who sleeps finds several answers at once when it wakes.
const (
	maxPolled = 2
	calmDown  = 64
)
