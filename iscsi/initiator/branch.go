package initiator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"goiwarp/iscsi"
)

// branch is a further connection of a session (RFC 7143, section 4.2.5): it carries commands, and what belongs to them. Everything else goes by the
// leading connection. A command and its data and status keep to one connection (allegiance).
//
//	Session: CmdSN, window, tags         one for all
//	   |-- leading connection            StatSN, commands, pings, text, logout
//	   |-- branch, branch ...            StatSN, commands, ABORT TASK of those
//
// The loss of any connection ends the session, unless that is recovered (recover.go). Session.mu guards all of it but what does not change.
type branch struct {
	s         *Session
	dm        iscsi.Datamover
	cid       uint16
	login     *iscsi.InitiatorLogin
	ready     chan struct{} // closed when it is up, or will not be
	err       error
	up        bool
	allocated bool
	maxData   int
	expStatSN iscsi.SN
	load      int  // commands under way
	leads     bool // has the leading one's part
	handover  iscsi.Switch
	loss
	pulse
}

// widen adds the connections that both sides want, to a session that is up and not in use yet. One that cannot be had is done without.
func (s *Session) widen(ctx context.Context, d iscsi.Dialer) {
	for cid := uint16(1); int(cid) < s.wanted(); cid++ {
		if err := s.join(ctx, d, cid, nil); err != nil {
			s.log.Warn("iscsi session gets no further connection", "target", s.cfg.TargetName, "portal", s.cfg.Addr, "has", cid, "error", err)
			return
		}
	}
}

// wanted is how many connections both sides want.
func (s *Session) wanted() int {
	return min(s.params.MaxConnections, max(s.cfg.Settings.MaxConnections, 1))
}

