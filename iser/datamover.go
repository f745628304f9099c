package iser

import (
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"goiwarp/iscsi"
	"goiwarp/rnic"
)

// phase is how far a connection has come.
//
//	login --EnableDatamover--> full
//	  |                          |
//	  +---- graceful end: draining (what was queued is sent) ----+
//	  +---- failure, abrupt end, peer's close -----------------> down
type phase uint8

const (
	phaseLogin phase = iota
	phaseFull
	phaseDraining
	phaseDown
)

// Datamover is one iSER connection (iscsi.Datamover). Accept, Connect and Dial make one.
type Datamover struct {
	dom    *Domain
	own    bool // the domain belongs to this connection
	cfg    Config
	log    *slog.Logger
	target bool
	qp     rnic.QP
	cq     rnic.CQ

	lent atomic.Int64 // octets of buffers on this connection's account
	held atomic.Int32 // PDUs that the iSCSI layer has not released

	// up is held while an upcall runs. It is taken before mu.
	up    sync.Mutex
	n     iscsi.Notifier
	early []*receive // came before Start

	mu           sync.Mutex // guards what follows
	phase        phase
	cause        error // why the connection ended
	quiet        bool  // ConnectionTerminate was called: nobody waits for upcalls
	disconnected bool  // QP.Disconnect was called
	forced       *time.Timer
	start        *startup // of a connection that began as a byte stream; else nil

	peer      Private
	peerCM    bool // the peer sent the CM header
	sendInv   bool // Send with Invalidate is agreed on
	zeroBased bool
	linuxBase bool
	// emptyData: the peer announces unsolicited data, and leaves it in its memory (see absentData). Guarded by mu.
	emptyData bool
	ord       int

	params     iscsi.Params
	window     int
	reserved   int // credits
	limit      int // of held
	ownRecvs   int // posted to the connection's own receive queue
	unexpected unexpected
	received   bool // a message has come
	fullFirst  bool // the next message is the first of full feature phase
	helloWait  bool // the initiator waits for the HelloReply
	helloHold  bool // nothing leaves before this side's Hello or HelloReply
	helloTimer *time.Timer

	queues
	tasks    map[uint32]*task   // initiator: by ITT
	remote   map[uint32]mapping // target: by ITT
	freeTask *task
	windows  []rnic.Window // unbound
	nWindows int

	stats connStats
	done  chan struct{}
}

// connStats counts for Info.
type connStats struct {
	pdusSent, pdusReceived             uint64
	writes, reads                      uint64
	stags, remoteInvalid, localInvalid uint64
}

var (
	_ iscsi.Datamover = (*Datamover)(nil)
	_ iscsi.Meter     = (*Datamover)(nil)
)

// Moved implements iscsi.Meter. An RNIC in hardware does not tell what the peer reads and writes.
func (d *Datamover) Moved() (received, sent uint64) {
	_, st := d.link()
	return st.OctetsReceived + st.FPDUsReceived, st.OctetsSent
}

