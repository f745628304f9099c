// Package verbs is the provider for RDMA hardware, and for the kernel's software devices (siw,
// rxe): the interfaces of package rnic over libibverbs and librdmacm.
//
//	   PostSend, PostRecv          Poll, Wait, Handler             Dial, Listen, Accept
//	        |                             ^                               |
//	 checked and copied into         completions, copied out          events of the
//	 a flat array in C memory        of a flat array                  connection manager
//	        |                             |                               |
//	+-------v-----------------------------|-------------------------------v------------+
//	| C shim: one call carries a chain, or a batch                                      |
//	| ibv_post_send, ibv_post_recv   ibv_poll_cq   rdma_connect, rdma_accept, ...       |
//	+------------------------------------------------------------------------------------+
//	        kernel bypass, or the kernel's uverbs           two file descriptors, watched
//	                                                        by the Go runtime's poller
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
// local invalidation, no memory windows, no immediate data and no atomics; RoCE has immediate data
// of its own kind, which is not RFC 7306's and is not offered. A connection's stream belongs to the
// device from its first octet: a TCP connection cannot become an RDMA connection here, so that
// CapStreamUpgrade is never claimed, and an iSER portal needs an address and port of its own.
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
