package initiator

import (
	"context"
	"log/slog"
	"sync"

	"goiwarp/iscsi"
)

// carrier is what a LUN's commands go through: one Session, or the paths of a Disk.
type carrier interface {
	// submit takes commands over, or none of them.
	submit(lun uint64, reqs []*Request) error
	// stop ends a command early; when it returns the command has ended, or will with its session.
	stop(r *Request)
	// resetLUN is LOGICAL UNIT RESET.
	resetLUN(ctx context.Context, lun uint64) error
	Alloc(n int) (iscsi.Buffer, error)
	// node is the target's name, for errors and logs.
	node() string
	logger() *slog.Logger
}

func (s *Session) node() string         { return s.cfg.TargetName }
func (s *Session) logger() *slog.Logger { return s.log }

// requestPool recycles requests of the package's own use. Its lock is a leaf.
type requestPool struct {
	mu   sync.Mutex
	idle []*Request
}

// get takes a request that wakes whoever waits for it.
func (p *requestPool) get() *Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if n == 0 {
		return &Request{wake: make(chan struct{}, 1)}
	}
	r := p.idle[n-1]
	p.idle = p.idle[:n-1]
	return r
}

// put takes a request back that has ended.
func (p *requestPool) put(r *Request) {
	r.reset()
	p.mu.Lock()
	p.idle = append(p.idle, r)
	p.mu.Unlock()
}

// finish ends r for its owner: it is theirs again.
func (r *Request) finish() {
	if r.Done != nil {
		r.Done(r)
	} else {
		r.wake <- struct{}{}
	}
}

// wait waits until r has ended; if the context ends first r is given up.
func (l *LUN) wait(ctx context.Context, r *Request) error {
	select {
	case <-r.wake:
	case <-ctx.Done():
		l.cancel(ctx, r)
	}
	return r.Err
}
