package main

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
)

// Latencies are recorded in nanoseconds, to three digits.
const (
	latencyLeast  = 100
	latencyMost   = int64(100 * time.Second)
	latencyDigits = 3
)

// tally is what has been measured of reads, or of writes.
type tally struct {
	ios  int64
	hist *hdrhistogram.Histogram
}

func newTally() tally {
	return tally{hist: hdrhistogram.New(latencyLeast, latencyMost, latencyDigits)}
}

func (t *tally) reset() {
	t.ios = 0
	t.hist.Reset()
}

func (t *tally) add(d time.Duration) {
	t.ios++
	_ = t.hist.RecordValue(min(max(int64(d), latencyLeast), latencyMost)) // in range
}

// benchJob keeps its commands under way. A command's end sends the next one, from the goroutine that has read it.
type benchJob struct {
	spec  *benchSpec
	disk  *disk
	first int64 // octet at which the job's share of the disk begins
	slots int64 // how many commands the share has room for

	// mu guards what follows. It is not held in Submit, which may end commands itself.
	mu        sync.Mutex
	rng       rand.PCG
	readPos   int64 // next slot of sequential reads, and of checking
	writePos  int64
	left      int64 // commands to be sent still; below 0: no end
	checking  bool  // read back what was written
	recording bool
	halted    bool
	busy      int
	idle      chan struct{} // closed when busy is 0 again
	err       error
	failed    func(error)
	read      tally
	write     tally
	last      time.Time // when the last command that was counted ended
	written   bitmap    // if contents are verified
	checked   int64     // commands whose data was compared

	ops  []benchOp
	reqs []*initiator.Request
}

// benchOp is one of the job's commands.
type benchOp struct {
	req   initiator.Request
	one   [1]*initiator.Request
	job   *benchJob
	mem   iscsi.Buffer
	slot  int64
	write bool
	check bool // compare what is read
	began time.Time
}

func newBenchJob(spec *benchSpec, d *disk, i int) (*benchJob, error) {
	share := spec.size / int64(spec.jobs) / int64(d.cap.BlockSize) * int64(d.cap.BlockSize)
	j := &benchJob{
		spec: spec, disk: d, first: spec.offset + int64(i)*share, slots: share / int64(spec.bs),
		read: newTally(), write: newTally(), ops: make([]benchOp, spec.depth), reqs: make([]*initiator.Request, 0, spec.depth),
	}
	j.rng.Seed(spec.seed, uint64(i))
	if spec.verify && spec.writes() {
		j.written = newBitmap(j.slots)
	}
	content := rand.NewChaCha8([32]byte{byte(spec.seed), byte(i)})
	for k := range j.ops {
		op := &j.ops[k]
		m, err := d.lun.Alloc(spec.bs)
		if err != nil {
			j.release()
			return nil, err
		}
		if spec.writes() {
			_, _ = content.Read(m.Bytes()) // what compresses or deduplicates would flatter the target
		}
		op.mem, op.job = m, j
		op.req.Context, op.req.Done = op, benchDone
		op.one[0] = &op.req
	}
	return j, nil
}

// release gives the memory back; no command is under way.
func (j *benchJob) release() {
	for i := range j.ops {
		if m := j.ops[i].mem; m != nil {
			m.Release()
			j.ops[i].mem = nil
		}
	}
}

// start sends the first commands, at most as many as limit says (below 0: no limit). The channel is closed when all have ended; failed is told
// of what ends the job early.
func (j *benchJob) start(limit int64, checking bool, failed func(error)) <-chan struct{} {
	j.mu.Lock()
	idle := make(chan struct{})
	j.idle, j.left, j.checking, j.halted, j.failed = idle, limit, checking, false, failed
	if checking {
		j.readPos = 0
	}
	j.reqs = j.reqs[:0]
	now := time.Now()
	for i := range j.ops {
		if j.next(&j.ops[i], now) {
			j.reqs = append(j.reqs, &j.ops[i].req)
		}
	}
	j.busy = len(j.reqs)
	if j.busy == 0 {
		close(idle)
	}
	j.mu.Unlock()
	if len(j.reqs) == 0 {
		return idle
	}
	if err := j.disk.lun.Submit(j.reqs...); err != nil { // none was taken
		j.mu.Lock()
		j.haltLocked(err)
		j.busy = 0
		close(idle)
		j.mu.Unlock()
	}
	return idle
}

