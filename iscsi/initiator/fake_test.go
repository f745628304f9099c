package initiator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

const (
	testInitiator = "iqn.2026-11.com.example:host"
	testTarget    = "iqn.2026-11.com.example:disk"
	testBlock     = 512
)

// fake is a Datamover whose other end is a script in memory: a small target, of which a test replaces what should misbehave.
type fake struct {
	info iscsi.DatamoverInfo
	tgt  iscsi.TargetLoginConfig
	// script sees every PDU of the initiator first, on the fake's reading goroutine. If it returns true the PDU is dealt with.
	script func(f *fake, p *iscsi.PDU, t *iscsi.TaskBuffers) bool
	disk   []byte
	window iscsi.SN
	// refuse makes SendControl of a SCSI Command fail.
	refuse func() error

	n         iscsi.Notifier
	mu        sync.Mutex
	in, spare []item
	wake      chan struct{}
	stop      chan struct{}
	done      chan struct{}
	graceful  bool
	stopped   bool
	login     *iscsi.TargetLogin
	stat, exp iscsi.SN
	rsp       iscsi.PDU
	tasks     map[uint32]*iscsi.TaskBuffers
	dead      []uint32
	mute      []uint32 // by StopDataOut
	allocated iscsi.ConnectionResources
	freed     bool
	enabled   bool
	buffers   atomic.Int64
}

type item struct {
	p *iscsi.PDU
	t *iscsi.TaskBuffers
	f func()
}

func newFake() *fake {
	f := &fake{
		info: iscsi.DatamoverInfo{Transport: "fake", LocalAddr: &net.TCPAddr{}, RemoteAddr: &net.TCPAddr{}, MaxPutData: 1 << 20},
		tgt: iscsi.TargetLoginConfig{StatSN: 50, Window: 1, Identify: func(iscsi.Identity) (iscsi.Grant, error) {
			return iscsi.Grant{PortalGroup: 1}, nil
		}},
		disk: make([]byte, 256*testBlock), window: 32,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}), tasks: map[uint32]*iscsi.TaskBuffers{},
	}
	return f
}

func (f *fake) Dial(context.Context, string) (iscsi.Datamover, error) { return f, nil }
func (f *fake) Info() iscsi.DatamoverInfo                             { return f.info }
func (f *fake) Start(n iscsi.Notifier) {
	f.n = n
	f.tgt.RDMA = f.info.RDMA
	f.login = iscsi.NewTargetLogin(f.tgt)
	go f.run()
}

type fakeBuffer struct {
	f *fake
	b []byte
}

func (b *fakeBuffer) Bytes() []byte { return b.b }
func (b *fakeBuffer) Release()      { b.f.buffers.Add(-1) }

func (f *fake) Alloc(n int) (iscsi.Buffer, error) {
	f.buffers.Add(1)
	return &fakeBuffer{f, make([]byte, n)}, nil
}

func (f *fake) AllocateConnectionResources(r iscsi.ConnectionResources) error {
	if f.allocated.Window != 0 {
		return errors.New("allocated twice")
	}
	f.allocated = r
	return nil
}
func (f *fake) DeallocateConnectionResources()     { f.freed = true }
func (f *fake) NoticeKeyValues(*iscsi.Params)      {}
func (f *fake) PutData(*iscsi.DataIn) error        { return errors.New("target only") }
func (f *fake) GetData(*iscsi.DataOut) error       { return errors.New("target only") }
func (f *fake) EnableDatamover(p *iscsi.PDU) error { f.enabled = true; return nil }
func (f *fake) Done() <-chan struct{}              { return f.done }
func (f *fake) DeallocateTaskResources(itt uint32) {
	f.mu.Lock()
	f.dead = append(f.dead, itt)
	delete(f.tasks, itt)
	f.mu.Unlock()
}

