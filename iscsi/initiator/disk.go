package initiator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// Disk is a logical unit that outlives its sessions, reached by one path or several. All that a LUN does it does; a caller sees
// success, an error that the logical unit itself answered with, or, after DiskConfig.ReplacementTimeout without a path, one error.
//
//	      Disk: queue, order, fence                 LUN calls
//	     /        |         \
//	 path 0     path 1     path 2                   each: login, identity, access state,
//	session     session    (login again)            again after DefaultTime2Wait, with backoff
//
// What is sent again. A command that a lost session left unanswered is sent again on the next session, or on another path: it may be executed twice.
// For reads, and for writes of the same data to the same blocks, that makes no difference. Others (COMPARE AND WRITE, PERSISTENT RESERVE
// OUT, MODE SELECT, what is not known) end with an *UncertainError instead, unless they never left.
//
// Order. A write that overlaps one under way waits for its end, so that one which is sent again cannot undo a later one. A caller who waits
// for a write before the next that depends on it is therefore safe, over any number of failures; between writes that are under
// way at once there is no order, as on every disk. Only simple task attributes are taken.
//
// Ghosts. A write that a lost session left at the target may be executed long after it. Logging in again with the same ISID ends it (session
// reinstatement, RFC 7143, section 6.3.5). Before writes go on by another path that ISID logs in there, if it leads to the same target portal group; else
// a LOGICAL UNIT RESET ends what the target has got. That reset cannot end a write that is still on its way to the target, in a network that delays it beyond the
// end of its connection: put portals into one group, or choose another DiskConfig.Fence, where that can happen.
//
// What may have changed. After each login the logical unit has to be the same (designators of VPD page 83h, serial number, block size),
// and reservations that were made through this Disk have to be there still; if not, commands end with an *IdentityError or a *ReservationError,
// rather than reach another's data.
type Disk struct {
	*LUN
	cfg DiskConfig
	log *slog.Logger

	ctx  context.Context // ends with Close
	end  context.CancelCauseFunc
	wg   sync.WaitGroup // path and fence goroutines
	cond *sync.Cond     // on mu: a path went up or down

	// mu guards all below, and the Disk's fields of each Request that is with it. Sessions' locks are taken under it, and no owner's Done runs
	// under it.
	mu      sync.Mutex
	closed  bool
	paths   []*diskPath
	active  []*diskPath // those that commands go by now
	turn    int
	parked  requestList // wait to be sent, in the order of submission
	over    requestList // have ended, to be finished when mu is released
	owed    []*Session  // to settle when mu is released
	flying  []*Request  // changes of blocks under way
	seq     uint64
	timer   *time.Timer // looks at parked commands
	downAt  time.Time   // since when there is no active path
	lastErr error       // why the last path went
	fencing bool
	ident   identity
	held    reservations
	cache   cacheState
	stats   DiskStats
}

// OpenDisk opens the logical unit that the paths lead to, and returns when one of them is up: the others follow. It fails when all
// have failed once, or the context ends.
func OpenDisk(ctx context.Context, cfg DiskConfig, paths ...PathConfig) (*Disk, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, errors.New("initiator: a disk without paths")
	}
	d := &Disk{cfg: cfg, log: cfg.Session.Log, downAt: time.Now()}
	d.cond = sync.NewCond(&d.mu)
	d.ctx, d.end = context.WithCancelCause(context.Background())
	d.timer = time.AfterFunc(time.Hour, d.wake)
	d.timer.Stop()
	d.LUN = &LUN{c: d, lun: paths[0].LUN}
	for i, p := range paths {
		if p.Dialer == nil || p.Addr == "" || p.TargetName == "" {
			d.end(ErrClosed)
			return nil, fmt.Errorf("initiator: path %d needs a dialer, an address and a target's name", i)
		}
		d.paths = append(d.paths, &diskPath{d: d, cfg: p, index: i, recheck: make(chan struct{}, 1), login: make(chan struct{}, 1)})
	}
	for _, p := range d.paths {
		d.wg.Go(p.run)
	}
	if err := d.await(ctx); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// await waits for the first path.
