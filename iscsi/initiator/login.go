package initiator

import (
	"context"
	"errors"
	"fmt"

	"goiwarp/iscsi"
)

// Login logs in to cfg.TargetName at cfg.Addr. It follows a target that has moved. Errors are the Dialer's, a
// *iscsi.LoginError, or a *SessionError if the connection was lost.
func Login(ctx context.Context, d iscsi.Dialer, cfg Config) (*Session, error) {
	if cfg.TargetName == "" {
		return nil, errors.New("initiator: no target name")
	}
	return login(ctx, d, cfg, false)
}

func login(ctx context.Context, d iscsi.Dialer, cfg Config, discovery bool) (*Session, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	for range maxRedirects + 1 {
		var s *Session
		s, err = loginAt(ctx, d, cfg, discovery)
		if err != nil && cfg.avoidSHA256(err) {
			cfg.Log.Debug("iscsi login is tried again without SHA-256", "target", cfg.TargetName, "portal", cfg.Addr, "error", err)
			s, err = loginAt(ctx, d, cfg, discovery)
		}
		if err == nil {
			return s, nil
		}
		var moved *iscsi.LoginError
		if !errors.As(err, &moved) || moved.Class != iscsi.LoginMovedTemporarily.Class() || moved.Address == "" {
			return nil, err
		}
		portal, perr := iscsi.ParsePortal(moved.Address)
		if perr != nil {
			return nil, perr
		}
		cfg.Log.Info("iscsi target has moved", "target", cfg.TargetName, "from", cfg.Addr, "to", portal.Addr)
		cfg.Addr, cfg.CheckPortalGroup = portal.Addr, false
	}
	return nil, fmt.Errorf("initiator: more than %d redirections: %w", maxRedirects, err)
}

// loginAt logs in at one portal.
func loginAt(ctx context.Context, d iscsi.Dialer, cfg Config, discovery bool) (*Session, error) {
	dm, err := d.Dial(ctx, cfg.Addr)
	if err != nil {
		return nil, err
	}
	s := newSession(dm, cfg)
	c := iscsi.InitiatorLoginConfig{
		InitiatorName: cfg.InitiatorName, InitiatorAlias: cfg.InitiatorAlias, TargetName: cfg.TargetName, Discovery: discovery,
		ISID: cfg.ISID, CmdSN: 1, Settings: cfg.Settings, RDMA: s.info.RDMA, Handover: s.info.Handover,
		PortalGroup: cfg.PortalGroup, CheckPortalGroup: cfg.CheckPortalGroup, AllowNone: cfg.AllowNone,
	}
	if cfg.Auth != nil {
		c.Auth = cfg.Auth()
	}
	s.cmdSN = c.CmdSN
	s.login = iscsi.NewInitiatorLogin(c)
	dm.Start(s)
	s.mu.Lock()
	s.loginSend(s.login.First())
	s.unlock()

	select {
	case <-s.up:
		if s.awaitHandover(ctx); s.Err() == nil {
			s.beginRecovery(d)
			s.widen(ctx, d)
			return s, nil
		}
		<-s.done
	case <-s.done:
	case <-ctx.Done():
		s.fail(context.Cause(ctx))
		<-s.done
	}
	select {
	case <-s.up: // just so
		if s.Err() == nil {
			return s, nil
		}
	default:
	}
	s.mu.Lock()
	cause := s.cause
	err = s.errLocked()
	s.unlock()
	var refused *iscsi.LoginError
	if errors.As(cause, &refused) {
		return nil, refused
	}
	return nil, err
}

// loginSend sends the next Login Request. The connection's resources are allocated before one whose answer may begin full feature
// phase.
func (s *Session) loginSend(step iscsi.InitiatorStep) {
	if step.Last && !s.allocated {
		r := iscsi.ConnectionResources{
			Window: s.cfg.QueueDepth, RecvDataSegment: s.recvSegment(), Discovery: s.cfg.TargetName == "",
		}
		if err := s.dm.AllocateConnectionResources(r); err != nil {
			s.failLocked(err)
			return
		}
		s.allocated = true
	}
	if err := s.sendPDU(step.Request, nil); err != nil {
		s.failLocked(err)
	}
}

// recvSegment is the longest data segment that the target may send in full feature phase.
func (s *Session) recvSegment() int {
	n, def := s.cfg.Settings.MaxRecvDataSegment, iscsi.DefaultMaxRecvDataSegment
	if s.info.RDMA || s.info.Handover {
		n, def = s.cfg.Settings.InitiatorRecvDataSegment, iscsi.DefaultRDMARecvDataSegment
	}
	if n == 0 {
		return def
	}
	return n
}

// loginStep handles a PDU of the login phase. It runs where the PDU was read, so that the change to full feature phase comes
// before whatever the target sends next.
func (s *Session) loginStep(p *iscsi.PDU) {
	step, err := s.login.Step(p)
	switch {
	case err != nil:
		s.failLocked(err)
	case !step.Done:
		s.loginSend(step)
	default:
		s.params = step.Params
		s.expCmdSN, s.maxCmdSN, s.expStatSN = step.ExpCmdSN, step.MaxCmdSN, step.ExpStatSN
		s.dm.NoticeKeyValues(step.Params)
		if err := s.dm.EnableDatamover(nil); err != nil {
			s.failLocked(err)
			return
		}
		s.changeOver()
		s.maxData = step.Params.MaxSendDataSegment
		if limit := s.info.MaxSendSegment; limit > 0 {
			s.maxData = min(s.maxData, limit)
		}
		s.state, s.login = sessionUp, nil
		s.watch()
		s.watchCommands()
		s.log.Debug("iscsi session up", "target", s.cfg.TargetName, "portal", s.cfg.Addr, "transport", s.info.Transport, "tsih", step.Params.TSIH)
		s.width.Store(1)
		s.stateChanged(nil)
		close(s.up)
	}
}