func (f *fake) SendControl(p *iscsi.PDU, t *iscsi.TaskBuffers) error {
	if f.refuse != nil && p.Opcode() == iscsi.OpSCSICommand {
		if err := f.refuse(); err != nil {
			p.Release()
			return err
		}
	}
	if err := iscsi.Validate(p, true); err != nil {
		panic(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		p.Release()
		return fmt.Errorf("fake: %w", iscsi.ErrConnection)
	}
	if t != nil {
		f.tasks[iscsi.BHS(p.BHS[:]).ITT()] = t
	}
	f.in = append(f.in, item{p: p, t: t})
	f.kick()
	return nil
}

func (f *fake) kick() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// do runs g on the reading goroutine, as if something had arrived.
func (f *fake) do(g func()) {
	f.mu.Lock()
	f.in = append(f.in, item{f: g})
	f.mu.Unlock()
	f.kick()
}

func (f *fake) ConnectionTerminate(graceful bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stopped {
		f.stopped, f.graceful = true, graceful
		close(f.stop)
	}
}

// hangUp is the connection going down from the other side.
func (f *fake) hangUp(err error) {
	f.mu.Lock()
	was := f.stopped
	f.stopped = true
	f.mu.Unlock()
	if !was {
		f.n.ConnectionTerminateNotify(err)
		close(f.stop)
	}
}

func (f *fake) run() {
	defer close(f.done)
	for {
		select {
		case <-f.stop:
			return
		case <-f.wake:
		}
		f.mu.Lock()
		batch := f.in
		f.in = f.spare[:0]
		f.mu.Unlock()
		for i := range batch {
			select {
			case <-f.stop:
				return
			default:
			}
			it := batch[i]
			batch[i] = item{}
			if it.f != nil {
				it.f()
				continue
			}
			if f.script == nil || !f.script(f, it.p, it.t) {
				f.serve(it.p, it.t)
			}
			it.p.Release()
		}
		f.spare = batch
	}
}

// up delivers a PDU of the target, with a StatSN that it uses up if uses is set.
func (f *fake) up(p *iscsi.PDU, uses bool) {
	h := iscsi.BHS(p.BHS[:])
	h.SetStatSN(f.stat)
	h.SetWindow(f.exp, f.exp+f.window-1)
	if uses {
		f.stat++
	}
	f.n.ControlNotify(p)
}

// count moves ExpCmdSN on.
func (f *fake) count(p *iscsi.PDU) {
	if h := iscsi.BHS(p.BHS[:]); !h.Immediate() && h.CmdSN() == f.exp {
		f.exp++
	}
}

// serve is the well-behaved target.
func (f *fake) serve(p *iscsi.PDU, t *iscsi.TaskBuffers) {
	h := iscsi.BHS(p.BHS[:])
	switch p.Opcode() {
	case iscsi.OpLoginReq:
		step, _ := f.login.Step(p)
		if step.Ready {
			step = f.login.Finish(9)
			f.stat, f.exp = f.login.StatSN(), f.login.CmdSN()
		}
		f.n.ControlNotify(step.Response)
	case iscsi.OpSCSICommand:
		f.count(p)
		f.command(iscsi.SCSICommand(p.BHS[:]), t)
	case iscsi.OpDataOut:
	case iscsi.OpNOPOut:
		f.count(p)
		if h.ITT() == iscsi.ReservedTag {
			return
		}
		q := new(iscsi.PDU)
		n := iscsi.NOPIn(q.BHS[:])
		n.Init()
		n.SetITT(h.ITT())
		q.Data = p.Data
		f.up(q, true)
	case iscsi.OpTaskMgmtReq:
		f.answerTask(h.ITT(), iscsi.TaskComplete)
	case iscsi.OpTextReq:
		q := new(iscsi.PDU)
		n := iscsi.TextResponse(q.BHS[:])
		n.Init()
		n.SetFinal(true)
		n.SetITT(h.ITT())
		q.Data = iscsi.AppendTargets(nil, []iscsi.TargetInfo{{Name: testTarget, Portals: []iscsi.Portal{{Addr: "10.0.0.1:3260", Group: 1, HasGroup: true}}}}).Append(nil)
		f.up(q, true)
	case iscsi.OpLogoutReq:
		q := new(iscsi.PDU)
		n := iscsi.LogoutResponse(q.BHS[:])
		n.Init()
		n.SetITT(h.ITT())
		f.up(q, true)
	}
}

func (f *fake) answerTask(itt uint32, code iscsi.TaskResponse) {
	q := new(iscsi.PDU)
	n := iscsi.TaskMgmtResponse(q.BHS[:])
	n.Init()
	n.SetITT(itt)
	n.SetResponse(code)
	f.up(q, true)
}

// command is the disk.
func (f *fake) command(c iscsi.SCSICommand, t *iscsi.TaskBuffers) {
	cdb := c.CDB()
	switch cdb[0] {
	case scsi.OpRead10, scsi.OpWrite10:
		lba, n := int(binary.BigEndian.Uint32(cdb[2:])), int(binary.BigEndian.Uint16(cdb[7:]))
		d := f.disk[lba*testBlock : (lba+n)*testBlock]
		if cdb[0] == scsi.OpRead10 {
			copy(t.In.Bytes()[:t.InLen], d)
		} else {
			copy(d, t.Out.Bytes()[:t.OutLen])
		}
		f.good(c, 0)
	case scsi.OpServiceActionIn16:
		b := make([]byte, 32)
		binary.BigEndian.PutUint64(b, uint64(len(f.disk)/testBlock-1))
		binary.BigEndian.PutUint32(b[8:], testBlock)
		f.good(c, t.InLen-copy(t.In.Bytes(), b))
	case scsi.OpReportLUNs:
		b := []byte{0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		f.good(c, t.InLen-copy(t.In.Bytes(), b))
	case scsi.OpTestUnitReady, scsi.OpSynchronizeCache10:
		f.good(c, 0)
	default:
		f.sense(c, scsi.KeyIllegalRequest, scsi.CodeInvalidOpcode)
	}
}

// good ends a command with GOOD. It uses one PDU again and again.
func (f *fake) good(c iscsi.SCSICommand, under int) {
	r := f.response(c.ITT())
	if under > 0 {
		r.SetUnderflow(true)
		r.SetResidual(uint32(under))
	}
	f.up(&f.rsp, true)
}

func (f *fake) response(itt uint32) iscsi.SCSIResponse {
	f.mu.Lock()
	delete(f.tasks, itt)
	f.mu.Unlock()
	f.rsp.Data = nil
	r := iscsi.SCSIResponse(f.rsp.BHS[:])
	r.Init()
	r.SetITT(itt)
	return r
}

func (f *fake) status(c iscsi.SCSICommand, s scsi.Status) {
	f.response(c.ITT()).SetStatus(uint8(s))
	f.up(&f.rsp, true)
}

func (f *fake) sense(c iscsi.SCSICommand, k scsi.Key, code scsi.Code) {
	f.response(c.ITT()).SetStatus(uint8(scsi.StatusCheckCondition))
	b := make([]byte, 18)
	b[0], b[2], b[7], b[12], b[13] = 0x70, byte(k), 10, byte(code>>8), byte(code)
	f.rsp.Data = iscsi.AppendSense(nil, b)
	f.up(&f.rsp, true)
}

func testConfig() Config {
	return Config{Addr: "10.0.0.1:3260", TargetName: testTarget, InitiatorName: testInitiator, ISID: [6]byte{0x80, 1}}
}

// start logs in to f and closes the session at the test's end.
func start(t testing.TB, f *fake, change ...func(*Config)) *Session {
	t.Helper()
	c := testConfig()
	for _, g := range change {
		g(&c)
	}
	s, err := Login(context.Background(), f, c)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// isCommand tells that p is a SCSI Command with that operation code.
func isCommand(p *iscsi.PDU, op byte) bool {
	return p.Opcode() == iscsi.OpSCSICommand && iscsi.SCSICommand(p.BHS[:]).CDB()[0] == op
}