// join logs a further connection in, or one that takes the place of a lost one, which is not nil then (RFC 7143, section 6.3.4).
func (s *Session) join(ctx context.Context, d iscsi.Dialer, cid uint16, lost *branch) error {
	dm, err := d.Dial(ctx, s.cfg.Addr)
	if err != nil {
		return err
	}
	b := &branch{s: s, dm: dm, cid: cid, ready: make(chan struct{})}
	c := iscsi.InitiatorLoginConfig{
		InitiatorName: s.cfg.InitiatorName, InitiatorAlias: s.cfg.InitiatorAlias, TargetName: s.cfg.TargetName,
		ISID: s.cfg.ISID, TSIH: s.params.TSIH, CID: cid, Join: s.params, Settings: s.cfg.Settings, RDMA: dm.Info().RDMA, AllowNone: s.cfg.AllowNone,
	}
	if s.cfg.Auth != nil {
		c.Auth = s.cfg.Auth()
	}
	b.inherit(&c)
	if lost != nil {
		c.ExpStatSN = lost.expStatSN
	}
	dm.Start(b)
	s.mu.Lock()
	if s.ending() {
		err = s.errLocked()
	} else {
		c.CmdSN = s.cmdSN
		b.login = iscsi.NewInitiatorLogin(c)
		b.send(b.login.First())
	}
	s.unlock()
	if err == nil {
		select {
		case <-b.ready:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err == nil {
		err = b.awaitHandover(ctx)
	}
	s.mu.Lock()
	if err == nil {
		err = b.err
	}
	if err == nil && s.ending() {
		err = s.errLocked()
	}
	switch {
	case err == nil && lost != nil:
		b.up, b.begun = true, time.Now()
		s.seat(b)
		s.resume(lost)
	case err == nil:
		b.up, b.begun = true, time.Now()
		s.branches = append(s.branches, b)
		s.width.Store(int32(1 + len(s.branches)))
		s.pump()
	case b.allocated && b.login != nil:
		dm.DeallocateConnectionResources()
	}
	if err != nil && b.err == nil {
		b.err = err // nothing of it counts any more
	}
	dm = b.dm
	s.unlock()
	if err != nil {
		dm.ConnectionTerminate(false)
		<-dm.Done()
	}
	return err
}

// Connections is how many connections the session has.
func (s *Session) Connections() int { return int(s.width.Load()) }

// send sends the next Login Request; mu is held.
func (b *branch) send(step iscsi.InitiatorStep) {
	if step.Last && !b.allocated {
		r := iscsi.ConnectionResources{Window: b.s.cfg.QueueDepth, RecvDataSegment: b.s.recvSegment()}
		if err := b.dm.AllocateConnectionResources(r); err != nil {
			b.fail(err)
			return
		}
		b.allocated = true
	}
	if err := b.s.sendBy(b, step.Request, nil); err != nil {
		b.fail(err)
	}
}

// fail ends the branch's login, or the session if that is over; mu is held.
func (b *branch) fail(err error) {
	switch {
	case b.up:
		b.s.sendFault(b, err)
	case b.err == nil:
		b.err = err
		b.settled()
	}
}

func (b *branch) settled() {
	select {
	case <-b.ready:
	default:
		close(b.ready)
	}
}

// ControlNotify implements iscsi.Notifier.
func (b *branch) ControlNotify(p *iscsi.PDU) {
	s := b.s
	s.mu.Lock()
	s.alive.pdus++
	b.pdus++
	if f := s.cfg.Hooks.PDU; f != nil {
		f(false, p)
	}
	switch {
	case s.ending() || b.err != nil || b.lost:
	case b.login != nil:
		b.loginStep(p)
	default:
		if err := iscsi.Validate(p, false); err != nil {
			s.failLocked(err)
			break
		}
		if b.leads {
			s.receive(p)
		} else {
			b.receive(p)
		}
		s.pump()
		s.checkDrained()
	}
	s.unlock()
	p.Release()
}

func (b *branch) loginStep(p *iscsi.PDU) {
	step, err := b.login.Step(p)
	switch {
	case err != nil:
		b.fail(err)
	case !step.Done:
		b.send(step)
	default:
		if err := b.sameMode(step.Params); err != nil {
			b.fail(err)
			return
		}
		b.dm.NoticeKeyValues(step.Params)
		if err := b.dm.EnableDatamover(nil); err != nil {
			b.fail(err)
			return
		}
		b.changeOver()
		b.s.window(step.ExpCmdSN, step.MaxCmdSN)
		b.maxData = step.Params.MaxSendDataSegment
		if limit := b.dm.Info().MaxSendSegment; limit > 0 {
			b.maxData = min(b.maxData, limit)
		}
		b.expStatSN, b.login = step.ExpStatSN, nil
		b.settled()
	}
}

// receive handles a PDU of full feature phase; mu is held.
func (b *branch) receive(p *iscsi.PDU) {
	s, h := b.s, iscsi.BHS(p.BHS[:])
	s.window(h.ExpCmdSN(), h.MaxCmdSN())
	if p.Opcode() == iscsi.OpNOPIn && h.ITT() == iscsi.ReservedTag {
		s.pong(b, iscsi.NOPIn(p.BHS[:]))
		return
	}
	if sn := h.StatSN(); sn != b.expStatSN {
		s.failLocked(protocolError(p, "StatSN %d on connection %d, expected %d", sn, b.cid, b.expStatSN))
		return
	}
	b.expStatSN++
	switch p.Opcode() {
	case iscsi.OpSCSIResponse:
		s.response(p, b)
	case iscsi.OpTaskMgmtRsp, iscsi.OpNOPIn, iscsi.OpLogoutRsp, iscsi.OpTextRsp:
		s.answer(p)
	case iscsi.OpAsync:
		s.async(b, p)
	case iscsi.OpReject:
		s.rejected(p)
	default:
		s.failLocked(protocolError(p, "on connection %d", b.cid))
	}
}

// ConnectionTerminateNotify implements iscsi.Notifier: what ends one connection ends the session or is recovered, but for a logout, after which the
// target closes them in any order.
func (b *branch) ConnectionTerminateNotify(err error) {
	s := b.s
	s.mu.Lock()
	if err == nil {
		err = errors.New("closed by the target")
	}
	switch {
	case b.lost:
	case b.leads:
		s.downLocked(err)
	case !b.up:
		b.fail(fmt.Errorf("%w: %w", iscsi.ErrConnection, err))
	case s.leaving != nil || s.state == sessionLogout && s.drained == nil:
	case !s.ending():
		s.lose(b, err)
	}
	s.unlock()
}

// DataCompletionNotify implements iscsi.Notifier; it is for targets.
func (b *branch) DataCompletionNotify(uint32, uint64, error) {}

// DataACKNotify implements iscsi.Notifier; it is for targets.
func (b *branch) DataACKNotify(uint32, uint32) {}

// spread is the connection for the next command: the one with the fewest under way; nil is the leading one.
func (s *Session) spread() *branch {
	var best *branch
	least := s.inFlight
	for _, b := range s.branches {
		least -= b.load // what the leading one has
	}
	for _, b := range s.rec.lost {
		least -= b.load
	}
	for _, b := range s.branches {
		if b.load < least {
			best, least = b, b.load
		}
	}
	return best
}

// mover is the Datamover of r's connection.
func (s *Session) mover(r *Request) iscsi.Datamover {
	if r.via != nil {
		return r.via.dm
	}
	return s.dm
}

// status numbers of a connection; nil is the leading one.
func (s *Session) statSN(b *branch) iscsi.SN {
	if b != nil {
		return b.expStatSN
	}
	return s.expStatSN
}

// limit is the longest data segment that the target takes on a connection.
func (s *Session) limit(b *branch) int {
	if b != nil {
		return b.maxData
	}
	return s.maxData
}