func (d *Disk) await(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		d.mu.Lock()
		d.cond.Broadcast()
		d.mu.Unlock()
	})
	defer stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		var errs []error
		for _, p := range d.paths {
			if p.up {
				return nil
			}
			if p.err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", p.cfg.Addr, p.err))
			}
		}
		if len(errs) == 1 && len(d.paths) == 1 {
			return d.paths[0].err
		}
		if len(errs) == len(d.paths) {
			return errors.Join(errs...)
		}
		if ctx.Err() != nil {
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
		d.cond.Wait()
	}
}

// Close ends the disk: commands under way end with ErrClosed, the sessions are logged out of, and all goroutines have ended when it returns.
func (d *Disk) Close() error {
	d.mu.Lock()
	d.closed = true
	d.timer.Stop()
	d.cond.Broadcast()
	for r := d.parked.head; r != nil; r = d.parked.head {
		d.parked.remove(r)
		d.finishLocked(r, d.closedError())
	}
	d.unlock()
	d.end(ErrClosed)
	d.wg.Wait()
	return nil
}

func (d *Disk) closedError() error { return &SessionError{Target: d.node(), Cause: ErrClosed} }

// node implements carrier.
func (d *Disk) node() string         { return d.paths[0].cfg.TargetName }
func (d *Disk) logger() *slog.Logger { return d.log }

// Alloc lends memory for command data. It is registered with what the paths have in common, if their Datamovers register at all, and
// stays good when a session is lost.
func (d *Disk) Alloc(n int) (iscsi.Buffer, error) {
	d.mu.Lock()
	var s *Session
	if len(d.active) > 0 {
		s = d.active[0].session
	}
	d.mu.Unlock()
	if s != nil {
		b, err := s.Alloc(n)
		if err == nil || !errors.Is(err, iscsi.ErrConnection) {
			return b, err
		}
	}
	return &memory{make([]byte, n)}, nil
}

// resetLUN implements carrier.
func (d *Disk) resetLUN(ctx context.Context, _ uint64) error {
	d.mu.Lock()
	if err := d.awaitPath(ctx); err != nil {
		d.unlock()
		return err
	}
	p := d.paths[0]
	for _, q := range d.paths {
		if q.up {
			p = q
			break
		}
	}
	s := p.session
	d.unlock()
	return s.resetLUN(ctx, p.cfg.LUN)
}

// awaitPath waits until a path is up, as commands do; mu is held.
func (d *Disk) awaitPath(ctx context.Context) error {
	up := func() bool { return slices.ContainsFunc(d.paths, func(p *diskPath) bool { return p.up }) }
	if up() {
		return nil
	}
	limited := ctx
	if limit := d.cfg.ReplacementTimeout; limit >= 0 {
		c, cancel := context.WithDeadline(ctx, d.downAt.Add(limit))
		defer cancel()
		limited = c
	}
	stop := context.AfterFunc(limited, func() {
		d.mu.Lock()
		d.cond.Broadcast()
		d.mu.Unlock()
	})
	defer stop()
	for !up() {
		switch {
		case d.closed:
			return d.closedError()
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case limited.Err() != nil:
			return d.noPath()
		}
		d.cond.Wait()
	}
	return nil
}

// unlock releases mu and then finishes what has ended under it.
func (d *Disk) unlock() {
	list, owed := d.over, d.owed
	d.over, d.owed = requestList{}, nil
	d.mu.Unlock()
	for r := list.head; r != nil; r = list.head {
		list.remove(r) // r is its owner's again
		r.finish()
	}
	for _, s := range owed {
		s.settle()
	}
}

// finishLocked lets r end with err when mu is released.
func (d *Disk) finishLocked(r *Request, err error) {
	r.Err, r.where = err, nowhere
	d.over.push(r)
}

// setCapacity takes over what a path found.
func (d *Disk) setCapacity(c scsi.Capacity) {
	if d.ident.capacity != c {
		d.ident.capacity = c
		d.geo.Store(nil)
	}
}