// Info implements iscsi.Datamover.
func (d *Datamover) Info() iscsi.DatamoverInfo {
	ci, st := d.link()
	d.mu.Lock()
	defer d.mu.Unlock()
	info := iscsi.DatamoverInfo{
		Transport: "iser", RDMA: true, LocalAddr: ci.LocalAddr, RemoteAddr: ci.RemoteAddr,
		MaxPutData: d.maxData(),
	}
	if d.target && d.peerCM && !d.params.Discovery {
		info.MaxSendSegment = linuxRecvDataSegment
	}
	f := make([]iscsi.Fact, 0, len(ci.Link)+24)
	for _, l := range ci.Link {
		f = append(f, iscsi.Fact{Layer: "link", Name: l.Name, Value: l.Value})
	}
	add := func(layer, name, value string) { f = append(f, iscsi.Fact{Layer: layer, Name: name, Value: value}) }
	count := func(layer, name string, n uint64) { add(layer, name, strconv.FormatUint(n, 10)) }
	add("iser", "device", d.dom.attr.Name+" ("+d.dom.attr.Provider+")")
	if d.peerCM {
		add("iser", "peer", d.peer.String())
	} else {
		add("iser", "peer", "no iSER CM header")
	}
	add("iser", "send with invalidate", onOff(d.sendInv))
	add("iser", "zero-based addresses", onOff(d.zeroBased))
	if d.linuxBase {
		add("iser", "write base offset", WriteBaseLinux.String())
	} else {
		add("iser", "write base offset", WriteBaseRFC.String())
	}
	add("iser", "reads outstanding at most", strconv.Itoa(d.ord))
	add("iser", "reads served at once", strconv.Itoa(ci.IRD))
	count("iser", "PDUs sent", d.stats.pdusSent)
	count("iser", "PDUs received", d.stats.pdusReceived)
	if d.target {
		count("iser", "PutData (RDMA Writes)", d.stats.writes)
		count("iser", "GetData (RDMA Reads)", d.stats.reads)
	} else {
		count("iser", "STags advertised", d.stats.stags)
		count("iser", "STags invalidated by the peer", d.stats.remoteInvalid)
		count("iser", "STags invalidated here", d.stats.localInvalid)
	}
	count("rdmap", "sends sent", st.SendsSent)
	count("rdmap", "sends received", st.SendsReceived)
	count("rdmap", "writes sent", st.WritesSent)
	count("rdmap", "writes received", st.WritesReceived)
	count("rdmap", "reads sent", st.ReadsSent)
	count("rdmap", "reads received", st.ReadsReceived)
	count("rdmap", "invalidates sent", st.InvalidatesSent)
	count("rdmap", "invalidates received", st.InvalidatesRecv)
	count("mpa", "FPDUs sent", st.FPDUsSent)
	count("mpa", "FPDUs received", st.FPDUsReceived)
	count("mpa", "CRCs generated", st.CRCsGenerated)
	count("mpa", "CRCs checked", st.CRCsChecked)
	info.Facts = f
	return info
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// maxData is the most octets of one PutData or GetData.
func (d *Datamover) maxData() int {
	n := int64(MaxBuffer)
	if m := d.dom.attr.MaxMsg; m > 0 {
		n = min(n, m)
	}
	return int(n)
}

// Start implements iscsi.Datamover.
func (d *Datamover) Start(n iscsi.Notifier) {
	d.up.Lock()
	defer d.up.Unlock()
	d.n = n
	if len(d.early) > 0 {
		// What came already is handed up apart from the caller's stack. It cannot be overtaken: whoever
		// takes up first delivers it.
		go func() {
			d.up.Lock()
			d.deliverEarly()
			d.up.Unlock()
		}()
	}
}

// Alloc implements iscsi.Datamover.
func (d *Datamover) Alloc(n int) (iscsi.Buffer, error) {
	if n == 0 {
		return noBuffer{}, nil
	}
	b, err := d.dom.buffers.get(n, d)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// AllocateConnectionResources implements iscsi.Datamover. Its failure is a *ResourceError.
func (d *Datamover) AllocateConnectionResources(r iscsi.ConnectionResources) error {
	cfg := &d.dom.cfg
	switch {
	case r.RecvDataSegment > cfg.RecvDataSegment:
		return &ResourceError{What: "octets of data segment in a receive", Asked: r.RecvDataSegment, Have: cfg.RecvDataSegment}
	case r.MaxAHS > cfg.MaxAHS:
		return &ResourceError{What: "octets of AHS in a receive", Asked: r.MaxAHS, Have: cfg.MaxAHS}
	case r.Window < 0:
		return &ResourceError{What: "command window", Asked: r.Window}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.downLocked(); err != nil {
		return err
	}
	old := d.window
	d.window = r.Window
	d.params.Discovery = r.Discovery
	if err := d.provision(); err != nil {
		d.window = old
		return err
	}
	return nil
}

// provision makes the receives follow the window and the keys; d.mu is held.
func (d *Datamover) provision() error {
	n := d.credits()
	if d.dom.receives.srq == nil {
		n = min(n, d.cfg.RecvDepth)
	}
	if err := d.dom.receives.reserve(d.reserved, n); err != nil {
		return err
	}
	d.reserved = n
	d.limit = n + d.window + d.unsolicitedPDUs()
	if d.dom.receives.srq != nil || d.qp == nil {
		return nil
	}
	// A queue of the connection's own keeps the receives posted for good, unsolicited data included.
	for want := min(n+d.unsolicitedPDUs(), d.cfg.RecvDepth); d.ownRecvs < want; d.ownRecvs++ {
		r, err := d.dom.receives.borrow(false)
		if err != nil {
			return err
		}
		if err := d.qp.PostRecv(&r.wr); err != nil {
			d.dom.receives.giveBack(r, false)
			return fmt.Errorf("iser: posting a receive: %w", err)
		}
	}
	return nil
}

// repost posts a slot to the connection's own queue again; false when the connection is down.
func (d *Datamover) repost(r *receive) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.phase == phaseDown || d.qp.PostRecv(&r.wr) != nil {
		return false
	}
	d.ownRecvs++
	return true
}

// DeallocateConnectionResources implements iscsi.Datamover.
func (d *Datamover) DeallocateConnectionResources() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.phase == phaseDown {
		return
	}
	d.window = 0
	if err := d.provision(); err != nil { // less than before: cannot fail
		d.log.Warn("iser: giving resources back", "error", err)
	}
}

// NoticeKeyValues implements iscsi.Datamover.
func (d *Datamover) NoticeKeyValues(p *iscsi.Params) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.params = *p
	d.unexpected.setLimit(p.MaxOutstandingUnexpectedPDUs)
	if d.phase == phaseDown {
		return
	}
	if err := d.provision(); err != nil {
		d.log.Warn("iser: receives for the negotiated keys", "error", err)
	}
}

// EnableDatamover implements iscsi.Datamover. Nothing changes below the connection, which is RDMA already: the
// limits of full feature phase begin to apply, and where iSERHelloRequired=Yes was declared the initiator's Hello leaves.
func (d *Datamover) EnableDatamover(final *iscsi.PDU) error {
	if final != nil {
		defer final.Release()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.downLocked(); err != nil {
		return err
	}
	if d.phase != phaseLogin {
		return fmt.Errorf("iser: EnableDatamover called twice")
	}
	if final != nil {
		if err := d.sendControl(final, nil); err != nil {
			return err
		}
		// Sending may have found the connection lost, and an end that has begun must stay one.
		if err := d.downLocked(); err != nil {
			return err
		}
	}
	d.phase = phaseFull
	d.expectHello()
	d.watchHello()
	if d.helloWait {
		return d.sendHello(AppendHello(nil, d.qp.Info().IRD))
	}
	return nil
}

// downLocked is the error that calls return once the connection ends; d.mu is held.
func (d *Datamover) downLocked() error {
	if d.phase >= phaseDraining {
		return &connectionError{d.cause}
	}
	return nil
}

// Done implements iscsi.Datamover.
func (d *Datamover) Done() <-chan struct{} { return d.done }
