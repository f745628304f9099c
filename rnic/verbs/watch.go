//go:build verbs && cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// watcher takes events off a descriptor on a goroutine of its own, which the runtime's poller wakes.
type watcher struct {
	f    *os.File
	done chan struct{}
}

// watch calls take whenever fd is readable; take returns false when there was nothing left to take. The
// descriptor stays its owner's: what is watched is a duplicate.
func watch(fd int, take func() bool) (*watcher, error) {
	if rc := C.gw_nonblocking(C.int(fd)); rc != 0 {
		return nil, fmt.Errorf("verbs: making descriptor %d non-blocking: %w", fd, syscall.Errno(rc))
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("verbs: duplicating descriptor %d: %w", fd, err)
	}
	w := &watcher{f: os.NewFile(uintptr(dup), "rdma events"), done: make(chan struct{})}
	conn, err := w.f.SyscallConn()
	if err != nil {
		_ = w.f.Close()
		return nil, fmt.Errorf("verbs: watching descriptor %d: %w", fd, err)
	}
	go func() {
		defer close(w.done)
		for conn.Read(func(uintptr) bool { return take() }) == nil {
		}
	}()
	return w, nil
}

// close ends the goroutine and waits for it. It is harmless on nil.
func (w *watcher) close() {
	if w == nil {
		return
	}
	_ = w.f.Close()
	<-w.done
}

// handles give C a number for a Go object.
var handles struct {
	sync.RWMutex
	next uintptr
	of   map[uintptr]any
}

func newHandle(o any) uintptr {
	handles.Lock()
	defer handles.Unlock()
	if handles.of == nil {
		handles.of = make(map[uintptr]any)
	}
	handles.next++
	handles.of[handles.next] = o
	return handles.next
}

func lookup(h uintptr) any {
	handles.RLock()
	defer handles.RUnlock()
	return handles.of[h]
}

func dropHandle(h uintptr) {
	handles.Lock()
	delete(handles.of, h)
	handles.Unlock()
}

// queuePairs finds a queue pair by its address in C, for asynchronous events. Several Devices may share a
// context, and any of them may get an event.
var queuePairs sync.Map // uintptr to *qp

var asyncNames = map[uint32]string{
	C.IBV_EVENT_QP_FATAL:      "the queue pair failed",
	C.IBV_EVENT_QP_REQ_ERR:    "an invalid request was refused",
	C.IBV_EVENT_QP_ACCESS_ERR: "an access was refused",
	C.IBV_EVENT_CQ_ERR:        "a completion queue overran",
	C.IBV_EVENT_SRQ_ERR:       "a shared receive queue failed",
	C.IBV_EVENT_DEVICE_FATAL:  "the device failed",
}

// takeAsync takes an asynchronous event.
func (d *Device) takeAsync() bool {
	var element C.uintptr_t
	var kind C.uint32_t
	if C.gw_async_event(d.ctx, &element, &kind) != 0 {
		return false
	}
	switch uint32(kind) {
	case C.IBV_EVENT_QP_FATAL, C.IBV_EVENT_QP_REQ_ERR, C.IBV_EVENT_QP_ACCESS_ERR:
		if q, ok := queuePairs.Load(uintptr(element)); ok {
			q.(*qp).suspect(fmt.Errorf("verbs: %s", asyncNames[uint32(kind)]))
		}
	case C.IBV_EVENT_CQ_ERR, C.IBV_EVENT_SRQ_ERR:
		d.log.Warn(asyncNames[uint32(kind)])
	case C.IBV_EVENT_DEVICE_FATAL:
		d.log.Warn(asyncNames[uint32(kind)])
		d.remove()
	}
	return true
}

// counter counts without a lock.
type counter = atomic.Uint64
