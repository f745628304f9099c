package target

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	"time"

	"goiwarp/iscsi"
)

// maxAHS is the octets of Additional Header Segments that the target is prepared for: the default of
// MaxAHSLength (RFC 7145, section 6.8), more than an extended CDB takes.
const maxAHS = 256

// loginState is a connection's login phase.
type loginState struct {
	machine *iscsi.TargetLogin
	node    *node
	join    *session          // the session that the connection is to be added to; nil if it leads one
	joining bool              // counted in its shared.joining
	ready   bool              // all is agreed, the session is being opened
	chap    *iscsi.CHAPTarget // nil: no authentication is demanded

	// Server.mu guards these.
	place   *list.Element // in Server.logins, if it is there
	opening bool          // in Server.opening
}

// beginLogin prepares for the first Login Request.
func (c *conn) beginLogin() {
	info := c.dm.Info()
	l := c.srv.cfg.Limits
	segment, rdmaSegment := l.RecvDataSegment, l.RecvDataSegment
	if segment == 0 {
		segment, rdmaSegment = 256<<10, 8<<10
	}
	if info.RDMA { // a Discovery session too, whose keys are those of TCP
		segment = rdmaSegment
	}
	c.login.machine = iscsi.NewTargetLogin(iscsi.TargetLoginConfig{
		Settings: iscsi.Settings{
			UnsolicitedData:       true,
			MaxRecvDataSegment:    segment,
			TargetRecvDataSegment: rdmaSegment,
			MaxBurstLength:        l.MaxBurst,
			FirstBurstLength:      l.FirstBurst,
			MaxOutstandingR2T:     l.OutstandingR2T,
			MaxConnections:        l.SessionConnections,
			ErrorRecoveryLevel:    max(l.ErrorRecoveryLevel, 0),
			DefaultTime2Retain:    l.Time2Retain,
			TaskReporting:         []string{iscsi.ReportFastAbort, iscsi.ReportResponseFence, iscsi.ReportRFC3720},
		},
		RDMA:     info.RDMA,
		Handover: info.Handover,
		Identify: c.identify,
		Window:   c.room,
	})
}

// identify decides whom an initiator may log in to. It is called with c.mu held.
func (c *conn) identify(id iscsi.Identity) (iscsi.Grant, error) {
	s := c.srv
	var n *node
	if id.TargetName != "" || !id.Discovery {
		if n = s.node(id.TargetName); n == nil {
			return iscsi.Grant{}, iscsi.NewLoginError(iscsi.LoginNotFound, "no target %q", id.TargetName)
		}
		c.login.node = n
	}
	g, err := c.grant(id, n)
	if err != nil {
		return g, err
	}
	s.mu.Lock()
	closing := s.closing
	s.mu.Unlock()
	if closing {
		return g, iscsi.NewLoginError(iscsi.LoginUnavailable, "shutting down")
	}
	if id.TSIH == 0 {
		return g, nil
	}
	if c.login.join, err = c.joins(id, n); err == nil {
		g.Join = &c.login.join.agreed
	}
	return g, err
}

// loginPDU takes one PDU of the login phase. c.mu is held.
func (c *conn) loginPDU(p *iscsi.PDU) {
	step, err := c.login.machine.Step(p)
	p.Release()
	switch {
	case err != nil:
		c.refuse(step, err)
	case step.Ready:
		if err := c.srv.beginOpening(c); err != nil {
			c.refuse(c.login.machine.Refuse(err), err)
			return
		}
		c.login.ready = true
		// Ending an older session may take a while, which an upcall has not.
		c.post(func() { c.finishLogin(step.Params) })
	default:
		c.stampJoin(step.Response)
		c.transmit(step.Response)
	}
}

// refuse sends the last Login Response of a login that failed and closes the connection. c.mu is held.
func (c *conn) refuse(step iscsi.TargetStep, err error) {
	id := c.login.machine.Identity()
	level := slog.LevelWarn
	if errors.Is(err, errNotHeard) {
		level = slog.LevelDebug // who guesses does not fill the log
	}
	c.log.Log(context.Background(), level, "login refused", "initiator", id.InitiatorName, "target", id.TargetName, "err", err)
	c.srv.countRefusal(refusalReason(err))
	if errors.Is(err, iscsi.ErrCHAP) { // before the answer, which lets the next attempt begin
		c.srv.guard.failed(c.remote(), time.Now())
	}
	if step.Response != nil {
		c.transmit(step.Response)
	}
	c.terminate(err, true)
}

