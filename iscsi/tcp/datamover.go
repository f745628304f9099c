package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"goiwarp/internal/sock"
	"goiwarp/iscsi"
)

// Datamover moves PDUs and data of one iSCSI connection over TCP. It implements iscsi.Datamover
// for either role.
type Datamover struct {
	cfg    Config
	target bool
	sock   sock.Socket
	conn   net.Conn // below sock; nil in memory
	share  *share

	up       iscsi.Notifier
	upcalls  sync.Mutex // held by the goroutine whose upcalls run: the reader, or the writer with completions
	started  atomic.Bool
	local    atomic.Bool   // ConnectionTerminate was called: no more upcalls
	draining atomic.Bool   // what still arrives is thrown away
	ending   chan struct{} // closed by finish
	failed   chan struct{} // closed by fail
	done     chan struct{}
	linger   *time.Timer // guarded by queue.mu

	params atomic.Pointer[iscsi.Params] // NoticeKeyValues
	phase  atomic.Pointer[phase]        // how PDUs are read now
	full   chan struct{}                // closed by EnableDatamover
	window atomic.Int64

	reader    reader
	transfers transfers
	queue     queue
	sender    sender
	writer    writer
	stats     stats

	// Recovery within the connection (ErrorRecoveryLevel > 0).
	keep   keeper   // a target's
	status statuses // an initiator's; the reader's alone
	over   bool     // no upcalls any more; guarded by upcalls
}

var (
	_ iscsi.Datamover = (*Datamover)(nil)
	_ iscsi.Meter     = (*Datamover)(nil)
)

// phase is what the reader needs to know of a login phase or of full feature phase. It is never changed.
type phase struct {
	full                     bool
	headerDigest, dataDigest bool
	maxData                  int // longest data segment, octets
	level                    int // ErrorRecoveryLevel
}

// stats count what people ask for. The reading and the writing half each have one writer at a time.
type stats struct {
	pdusIn, pdusOut, octetsIn, octetsOut, writes, waits, strays, folded, lost, snacks, resent atomic.Uint64
}

// Lengths of data segments during login, in octets: what RFC 7143 (section 13.12) lets both sides send, and
// what is accepted from peers that take it less seriously.
const (
	loginData       = 8192
	loginDataAccept = 64 << 10
)

// NewTarget returns the Datamover of a connection that an initiator opened. read are the octets
// already taken from conn, if someone looked at what it speaks. The Datamover owns conn from then on.
func NewTarget(conn net.Conn, cfg Config, read []byte) *Datamover {
	return newOnConn(conn, cfg, true, read, nil)
}

// NewInitiator returns the Datamover of a connection to a target's portal. The Datamover owns conn
// from then on.
func NewInitiator(conn net.Conn, cfg Config) *Datamover {
	return newOnConn(conn, cfg, false, nil, nil)
}

// newOnConn uses what wrap, if not nil, gives for conn, whose options are set before that hides them.
func newOnConn(conn net.Conn, cfg Config, target bool, read []byte, wrap func(net.Conn) net.Conn) *Datamover {
	cfg = cfg.withDefaults()
	tune(conn, cfg.DeadPeer)
	if wrap != nil {
		conn = wrap(conn)
	}
	d := newOnSocket(sock.NewSocket(conn), cfg, target, read)
	d.conn = conn
	return d
}

func newOnSocket(s sock.Socket, cfg Config, target bool, read []byte) *Datamover {
	cfg = cfg.withDefaults()
	d := &Datamover{
		cfg: cfg, target: target, sock: s,
		share:  &share{pool: cfg.Pool, limit: int64(cfg.Memory)},
		ending: make(chan struct{}), failed: make(chan struct{}), done: make(chan struct{}), full: make(chan struct{}),
	}
	d.phase.Store(&phase{maxData: loginDataAccept})
	d.reader.init(read)
	d.queue.idle.L = &d.queue.mu
	d.writer.wake = make(chan struct{}, 1)
	d.writer.quit = make(chan struct{})
	d.writer.ended = make(chan struct{})
	return d
}

// Start implements iscsi.Datamover.
func (d *Datamover) Start(n iscsi.Notifier) {
	if !d.started.CompareAndSwap(false, true) {
		return
	}
	d.up = n
	if ph := d.phase.Load(); ph.level > 0 && !d.recovers() { // enabled before it was started
		below := *ph
		below.level = 0
		d.phase.Store(&below)
	}
	go d.write()
	go d.read()
}

