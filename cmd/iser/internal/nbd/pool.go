package nbd

import (
	"errors"
	"fmt"
	"sync"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
)

// Lengths of the pieces of memory that requests are carried by, in octets. A request of up to smallPiece takes one small one, a larger one as many
// large ones as it needs; each piece is one SCSI command.
const (
	smallPiece = 16 << 10
	largePiece = 256 << 10
)

// piece is memory for a part of a request's payload, and the command that moves it. It has one owner: the pool, or a task.
type piece struct {
	req  initiator.Request
	buf  iscsi.Buffer
	home *shelf
	task *task
	n    int // octets in use
	next *piece
}

// pool is the memory of one connection. It grows up to its bounds, or has all of it from the beginning, and never shrinks: a connection that is
// over leaves it to the next.
type pool struct {
	disk Disk

	mu    sync.Mutex
	room  sync.Cond // something came back, or the pool was shut
	shut  bool
	tasks *task
	small shelf
	large shelf
	out   int // tasks in use
}

// shelf holds the free pieces of one length.
type shelf struct {
	free *piece
	idle int // free ones
	made int
	most int
	size int
}

// newPool makes a pool for depth requests at once, with large pieces of memory octets together, for commands of at most command octets.
func newPool(disk Disk, depth, memory, command int, fill bool) (*pool, error) {
	p := &pool{disk: disk}
	p.room.L = &p.mu
	p.small = shelf{most: depth, size: min(smallPiece, command)}
	p.large = shelf{size: min(largePiece, command)}
	p.large.most = memory / p.large.size
	for range depth {
		t := &task{}
		t.req.Context, t.req.Done = t, flushed
		t.next, p.tasks = p.tasks, t
	}
	for fill && p.small.made < p.small.most {
		if err := p.small.grow(disk); err != nil {
			return nil, err
		}
	}
	for fill && p.large.made < p.large.most {
		if err := p.large.grow(disk); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// plain is memory that nobody has registered.
type plain struct{ b []byte }

func (m *plain) Bytes() []byte { return m.b }
func (m *plain) Release()      {}

// grow adds one piece, with every page of it present.
func (s *shelf) grow(disk Disk) error {
	b, err := disk.Alloc(s.size)
	if errors.Is(err, iscsi.ErrNoMemory) {
		b, err = &plain{make([]byte, s.size)}, nil
	}
	if err != nil {
		return fmt.Errorf("nbd: memory for requests: %w", err)
	}
	clear(b.Bytes())
	x := &piece{buf: b, home: s}
	x.req.Context, x.req.Done = x, moved
	s.made++
	s.put(x)
	return nil
}

func (s *shelf) put(x *piece) {
	x.next, s.free = s.free, x
	s.idle++
}

func (s *shelf) take() *piece {
	x := s.free
	s.free, x.next = x.next, nil
	s.idle--
	return x
}

// largest is the longest payload that the pool can carry, in octets.
func (p *pool) largest() int { return min(p.large.most*p.large.size, MaxRequest) }

// pieces is what carries n octets: how many pieces of which shelf.
func (p *pool) pieces(n int) (*shelf, int) {
	switch {
	case n > p.small.size:
		return &p.large, (n + p.large.size - 1) / p.large.size
	case n > 0:
		return &p.small, 1
	}
	return &p.small, 0
}

// has tells whether take would not wait. It stays so until the next take.
func (p *pool) has(n int) bool {
	s, want := p.pieces(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tasks != nil && want <= s.idle+s.most-s.made
}

// take waits for a task, and memory for n octets of payload. It is nil when the pool was shut, and err when there is no memory to grow by.
func (p *pool) take(n int) (*task, error) {
	s, want := p.pieces(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.shut {
			return nil, nil
		}
		for p.tasks != nil && s.idle < want && s.made < s.most {
			if err := s.grow(p.disk); err != nil {
				return nil, err
			}
		}
		if p.tasks != nil && s.idle >= want {
			break
		}
		p.room.Wait()
	}
	t := p.tasks
	p.tasks, t.next = t.next, nil
	p.out++
	for ; want > 0; want-- {
		x := s.take()
		x.task, x.n = t, min(n, s.size)
		n -= x.n
		t.pieces = append(t.pieces, x)
	}
	return t, nil
}

// put takes a task back with its memory.
func (p *pool) put(t *task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, x := range t.pieces {
		t.pieces[i], x.task = nil, nil
		x.home.put(x)
	}
	t.pieces, t.batch, t.tail, t.conn = t.pieces[:0], t.batch[:0], t.tail[:0], nil
	t.next, p.tasks = p.tasks, t
	p.out--
	p.room.Broadcast()
}

// close lets take end.
func (p *pool) close() {
	p.mu.Lock()
	p.shut = true
	p.room.Broadcast()
	p.mu.Unlock()
}

// open undoes close.
func (p *pool) open() {
	p.mu.Lock()
	p.shut = false
	p.mu.Unlock()
}

// settle waits until all tasks are back.
func (p *pool) settle() {
	p.mu.Lock()
	for p.out > 0 {
		p.room.Wait()
	}
	p.mu.Unlock()
}

// release gives the memory back. No task is out.
func (p *pool) release() {
	for _, s := range []*shelf{&p.small, &p.large} {
		for s.free != nil {
			s.take().buf.Release()
			s.made--
		}
	}
}