// halt sends no more commands.
func (j *benchJob) halt(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.haltLocked(err)
}

func (j *benchJob) haltLocked(err error) {
	j.halted = true
	if err != nil && j.err == nil {
		j.err = err
		j.failed(err)
	}
}

// record forgets what was counted, and begins to count if on; stopRecording ends it.
func (j *benchJob) record(on bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.read.reset()
	j.write.reset()
	j.recording, j.last = on, time.Time{}
}

func (j *benchJob) stopRecording() {
	j.mu.Lock()
	j.recording = false
	j.mu.Unlock()
}

// counts are the commands that were counted so far.
func (j *benchJob) counts() (reads, writes, checked int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.read.ios, j.write.ios, j.checked
}

// next prepares op for the next command; false if there is none. mu is held.
func (j *benchJob) next(op *benchOp, now time.Time) bool {
	if j.halted || j.left == 0 {
		return false
	}
	if j.checking {
		if op.slot = j.written.next(j.readPos, j.slots); op.slot == j.slots {
			return false
		}
		j.readPos, op.write, op.check = op.slot+1, false, true
	} else {
		op.write = j.spec.readPercent == 0 || j.spec.readPercent < 100 && int(j.rng.Uint64()%100) >= j.spec.readPercent
		switch {
		case j.spec.random:
			op.slot = int64(j.rng.Uint64() % uint64(j.slots))
		case op.write:
			op.slot = j.writePos
			j.writePos = (j.writePos + 1) % j.slots
		default:
			op.slot = j.readPos
			j.readPos = (j.readPos + 1) % j.slots
		}
		// Decided now, and not at its end: a write that ends meanwhile says nothing about what is read.
		op.check = j.spec.verify && !op.write && (j.written == nil || j.written.has(op.slot))
	}
	if j.left > 0 {
		j.left--
	}
	bs := int(j.disk.cap.BlockSize)
	off := j.offset(op)
	lba, blocks := uint64(off)/uint64(bs), uint32(j.spec.bs/bs)
	if op.write {
		if j.written != nil {
			fillPattern(op.mem.Bytes(), off, j.spec.seed)
		}
		j.disk.lun.PrepareWrite(&op.req, lba, blocks, bs, op.mem)
	} else {
		j.disk.lun.PrepareRead(&op.req, lba, blocks, bs, op.mem)
	}
	op.began = now
	return true
}

// offset is where op's command begins, in octets.
func (j *benchJob) offset(op *benchOp) int64 { return j.first + op.slot*int64(j.spec.bs) }

// benchDone takes a command's end, counts it, and sends the next.
func benchDone(r *initiator.Request) {
	op := r.Context.(*benchOp)
	j, now := op.job, time.Now()
	j.mu.Lock()
	j.ended(op, now)
	more := j.next(op, now)
	if !more {
		j.leave()
	}
	j.mu.Unlock()
	if !more {
		return
	}
	if err := j.disk.lun.Submit(op.one[:]...); err != nil {
		j.mu.Lock()
		j.haltLocked(err)
		j.leave()
		j.mu.Unlock()
	}
}

// leave takes a command out of the run. mu is held.
func (j *benchJob) leave() {
	if j.busy--; j.busy == 0 {
		close(j.idle)
	}
}

// ended judges a command's end. What the disk puts off, or a lost connection had under way, was sent again before: the wait is part of the latency. mu
// is held.
func (j *benchJob) ended(op *benchOp, now time.Time) {
	r := &op.req
	if r.Err != nil {
		j.haltLocked(fmt.Errorf("%s at octet %d: %w", j.disk, j.offset(op), r.Err))
		return
	}
	if op.write && j.written != nil {
		j.written.set(op.slot)
	}
	if op.check {
		if err := checkPattern(op.mem.Bytes(), j.offset(op), j.spec.seed); err != nil {
			j.haltLocked(fmt.Errorf("%s: verify: %w", j.disk, err))
			return
		}
		j.checked++
	}
	if j.recording && !j.checking {
		t := &j.read
		if op.write {
			t = &j.write
		}
		t.add(now.Sub(op.began))
		j.last = now
	}
}