// recovers tells whether the layer above takes its part in the recovery of lost PDUs. A successor of a login elsewhere (iscsi.Switch) is
// enabled before it is started, and knows that layer only then.
func (d *Datamover) recovers() bool {
	_, ok := d.up.(iscsi.RecoveryNotifier)
	return ok || !d.target
}

// Info implements iscsi.Datamover. MaxPutData is the peer's MaxRecvDataSegmentLength.
func (d *Datamover) Info() iscsi.DatamoverInfo {
	p, ph := d.params.Load(), d.phase.Load()
	i := iscsi.DatamoverInfo{
		Transport: "tcp", LocalAddr: d.sock.LocalAddr(), RemoteAddr: d.sock.RemoteAddr(), MaxPutData: maxSend(p),
	}
	digest := func(on bool) string {
		if on {
			return "CRC32C"
		}
		return "None"
	}
	for _, f := range []struct{ name, value string }{
		{"HeaderDigest", digest(ph.headerDigest)},
		{"DataDigest", digest(ph.dataDigest)},
		{"PDUs received", count(&d.stats.pdusIn)},
		{"PDUs sent", count(&d.stats.pdusOut)},
		{"octets received", count(&d.stats.octetsIn)},
		{"octets sent", count(&d.stats.octetsOut)},
		{"writes", count(&d.stats.writes)},
		{"waits for the peer to read", count(&d.stats.waits)},
		{"statuses sent with data", count(&d.stats.folded)},
		{"data of forgotten tasks", count(&d.stats.strays)},
		{"PDUs lost", count(&d.stats.lost)},
		{"SNACKs", count(&d.stats.snacks)},
		{"PDUs sent again", count(&d.stats.resent)},
	} {
		i.Facts = append(i.Facts, iscsi.Fact{Layer: "tcp", Name: f.name, Value: f.value})
	}
	return i
}

// Moved implements iscsi.Meter.
func (d *Datamover) Moved() (received, sent uint64) {
	return d.stats.octetsIn.Load(), d.stats.octetsOut.Load()
}

func count(c *atomic.Uint64) string { return strconv.FormatUint(c.Load(), 10) }

// maxSend is the longest data segment that the peer takes.
func maxSend(p *iscsi.Params) int {
	if p == nil || p.MaxSendDataSegment == 0 {
		return loginData
	}
	return p.MaxSendDataSegment
}

// Alloc implements iscsi.Datamover. Buffers are page-aligned, outside the Go heap, and have at most 16 MiB.
func (d *Datamover) Alloc(n int) (iscsi.Buffer, error) {
	if d.down() {
		return nil, d.lost()
	}
	return d.share.alloc(n)
}

// Lent is how many buffers Alloc has lent that were not released yet.
func (d *Datamover) Lent() int { return int(d.share.lent.Load()) }

// AllocateConnectionResources implements iscsi.Datamover. TCP's flow control needs no receives to
// be posted, so that only the window is noted.
func (d *Datamover) AllocateConnectionResources(r iscsi.ConnectionResources) error {
	if d.down() {
		return d.lost()
	}
	d.window.Store(int64(r.Window))
	return nil
}

// DeallocateConnectionResources implements iscsi.Datamover.
func (d *Datamover) DeallocateConnectionResources() { d.window.Store(0) }

// NoticeKeyValues implements iscsi.Datamover.
func (d *Datamover) NoticeKeyValues(p *iscsi.Params) {
	own := *p
	d.params.Store(&own)
}

// EnableDatamover implements iscsi.Datamover: from here on PDUs have the digests that were
// negotiated, but for the final Login Response itself.
func (d *Datamover) EnableDatamover(final *iscsi.PDU) error {
	if d.target != (final != nil) {
		return errors.New("iscsi/tcp: the final Login Response is the target's to send")
	}
	p := d.params.Load()
	if p == nil {
		return errors.New("iscsi/tcp: EnableDatamover before NoticeKeyValues")
	}
	ph := &phase{full: true, headerDigest: p.HeaderDigest, dataDigest: p.DataDigest, maxData: p.MaxRecvDataSegment}
	if ph.maxData == 0 {
		ph.maxData = loginData
	}
	ph.level = p.ErrorRecoveryLevel
	if d.up != nil && !d.recovers() {
		ph.level = 0
	}
	if d.phase.Load().full {
		return errors.New("iscsi/tcp: EnableDatamover twice")
	}
	d.phase.Store(ph) // before the peer can know that it may send in the new way
	var err error
	if ph.level > 0 && d.target {
		d.keep.begin(iscsi.BHS(final.BHS[:]).StatSN()+1, d.cfg.Keep)
	}
	if final != nil {
		err = d.sendFinal(final, ph)
	} else {
		d.queue.setDigests(ph)
	}
	close(d.full)
	return err
}