// loginTimeout ends a login that takes too long.
func (c *conn) loginTimeout() {
	c.mu.Lock()
	defer c.unlock()
	if c.state != stateLogin {
		return
	}
	if c.login.ready {
		err := iscsi.NewLoginError(iscsi.LoginUnavailable, "the session that this login reinstates does not end")
		c.refuse(c.login.machine.Refuse(err), err)
		c.cause = ErrLoginTimeout
		return
	}
	id := c.login.machine.Identity()
	c.srv.countRefusal("timeout")
	c.log.Warn("login timed out", "initiator", id.InitiatorName, "after", c.set.LoginTimeout)
	c.lose(ErrLoginTimeout)
}

// finishLogin opens the session and sends the final Login Response. It runs on Serve's goroutine, since it may
// wait for the end of an older session.
func (c *conn) finishLogin(params *iscsi.Params) {
	n := c.login.node
	var ss *session
	var err error
	joining := params.TSIH != 0
	defer c.srv.joined(c)
	if joining {
		ss, err = c.srv.join(c, params)
	} else {
		ss, err = c.srv.open(c, n, params)
	}
	c.mu.Lock()
	if err == nil && c.state != stateLogin { // timed out, or gone
		c.mu.Unlock()
		c.abandon(ss)
		return
	}
	if err == nil {
		err = c.admit(ss)
	}
	if err == nil {
		c.dm.NoticeKeyValues(params) // before what they are the measure of is allocated (RFC 7145, section 5.1.2)
		err = c.dm.AllocateConnectionResources(iscsi.ConnectionResources{
			Target: true, Window: ss.shared.room, RecvDataSegment: params.MaxRecvDataSegment,
			MaxAHS: maxAHS, Discovery: params.Discovery,
		})
		if err != nil {
			err = &iscsi.LoginError{
				Class: iscsi.LoginNoResources.Class(), Detail: iscsi.LoginNoResources.Detail(), Err: err,
			}
		}
	}
	if err == nil && joining {
		err = c.enter(ss)
	}
	if err != nil {
		if c.state == stateLogin && !errors.Is(err, iscsi.ErrConnection) {
			c.refuse(c.login.machine.Refuse(err), err)
		}
		c.unlock()
		if ss != nil {
			c.abandon(ss)
		}
		return
	}
	m := c.login.machine
	step := m.Finish(ss.tsih)
	c.params = params
	if joining {
		iscsi.BHS(step.Response.BHS[:]).SetWindow(c.expCmdSN, c.window())
	} else {
		c.sess, c.node, c.discovery = ss, n, params.Discovery
		c.conns = append(c.conns, c)
		c.fencing, c.fast = params.ResponseFence(), params.FastAbort()
		c.expCmdSN = m.CmdSN()
		c.maxCmdSN = c.expCmdSN - 1
		c.window()
	}
	c.statSN = m.StatSN()
	// Nothing that says something of tasks waits for an acknowledgement. To ask for that of the Login Response could take long: behind a change
	// to iWARP nothing can be sent before the initiator has sent something (RFC 5044, section 7.1.2).
	c.ackedStatSN = c.statSN
	c.state = stateFull
	if err := c.dm.EnableDatamover(step.Response); err != nil {
		c.lose(err)
	} else if sw, ok := c.dm.(iscsi.Switch); ok {
		c.dm = sw.Successor()
	}
	c.notePeer()
	what := "session opened"
	if joining {
		what = "connection added"
	}
	c.log.Info(what, "tsih", ss.tsih, "initiator", params.InitiatorName, "target", params.TargetName,
		"discovery", params.Discovery, "rdma", params.RDMAExtensions, "cid", params.CID)
	c.unlock()
	s := c.srv
	s.mu.Lock()
	s.leaveLogin(c)
	s.mu.Unlock()
}

// notePeer learns what the peer takes, after it has been negotiated. c.mu is held.
func (c *conn) notePeer() {
	info := c.dm.Info()
	c.maxPutData = max(info.MaxPutData, 1)
	c.maxData = c.params.MaxSendDataSegment
	if info.MaxSendSegment > 0 {
		c.maxData = min(c.maxData, info.MaxSendSegment)
	}
}

// abandon forgets a session whose login came to nothing.
func (c *conn) abandon(ss *session) {
	if ss == c.login.join {
		return // it goes on without this connection
	}
	if ss.nexus != nil {
		ss.nexus.Close()
	}
	c.srv.forget(ss)
}
