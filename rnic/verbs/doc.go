// Package verbs is the provider for RDMA hardware, and for the kernel's software devices (siw,
// rxe): the interfaces of package rnic over libibverbs and librdmacm.
//
//	   PostSend, PostRecv          Poll, Wait, Handler             Dial, Listen, Accept
//	        |                             ^                               |
//	 checked and copied into         completions, copied out          events of the
//	 a flat array                    of a flat array                  connection manager
//	        |                             |                               |
//	+-------v-----------------------------|-------------------------------v------------+
//	| C shim: one call carries a chain, or a batch                                      |
//	| ibv_post_send, ibv_post_recv   ibv_poll_cq   rdma_connect, rdma_accept, ...       |
//	+------------------------------------------------------------------------------------+
//	        kernel bypass, or the kernel's uverbs           file descriptors, watched by
//	                                                        the Go runtime's poller
//
// The data-path verbs are inline functions in C and cost a call from Go, about as much as a small
// system call; so a chain of work requests is one call and so is a batch of completions. Nothing on
// that path allocates.
//
// The package is built with the tag verbs, with cgo, on Linux, against libibverbs-dev and
// librdmacm-dev:
//
//	go build -tags verbs ./...
//
// Without them Open fails with ErrNotBuiltIn, and everything else builds as before.
//
// What a device can do is what the kernel and its driver say. User space's siw, for one, has no
// local invalidation, no memory windows, no immediate data and no atomics. InfiniBand's immediate data and
// atomics are not RFC 7306's (which has masks) and are not offered as such. A connection's stream belongs to the
// device from its first octet: a TCP connection cannot become an RDMA connection here, so that
// CapStreamUpgrade is never claimed, and an iSER portal needs an address and port of its own.
//
// What differs from the device in software:
//
//   - The passive side of an iWARP connection holds its sends until a message of the peer has completed a receive (RFC
//     5044, section 7.1.2, rule 4). A Write or a Read of the peer's shows itself to no consumer and opens nothing.
//   - LinkOptions are the driver's business and have no effect.
//   - The kernel keeps siw's Terminate Messages to itself. A connection that ended for a cause that only the peer knows
//     ends as Disconnected if nothing was outstanding, and refused work is flushed work.
//   - siw serves a Read Request from any region within its bounds, whatever the region's rights; it raises its IRD to the
//     peer's ORD; and it cannot fence a Read, which is therefore refused.
//   - Completions do not tell whether a message was a solicited one.
package verbs

import (
	"errors"
	"log/slog"
	"time"
)

// ErrNotBuiltIn says that this build has no provider for RDMA hardware.
var ErrNotBuiltIn = errors.New("verbs: not built in: build with -tags verbs and cgo on Linux, with libibverbs-dev and librdmacm-dev installed")

// DefaultRemoval is how long Device.Close and a device's removal may take (Config.Removal).
const DefaultRemoval = 10 * time.Second

// Config says which device to open and how.
type Config struct {
	// Name is the device's name as in /sys/class/infiniband, "siw0" say. "" stands for the only
	// one there is.
	Name string
	// Removal bounds how long the end of a connection, and so a device's removal, may wait for the
	// device to give outstanding work back; 0 means DefaultRemoval.
	Removal time.Duration
	// Log takes what happens to connections, at debug level, and to the device, at warn level; nil
	// is silent.
	Log *slog.Logger
}
