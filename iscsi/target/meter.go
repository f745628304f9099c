package target

import (
	"maps"
	"math/bits"
	"sync/atomic"
	"time"

	"goiwarp/iscsi/scsi"
)

// Op is a kind of command, as far as meters tell them apart.
type Op uint8

// The kinds.
const (
	OpRead  Op = iota // READ
	OpWrite           // WRITE in all its forms, WRITE SAME and COMPARE AND WRITE among them
	OpFlush           // SYNCHRONIZE CACHE
	OpUnmap           // UNMAP
	OpOther           // whatever else
	NumOps
)

func (o Op) String() string {
	return [...]string{"read", "write", "flush", "unmap", "other"}[min(o, OpOther)]
}

// ops are the kinds of operation codes.
var ops = func() (t [256]Op) {
	for i := range t {
		t[i] = OpOther
	}
	for op, codes := range map[Op][]byte{
		OpRead: {scsi.OpRead6, scsi.OpRead10, scsi.OpRead12, scsi.OpRead16},
		OpWrite: {
			scsi.OpWrite6, scsi.OpWrite10, scsi.OpWrite12, scsi.OpWrite16, scsi.OpWriteSame10, scsi.OpWriteSame16, scsi.OpCompareAndWrite,
			0x2e, 0x8e, 0xae, // WRITE AND VERIFY
			0x8b, 0x9c, // ORWRITE, WRITE ATOMIC
		},
		OpFlush: {scsi.OpSynchronizeCache10, scsi.OpSynchronizeCache16},
		OpUnmap: {scsi.OpUnmap},
	} {
		for _, c := range codes {
			t[c] = op
		}
	}
	return t
}()

// Latencies are counted in buckets whose upper bounds double from 2^14 ns (16.384 µs) on to 2^33 ns (8.6 s): a shift and the
// position of the highest bit find the bucket, and its relative error is that of the powers of two. The last one has what took longer.
const (
	NumBuckets  = 21
	firstBucket = 14
)

// BucketBound is the upper bound of a latency bucket but the last.
func BucketBound(i int) time.Duration { return 1 << (firstBucket + i) }

// Meter counts the commands of a logical unit, or of a session. Adding to it locks and allocates nothing.
type Meter struct {
	ops    [NumOps]opMeter
	sense  [16]atomic.Uint64
	status [8]atomic.Uint64
}

type opMeter struct {
	octets  atomic.Uint64
	nanos   atomic.Uint64
	buckets [NumBuckets]atomic.Uint64
}

// statuses are those besides GOOD and CHECK CONDITION that Meters tell apart, in the order of Measure.Status.
var statuses = [...]scsi.Status{
	scsi.StatusBusy, scsi.StatusReservationConflict, scsi.StatusTaskSetFull, scsi.StatusACAActive, scsi.StatusTaskAborted,
}

// Measure is a snapshot of a Meter.
type Measure struct {
	Ops [NumOps]OpMeasure
	// Sense counts CHECK CONDITIONs by sense key.
	Sense [16]uint64
	// Status counts the ends of commands with another status, by status.
	Status map[scsi.Status]uint64
	// Depth is how many commands are in progress.
	Depth int
}

// OpMeasure is what was counted of one kind of command.
type OpMeasure struct {
	Commands uint64 // answered
	Octets   uint64 // of data, by the command's own reckoning
	// Latency is the sum over all commands, from the command's PDU to its answer, waits for the initiator's data included.
	Latency time.Duration
	// Buckets count commands by latency; BucketBound has the bounds.
	Buckets [NumBuckets]uint64
}

// epoch is what commands' times are counted from.
var epoch = time.Now()

// now is the time that commands are measured by. It reads the monotonic clock alone, at a third of what time.Now costs, which is much of
// what measuring a command costs.
func now() time.Duration { return time.Since(epoch) }

