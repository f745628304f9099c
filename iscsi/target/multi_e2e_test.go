package target

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/internal/faultproxy"
	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// multi is an initiator's session of several connections over whatever Datamovers, for tests: commands go by the connection that they are
// given to.
type multi struct {
	t      *testing.T
	leader *iscsi.Params
	async  chan iscsi.AsyncEvent

	mu    sync.Mutex // guards what follows, and keeps requests in the order of CmdSN
	cmdSN iscsi.SN
	itt   uint32
}

// strand is a connection of it, and its Datamover's Notifier.
type strand struct {
	m      *multi
	cid    uint16
	dm     iscsi.Datamover
	login  *iscsi.InitiatorLogin // the reading goroutine's
	params *iscsi.Params
	up     chan error

	mu        sync.Mutex // guards what follows
	expStatSN iscsi.SN
	tasks     map[uint32]chan *iscsi.PDU // those of the connection
	gone      bool
}

func newMulti(t *testing.T) *multi {
	return &multi{t: t, cmdSN: 1, async: make(chan iscsi.AsyncEvent, 8)}
}

// open logs a connection in: the first begins the session.
func (m *multi) open(p portal, cid uint16) (*strand, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	dm, err := p.dialer.Dial(ctx, p.addr)
	if err != nil {
		return nil, err
	}
	info := dm.Info()
	cfg := iscsi.InitiatorLoginConfig{
		InitiatorName: initiatorName, TargetName: targetName, ISID: [6]byte{0x80, 7, 7, 7, 7, 7}, CID: cid, CmdSN: m.cmdSN,
		RDMA: info.RDMA, Handover: info.Handover,
		Settings: iscsi.Settings{MaxConnections: 4, ErrorRecoveryLevel: 2, DefaultTime2Retain: 20, TaskReporting: []string{"ResponseFence", "RFC3720"}},
	}
	if m.leader != nil {
		cfg.TSIH, cfg.Join = m.leader.TSIH, m.leader
	}
	s := &strand{
		m: m, cid: cid, dm: dm, up: make(chan error, 1), tasks: map[uint32]chan *iscsi.PDU{},
		login: iscsi.NewInitiatorLogin(cfg),
	}
	dm.Start(s)
	if err := s.loginSend(s.login.First()); err != nil {
		return nil, err
	}
	select {
	case err = <-s.up:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err == nil && m.leader == nil {
		m.leader = s.params
	}
	if err != nil {
		dm.ConnectionTerminate(false)
		<-dm.Done()
	}
	return s, err
}

func (s *strand) loginSend(step iscsi.InitiatorStep) error {
	if step.Last {
		r := iscsi.ConnectionResources{Window: 64, RecvDataSegment: iscsi.DefaultRDMARecvDataSegment}
		if err := s.dm.AllocateConnectionResources(r); err != nil {
			return err
		}
	}
	return s.dm.SendControl(step.Request, nil)
}

func (s *strand) ControlNotify(p *iscsi.PDU) {
	defer p.Release()
	if s.login != nil {
		step, err := s.login.Step(p)
		switch {
		case err == nil && !step.Done:
			err = s.loginSend(step)
		case err == nil:
			s.login, s.params = nil, step.Params
			s.expStatSN = step.ExpStatSN
			s.dm.NoticeKeyValues(step.Params)
			if err = s.dm.EnableDatamover(nil); err == nil {
				s.up <- nil
				return
			}
		}
		if err != nil {
			s.up <- err
		}
		return
	}
	h := iscsi.BHS(p.BHS[:])
	if p.Opcode() == iscsi.OpNOPIn && h.ITT() == iscsi.ReservedTag {
		s.pong(iscsi.NOPIn(p.BHS[:]).TTT())
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expStatSN = h.StatSN() + 1
	if p.Opcode() == iscsi.OpAsync {
		s.m.async <- iscsi.AsyncMessage(h).Event()
		return
	}
	if c := s.tasks[h.ITT()]; c != nil {
		delete(s.tasks, h.ITT())
		c <- &iscsi.PDU{BHS: p.BHS, Data: append([]byte(nil), p.Data...)}
	}
}

// pong answers a NOP-In. It takes the locks in exchange's order: the session's, then the connection's.
func (s *strand) pong(ttt uint32) {
	p := &iscsi.PDU{}
	n := iscsi.NOPOut(p.BHS[:])
	n.Init()
	n.SetImmediate(true)
	n.SetITT(iscsi.ReservedTag)
	n.SetTTT(ttt)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	n.SetCmdSN(s.m.cmdSN)
	s.mu.Lock()
	n.SetExpStatSN(s.expStatSN)
	s.mu.Unlock()
	_ = s.dm.SendControl(p, nil)
}

func (s *strand) DataCompletionNotify(uint32, uint64, error) {}
func (s *strand) DataACKNotify(uint32, uint32)               {}

func (s *strand) ConnectionTerminateNotify(err error) {
	if s.login != nil {
		s.up <- fmt.Errorf("in the login: %w", err)
		return
	}
	s.end()
}

// end tells all who wait on the connection.
func (s *strand) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	for itt, c := range s.tasks {
		delete(s.tasks, itt)
		close(c)
	}
}

// exchange sends a request and waits for its answer; nil if the connection ended before.
func (s *strand) exchange(p *iscsi.PDU, tb *iscsi.TaskBuffers) (itt uint32, answer *iscsi.PDU) {
	c := make(chan *iscsi.PDU, 1)
	h := iscsi.BHS(p.BHS[:])
	m := s.m
	m.mu.Lock()
	m.itt++
	itt = m.itt
	binary.BigEndian.PutUint32(h[16:], itt)
	binary.BigEndian.PutUint32(h[24:], uint32(m.cmdSN))
	if !h.Immediate() {
		m.cmdSN++
	}
	s.mu.Lock()
	h.SetExpStatSN(s.expStatSN)
	gone := s.gone
	if !gone {
		s.tasks[itt] = c
	}
	s.mu.Unlock()
	if gone || s.dm.SendControl(p, tb) != nil {
		if !h.Immediate() && gone {
			m.cmdSN-- // nobody saw it
		}
		m.mu.Unlock()
		s.end()
		return itt, nil
	}
	m.mu.Unlock()
	return itt, <-c
}

// move writes or reads data, and tells its task and status; false if the connection ended.
func (s *strand) move(write bool, lun int, off int64, data []byte) (uint32, uint8, bool) {
	p := &iscsi.PDU{}
	h := iscsi.SCSICommand(p.BHS[:])
	h.Init()
	h.SetFinal(true)
	h.SetLUN(scsi.EncodeLUN(lun))
	h.SetEDTL(uint32(len(data)))
	tb := &iscsi.TaskBuffers{}
	if write {
		h.SetWrite(true)
		h.SetCDB(write10(uint32(off/512), uint16(len(data)/512)))
		tb.Out, tb.OutLen = plainBuffer(data), len(data)
	} else {
		h.SetRead(true)
		h.SetCDB(read10(uint32(off/512), uint16(len(data)/512)))
		tb.In, tb.InLen = plainBuffer(data), len(data)
	}
	itt, rsp := s.exchange(p, tb)
	if rsp == nil {
		return itt, 0, false
	}
	return itt, iscsi.SCSIResponse(rsp.BHS[:]).Status(), true
}

// settle takes the unit attentions of the first LUNs.
func (s *strand) settle(luns int) {
	for lun := range luns {
		for range 4 {
			p := &iscsi.PDU{}
			h := iscsi.SCSICommand(p.BHS[:])
			h.Init()
			h.SetFinal(true)
			h.SetLUN(scsi.EncodeLUN(lun))
			if _, rsp := s.exchange(p, nil); rsp == nil || iscsi.SCSIResponse(rsp.BHS[:]).Status() == 0 {
				break
			}
		}
	}
}

// verify writes and reads back some areas of both LUNs that belong to one worker.
func (s *strand) verify(worker, rounds int) error {
	for i := range rounds {
		lun, off := i%2, int64(worker)<<20+int64(i%8)<<17
		data := random(512<<(i%8), uint64(worker)<<16|uint64(i))
		if _, status, ok := s.move(true, lun, off, data); !ok || status != 0 {
			return fmt.Errorf("connection %d, write %d: status %#x, %t", s.cid, i, status, ok)
		}
		got := make([]byte, len(data))
		if _, status, ok := s.move(false, lun, off, got); !ok || status != 0 {
			return fmt.Errorf("connection %d, read %d: status %#x, %t", s.cid, i, status, ok)
		}
		if err := same(data, got); err != nil {
			return fmt.Errorf("connection %d, round %d: %w", s.cid, i, err)
		}
	}
	return nil
}

// logout closes a connection, or for recovery another one.
func (s *strand) logout(reason iscsi.LogoutReason, cid uint16) iscsi.LogoutCode {
	p := &iscsi.PDU{}
	h := iscsi.LogoutRequest(p.BHS[:])
	h.Init()
	h.SetImmediate(true)
	h.SetReason(reason)
	h.SetCID(cid)
	_, rsp := s.exchange(p, nil)
	require.NotNil(s.m.t, rsp)
	return iscsi.LogoutResponse(rsp.BHS[:]).Response()
}

// function sends a task management request.
func (s *strand) function(fn iscsi.TaskFunction, lun int, rtt uint32, tb *iscsi.TaskBuffers) iscsi.TaskResponse {
	p := &iscsi.PDU{}
	h := iscsi.TaskMgmtRequest(p.BHS[:])
	h.Init()
	h.SetImmediate(true)
	h.SetFunction(fn)
	h.SetLUN(scsi.EncodeLUN(lun))
	h.SetRTT(rtt)
	_, rsp := s.exchange(p, tb)
	require.NotNil(s.m.t, rsp)
	return iscsi.TaskMgmtResponse(rsp.BHS[:]).Response()
}

// TestSeveralConnections: a session of four connections over each transport, and over both of iSER's orders at once: I/O with its data checked
// on all of them together; a reset, with a fence across them; one that is cut; another that is logged out; and one in its place
// (RFC 7143, sections 4.2.5 and 6.3; RFC 7145, section 5.1).
func TestSeveralConnections(t *testing.T) {
	for name, serve := range map[string][2]func(*testing.T, *Server) portal{
		"tcp": {overTCP, overTCP}, "iser": {overISER, overISER}, "handover": {overHandover, overHandover},
		"handover joins iser": {overISER, overHandover}, "iser joins handover": {overHandover, overISER},
	} {
		t.Run(name, func(t *testing.T) {
			st := memory(t, 64<<20)
			s := newServer(t, func(c *Config) { c.LogoutWait = 10 * time.Millisecond }, st, blocking(memory(t, 64<<20)))
			first := serve[0](t, s)
			second := first
			if name != "tcp" && name != "iser" && name != "handover" {
				second = serve[1](t, s)
			}
			t.Cleanup(func() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				require.NoError(t, s.Shutdown(ctx))
			})
			proxy := faultproxy.New(t, second.addr, faultproxy.Script{})
			cut := second
			cut.addr = proxy.Addr()

			m := newMulti(t)
			var all []*strand
			for cid, p := range []portal{first, second, cut, first} {
				c, err := m.open(p, uint16(cid))
				require.NoError(t, err)
				all = append(all, c)
				if cid == 0 {
					c.settle(2)
				}
			}
			status := s.Status()
			require.Len(t, status.Sessions, 1)
			require.Equal(t, 4, status.Sessions[0].Connections)
			require.Equal(t, name != "tcp", status.Sessions[0].Params.RDMAExtensions)
			together := func(conns ...*strand) {
				t.Helper()
				var wg sync.WaitGroup
				errs := make(chan error, 2*len(conns))
				for i, c := range conns {
					for w := range 2 {
						wg.Go(func() {
							if err := c.verify(2*i+w, 10); err != nil {
								errs <- err
							}
						})
					}
				}
				wg.Wait()
				close(errs)
				for err := range errs {
					require.NoError(t, err)
				}
			}
			together(all...)
			require.Equal(t, iscsi.TaskComplete, all[1].function(iscsi.LogicalUnitReset, 0, iscsi.ReservedTag, nil))
			all[3].settle(2)
			together(all...)

			proxy.Close() // the network fails
			<-all[2].dm.Done()
			all[2].end()
			require.Equal(t, iscsi.AsyncDropConnection, <-m.async)
			together(all[0], all[1], all[3])
			require.Equal(t, iscsi.LogoutOK, all[0].logout(iscsi.LogoutConnection, 2))
			require.Equal(t, iscsi.LogoutOK, all[1].logout(iscsi.LogoutConnection, 1))
			all[1].dm.ConnectionTerminate(true)
			<-all[1].dm.Done()
			together(all[0], all[3])
			again, err := m.open(second, 1)
			require.NoError(t, err)
			together(all[0], all[3], again)
			require.Len(t, s.Status().Sessions, 1)
			require.Equal(t, 3, s.Status().Sessions[0].Connections)

			require.Equal(t, iscsi.LogoutOK, again.logout(iscsi.LogoutSession, 0))
			for _, c := range []*strand{all[0], all[3], again} {
				c.dm.ConnectionTerminate(true)
				<-c.dm.Done()
			}
		})
	}
}
