package nbd

import (
	"sync"

	"goiwarp/internal/sock"
)

// maxReplies is how many replies one vectored write takes.
const maxReplies = 32

// output writes replies. Whoever has one ready writes it, and what others leave meanwhile, as far as the socket takes it now; what it does not take
// is left to the goroutine run, so that those who complete commands never wait for a client.
type output struct {
	t    *transmission
	sock sock.Socket
	wake chan struct{} // a write waits for the socket
	quit chan struct{}

	mu         sync.Mutex // guards the queue, writing and err
	head, tail *task
	writing    bool // somebody has the writing half, and all below
	err        error

	batch [maxReplies]*task
	count int
	bufs  [][]byte // what is left of the batch, in order
	store [][]byte
}

func (o *output) init(t *transmission) {
	o.t, o.sock = t, t.sock
	o.wake, o.quit = make(chan struct{}, 1), make(chan struct{})
	o.store = make([][]byte, 0, 2*maxReplies)
}

// push queues a reply, and writes it if nobody writes.
func (o *output) push(k *task) {
	o.mu.Lock()
	k.next = nil
	if o.tail == nil {
		o.head = k
	} else {
		o.tail.next = k
	}
	o.tail = k
	mine := !o.writing
	o.writing = true
	o.mu.Unlock()
	if mine {
		o.flush(o.sock.TryWrite)
	}
}

// flush writes until nothing is left, or the socket is full: then run goes on. The writing half is the caller's.
func (o *output) flush(write func([][]byte) (int, error)) {
	for o.count > 0 || o.load() {
		if o.broken() {
			o.unload()
			continue
		}
		n, err := write(o.bufs)
		switch {
		case err != nil:
			o.fail(err)
			o.unload()
		case n == 0:
			o.wake <- struct{}{} // has room: only who has the writing half sends
			return
		default:
			o.advance(n)
		}
	}
}

// load takes replies from the queue; without any the writing half is given up.
func (o *output) load() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.bufs = o.store[:0] // grows for very long reads, and stays so
	for o.head != nil && o.count < maxReplies {
		k := o.head
		o.head, k.next = k.next, nil
		if o.head == nil {
			o.tail = nil
		}
		o.batch[o.count] = k
		o.count++
		o.bufs = append(o.bufs, k.head.bytes())
		if k.typ == CmdRead && k.failure.Load() == 0 {
			for _, x := range k.pieces {
				o.bufs = append(o.bufs, x.buf.Bytes()[:x.n])
			}
		}
		if len(k.tail) > 0 {
			o.bufs = append(o.bufs, k.tail)
		}
	}
	o.store = o.bufs[:0]
	o.writing = o.count > 0
	return o.writing
}

// broken tells that replies are to be thrown away.
func (o *output) broken() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err != nil
}

// advance notes that n octets were written.
func (o *output) advance(n int) {
	for len(o.bufs) > 0 && n >= len(o.bufs[0]) {
		n -= len(o.bufs[0])
		o.bufs[0] = nil
		o.bufs = o.bufs[1:]
	}
	if len(o.bufs) == 0 {
		o.unload()
		return
	}
	o.bufs[0] = o.bufs[0][n:]
}

// unload gives the batch's tasks back.
func (o *output) unload() {
	n := o.count
	o.count, o.bufs = 0, nil
	for i := range n {
		k := o.batch[i]
		o.batch[i] = nil
		o.t.pool.put(k)
	}
}

// run writes what has to wait for the socket.
func (o *output) run() {
	for {
		select {
		case <-o.wake:
			o.flush(o.sock.Write)
		case <-o.quit:
			return
		}
	}
}

// fail ends the connection: reads and writes return, replies are thrown away.
func (o *output) fail(err error) {
	o.mu.Lock()
	first := o.err == nil
	if first {
		o.err = err
	}
	o.mu.Unlock()
	if first {
		_ = o.sock.Close()
	}
}

// end lets run return. Nothing is queued any more.
func (o *output) end() { close(o.quit) }