// record counts a command that has been answered.
func (m *Meter) record(cdb []byte, r *scsi.Result, d time.Duration) {
	op := OpOther
	if len(cdb) > 0 {
		op = ops[cdb[0]]
	}
	o := &m.ops[op]
	d = max(d, 0)
	o.buckets[min(max(bits.Len64(uint64(max(d, 1)-1))-firstBucket, 0), NumBuckets-1)].Add(1)
	o.nanos.Add(uint64(d))
	if n := r.In + r.Out; n > 0 {
		o.octets.Add(uint64(n))
	}
	switch r.Status {
	case scsi.StatusGood, scsi.StatusConditionMet:
	case scsi.StatusCheckCondition:
		if s, ok := scsi.ParseSense(r.Sense()); ok {
			m.sense[s.Key&0xf].Add(1)
		}
	default:
		for i, s := range statuses {
			if r.Status == s {
				m.status[i].Add(1)
			}
		}
	}
}

// Measure takes a snapshot; Depth is left to the caller.
func (m *Meter) Measure() Measure {
	v := Measure{Status: make(map[scsi.Status]uint64)}
	for i := range m.ops {
		o, to := &m.ops[i], &v.Ops[i]
		to.Octets, to.Latency = o.octets.Load(), time.Duration(o.nanos.Load())
		for b := range o.buckets {
			to.Buckets[b] = o.buckets[b].Load()
			to.Commands += to.Buckets[b]
		}
	}
	for i := range m.sense {
		v.Sense[i] = m.sense[i].Load()
	}
	for i, s := range statuses {
		if n := m.status[i].Load(); n > 0 {
			v.Status[s] = n
		}
	}
	return v
}

// measure counts a command that is answered, if that is wanted. c.mu is held.
func (c *conn) measure(t *task, r *scsi.Result) {
	if r.Err != nil {
		return // it has no answer
	}
	d := now() - t.began
	t.unit.meter.record(t.cdb, r, d)
	c.meter.record(t.cdb, r, d)
}

// Metrics is a snapshot of what Config.Meter has counted, for a monitoring system.
type Metrics struct {
	Units    []UnitMetrics
	Sessions []SessionMetrics // Normal sessions in full feature phase
	// Refused counts the logins that came to nothing, by reason: the name of the login status, "timeout", "crowded out" or "protocol error".
	Refused     map[string]uint64
	Connections int // all that are open
	LoggingIn   int // those whose login is not over
	Opened      int // sessions
}

// UnitMetrics is what was counted of one logical unit.
type UnitMetrics struct {
	Target string
	// LUN is -1 for commands to LUNs that are not there.
	LUN int
	Measure
}

// SessionMetrics is what was counted of one session.
type SessionMetrics struct {
	TSIH              uint16
	Target, Initiator string
	Transport         string
	Measure
}

// Metrics takes a snapshot. Without Config.Meter it has the logins only.
func (s *Server) Metrics() Metrics {
	m := Metrics{Refused: make(map[string]uint64)}
	s.refused.mu.Lock()
	maps.Copy(m.Refused, s.refused.counts)
	s.refused.mu.Unlock()
	s.mu.Lock()
	m.Connections, m.Opened, m.LoggingIn = len(s.conns), len(s.sessions), s.logins.conns.Len()+s.opening
	sessions := make([]*session, 0, len(s.sessions))
	for _, ss := range s.sessions {
		if ss.normal {
			sessions = append(sessions, ss)
		}
	}
	s.mu.Unlock()
	if !s.live.Load().Meter {
		return m
	}
	for _, n := range s.all() {
		m.Units = append(m.Units, UnitMetrics{n.Name, -1, n.absent.measure()})
		for _, lun := range n.Device.LUNs() {
			if lu := n.Device.LU(lun); lu != nil {
				m.Units = append(m.Units, UnitMetrics{n.Name, lun, n.unitOf(lu).measure()})
			}
		}
	}
	for _, ss := range sessions {
		if ss.shared.meter == nil { // it is older than the wish to measure
			continue
		}
		c := ss.current()
		v := SessionMetrics{ss.tsih, ss.key.target, ss.key.initiator, c.dm.Info().Transport, ss.shared.meter.Measure()}
		c.mu.Lock()
		v.Depth = c.depth()
		c.mu.Unlock()
		m.Sessions = append(m.Sessions, v)
	}
	return m
}

// measure takes a snapshot of a metered unit.
func (u *unit) measure() Measure {
	v := u.meter.Measure()
	u.mu.Lock()
	v.Depth = u.count
	u.mu.Unlock()
	return v
}