// down tells whether the connection has ended or is ending.
func (d *Datamover) down() bool {
	select {
	case <-d.failed:
		return true
	default:
		return d.local.Load()
	}
}

var errEnding = fmt.Errorf("iscsi/tcp: %w: it is being closed", iscsi.ErrConnection)

// lost is the error of a method on a connection that is down.
func (d *Datamover) lost() error {
	d.queue.mu.Lock()
	defer d.queue.mu.Unlock()
	if d.queue.err == nil {
		return errEnding
	}
	return d.queue.err
}

// ConnectionTerminate implements iscsi.Datamover.
func (d *Datamover) ConnectionTerminate(graceful bool) {
	d.local.Store(true)
	if !d.started.Swap(true) { // nobody runs who could end it
		close(d.writer.ended)
		d.fail(nil, true)
		go d.teardown()
		return
	}
	if graceful {
		d.finish()
		return
	}
	d.fail(nil, true)
}

// Done implements iscsi.Datamover.
func (d *Datamover) Done() <-chan struct{} { return d.done }

// finish ends the connection once everything queued was sent, and within Config.Linger in any case.
// Nothing more can be queued.
func (d *Datamover) finish() {
	d.draining.Store(true)
	q := &d.queue
	q.mu.Lock()
	if q.dead || q.closing {
		q.mu.Unlock()
		return
	}
	q.closing, q.held = true, nil
	d.linger = time.AfterFunc(d.cfg.Linger, func() { d.fail(errLinger, true) })
	run, fin := q.claim(), q.claimFIN()
	q.mu.Unlock()
	close(d.ending)
	switch {
	case run:
		d.pump(false)
	case fin:
		d.closeWrite()
	}
}

var errLinger = fmt.Errorf("iscsi/tcp: %w: the peer did not close in time", iscsi.ErrConnection)

// closeWrite sends the FIN; the reader goes on until the peer's.
func (d *Datamover) closeWrite() {
	if err := d.sock.CloseWrite(); err != nil {
		d.fail(nil, false)
	}
}

// fail ends the connection now. abrupt drops what the kernel has not sent yet, so that nothing of this
// connection reaches the peer later.
func (d *Datamover) fail(err error, abrupt bool) {
	q := &d.queue
	q.mu.Lock()
	if q.dead {
		q.mu.Unlock()
		return
	}
	q.dead = true
	if q.err == nil {
		q.err = err
	}
	q.mu.Unlock()
	close(d.failed)
	if c, ok := d.conn.(interface{ SetLinger(sec int) error }); ok && abrupt {
		_ = c.SetLinger(0)
	}
	_ = d.sock.Close()
}

// teardown runs last, on the reader's goroutine. When it closes done nobody uses the connection's memory.
func (d *Datamover) teardown() {
	close(d.writer.quit)
	<-d.writer.ended
	q := &d.queue
	q.mu.Lock()
	for q.writing && !q.handed {
		q.idle.Wait()
	}
	list := q.takeAll()
	if d.linger != nil {
		d.linger.Stop()
	}
	err := q.err
	q.mu.Unlock()
	d.sender.mu.Lock()
	for _, o := range d.sender.run {
		o.next, list = list, o
	}
	d.sender.run = nil
	d.sender.mu.Unlock()
	for list != nil {
		o := list
		list = o.next
		o.abandon()
	}
	if err != nil {
		d.cfg.Log.Debug("connection ended", "remote", d.sock.RemoteAddr(), "err", err)
	}
	d.keep.close()
	d.status.close()
	d.upcalls.Lock()
	d.over = true
	d.upcalls.Unlock()
	d.transfers.unwatch()
	if !d.local.Load() && d.up != nil {
		d.upcalls.Lock()
		d.up.ConnectionTerminateNotify(err)
		d.upcalls.Unlock()
	}
	close(d.done)
}

// ended makes the reader's last error the connection's.
func (d *Datamover) ended(err error) {
	var e *Error
	switch {
	case errors.Is(err, io.EOF):
		d.fail(nil, false)
	case errors.As(err, &e):
		d.fail(e, true)
	default:
		d.fail(fmt.Errorf("iscsi/tcp: %w: %w", iscsi.ErrConnection, err), true)
	}
}
