package sock

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// MemSocket is one end of a pair made by MemPipe.
type MemSocket struct {
	guard
	in, out *stream
	emss    atomic.Int64
	closed  chan struct{} // closed by Close
	once    *sync.Once
	rdl     deadline
	wdl     deadline
	name    memAddr
	peer    memAddr
}

// stream is one direction: a ring of octets. The mutex guards it and is never held while waiting.
// more and room each hold one token for the one goroutine that may wait.
type stream struct {
	mu   sync.Mutex
	ring []byte
	r, n int  // first octet and number of octets held
	fin  bool // writer has finished
	dead bool // either end has gone
	more chan struct{}
	room chan struct{}
}

type memAddr string

func (memAddr) Network() string  { return "mem" }
func (a memAddr) String() string { return string(a) }

// MemPipe returns the two ends of a byte stream in memory, which holds up to size octets in each
// direction. It waits on channels only, so that it runs in virtual time under testing/synctest.
// Its ends behave as those of a TCP connection do: CloseWrite is a FIN, and after Close the other
// end reads what was under way and then io.EOF, and its writes fail. The EMSS is 1460 until set.
func MemPipe(size int) (*MemSocket, *MemSocket) {
	ab, ba := newStream(size), newStream(size)
	a := &MemSocket{in: ba, out: ab, closed: make(chan struct{}), once: new(sync.Once), name: "mem:a", peer: "mem:b"}
	b := &MemSocket{in: ab, out: ba, closed: make(chan struct{}), once: new(sync.Once), name: "mem:b", peer: "mem:a"}
	for _, s := range []*MemSocket{a, b} {
		s.emss.Store(1460)
		s.rdl.init()
		s.wdl.init()
	}
	return a, b
}

func newStream(size int) *stream {
	return &stream{ring: make([]byte, max(size, 1)), more: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// token leaves one token in c, if there is none.
func token(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (s *MemSocket) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// Read implements Socket.
func (s *MemSocket) Read(into Scatter) (int, error) {
	for {
		if s.isClosed() {
			return 0, net.ErrClosed
		}
		dl := s.rdl.wait()
		if isDone(dl) {
			return 0, os.ErrDeadlineExceeded
		}
		n, err := s.in.read(into)
		if n > 0 || err != nil {
			return n, err
		}
		select {
		case <-s.in.more:
		case <-s.closed:
		case <-dl:
		}
	}
}

func (t *stream) read(into Scatter) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == 0 {
		if t.fin {
			return 0, io.EOF
		}
		return 0, nil // lend no memory for an attempt that cannot succeed
	}
	bufs, err := into.Acquire()
	if err != nil {
		return 0, err
	}
	total := 0
	for _, b := range bufs {
		for len(b) > 0 && t.n > 0 {
			n := copy(b, t.ring[t.r:min(t.r+t.n, len(t.ring))])
			t.r = (t.r + n) % len(t.ring)
			t.n -= n
			total += n
			b = b[n:]
		}
	}
	into.Release(total)
	if total == 0 {
		return 0, io.ErrShortBuffer
	}
	token(t.room)
	return total, nil
}

// TryWrite implements Socket.
func (s *MemSocket) TryWrite(bufs [][]byte) (int, error) {
	if s.isClosed() {
		return 0, net.ErrClosed
	}
	if err := s.acquire(); err != nil {
		return 0, err
	}
	defer s.release()
	return s.out.write(bufs)
}

// Write implements Socket.
func (s *MemSocket) Write(bufs [][]byte) (int, error) {
	for {
		dl := s.wdl.wait()
		if isDone(dl) {
			return 0, os.ErrDeadlineExceeded
		}
		n, err := s.TryWrite(bufs)
		if n > 0 || err != nil {
			return n, err
		}
		select {
		case <-s.out.room:
		case <-s.closed:
		case <-dl:
		}
	}
}

func (t *stream) write(bufs [][]byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fin || t.dead {
		return 0, syscall.EPIPE
	}
	total := 0
	for _, b := range bufs {
		for len(b) > 0 && t.n < len(t.ring) {
			w := (t.r + t.n) % len(t.ring)
			end := len(t.ring)
			if w < t.r {
				end = t.r
			}
			n := copy(t.ring[w:end], b)
			t.n += n
			total += n
			b = b[n:]
		}
	}
	if total > 0 {
		token(t.more)
	}
	return total, nil
}

// finish ends the stream after what it holds.
func (t *stream) finish() {
	t.mu.Lock()
	t.fin = true
	t.mu.Unlock()
	token(t.more)
}

// abandon is for a stream whose reader has gone.
func (t *stream) abandon() {
	t.mu.Lock()
	t.dead, t.n = true, 0
	t.mu.Unlock()
	token(t.room)
}

// EMSS implements Socket.
func (s *MemSocket) EMSS() int { return int(s.emss.Load()) }

// SetEMSS sets what EMSS returns, as if TCP had learnt of another path.
func (s *MemSocket) SetEMSS(n int) { s.emss.Store(int64(n)) }

func (s *MemSocket) Readable() int {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	return s.in.n
}

// CloseWrite implements Socket.
func (s *MemSocket) CloseWrite() error {
	if s.isClosed() {
		return net.ErrClosed
	}
	s.out.finish()
	return nil
}

// Close implements Socket.
func (s *MemSocket) Close() error {
	err := net.ErrClosed
	s.once.Do(func() {
		err = nil
		close(s.closed)
		s.out.finish()
		s.in.abandon()
		s.rdl.set(time.Time{})
		s.wdl.set(time.Time{})
	})
	return err
}

// SetReadDeadline implements Socket.
func (s *MemSocket) SetReadDeadline(t time.Time) error { return s.setDeadline(&s.rdl, t) }

// SetWriteDeadline implements Socket.
func (s *MemSocket) SetWriteDeadline(t time.Time) error { return s.setDeadline(&s.wdl, t) }

func (s *MemSocket) setDeadline(d *deadline, t time.Time) error {
	if s.isClosed() {
		return net.ErrClosed
	}
	d.set(t)
	return nil
}

// LocalAddr implements Socket.
func (s *MemSocket) LocalAddr() net.Addr { return s.name }

// RemoteAddr implements Socket.
func (s *MemSocket) RemoteAddr() net.Addr { return s.peer }

// deadline turns a time into a channel that is closed when the time has come. The mutex guards
// both; set replaces a channel that is closed already.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	done  chan struct{}
}

func (d *deadline) init() { d.done = make(chan struct{}) }

func (d *deadline) wait() chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.done // its function runs or has run: let it close the channel that it knows
	}
	d.timer = nil
	if isDone(d.done) {
		d.done = make(chan struct{})
	}
	if t.IsZero() {
		return
	}
	wait := time.Until(t)
	if wait <= 0 {
		close(d.done)
		return
	}
	done := d.done
	d.timer = time.AfterFunc(wait, func() { close(done) })
}

func isDone(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
