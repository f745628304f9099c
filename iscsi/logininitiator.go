package iscsi

import (
	"errors"
	"fmt"
	"strings"
)

// InitiatorLoginConfig is what an initiator's side of one login needs.
type InitiatorLoginConfig struct {
	InitiatorName  string
	InitiatorAlias string
	TargetName     string // may be empty in a discovery session
	Discovery      bool
	ISID           [6]byte
	TSIH           uint16 // 0 for a new session
	CID            uint16
	ITT            uint32
	CmdSN          SN // number of the session's first command
	ExpStatSN      SN // of the connection in whose place this one comes; 0 otherwise (RFC 7143, section 11.12.10)
	Settings       Settings
	// RDMA tells that the Datamover moves data by RDMA.
	RDMA bool
	// Handover tells that the Datamover will, if RDMAExtensions=Yes is agreed (DatamoverInfo.Handover).
	Handover bool
	// PortalGroup is the TargetPortalGroupTag that discovery told, to be checked if CheckPortalGroup.
	PortalGroup      uint16
	CheckPortalGroup bool
	// Join are the parameters of the session that the connection is added to or reinstated in, with TSIH not 0: what the leading
	// login has settled is not offered again (RFC 7143, section 6.3.3). nil for a leading login.
	Join *Params
	// Auth are the methods that this side offers, in order of preference, made for this login. AllowNone puts None behind them; without
	// Auth the security stage is left out.
	Auth      []Authenticator
	AllowNone bool
}

// InitiatorStep is what to do next in a login.
type InitiatorStep struct {
	// Request is to be sent; nil with Done.
	Request *PDU
	// Last tells that the answer to Request may begin full feature phase: the connection's resources must be allocated before
	// it is sent (RFC 7145, section 5.1.2).
	Last bool
	// Done: logged in. Params are what was agreed.
	Done   bool
	Params *Params
	// ExpCmdSN and MaxCmdSN are the command window, ExpStatSN the next status; with Done.
	ExpCmdSN, MaxCmdSN, ExpStatSN SN
}

// InitiatorLogin is the initiator's side of one login phase (RFC 7143, section 6.3), driven by what arrives. It
// does no input or output and is not safe for use by several goroutines at once.
//
//	First() -> Request --> Step(response) -> Request --> Step ... -> Done
//	                            |
//	                            +--> *LoginError: close
type InitiatorLogin struct {
	cfg       InitiatorLoginConfig
	neg       *Negotiator
	text      loginText
	stage     Stage
	over      bool
	asked     Stage // the NSG of the last request, if it had T
	askedT    bool
	auth      Authenticator
	authLast  bool // this side has no more authentication keys to send
	offered   string
	tagSeen   bool
	expStatSN SN
	params    Params
}

// NewInitiatorLogin begins a login.
func NewInitiatorLogin(cfg InitiatorLoginConfig) *InitiatorLogin {
	l := &InitiatorLogin{cfg: cfg, neg: NewNegotiator(RoleInitiator, cfg.Settings, cfg.RDMA), stage: StageOperational, expStatSN: cfg.ExpStatSN}
	l.neg.SetDiscovery(cfg.Discovery)
	if cfg.Handover {
		l.neg.SetHandover()
	}
	l.neg.Join(cfg.Join)
	if len(cfg.Auth) > 0 {
		l.stage = StageSecurity
	}
	return l
}

// First is the first request.
func (l *InitiatorLogin) First() InitiatorStep {
	t := Text{{KeyInitiatorName, l.cfg.InitiatorName}}
	if l.cfg.InitiatorAlias != "" {
		t.Add(KeyInitiatorAlias, l.cfg.InitiatorAlias)
	}
	if l.cfg.TargetName != "" {
		t.Add(KeyTargetName, l.cfg.TargetName)
	}
	kind := "Normal"
	if l.cfg.Discovery {
		kind = "Discovery"
	}
	if l.cfg.Join == nil { // leading only (RFC 7143, section 13.21); LIO calls it NotUnderstood in another connection's login
		t.Add(KeySessionType, kind)
	}
	if l.stage == StageSecurity {
		var names []string
		for _, a := range l.cfg.Auth {
			names = append(names, a.Method())
		}
		if l.cfg.AllowNone {
			names = append(names, None)
		}
		l.offered = strings.Join(names, ",")
		t.Add(KeyAuthMethod, l.offered)
	}
	l.text.out.Load(t)
	l.enter()
	return l.request()
}

// enter queues what the current stage begins with.
func (l *InitiatorLogin) enter() {
	if l.stage == StageOperational {
		l.neg.Offer()
		l.text.out.Load(l.neg.Take())
	}
}

// request makes the next request: text that waits, and the wish for the next stage when this side is through.
func (l *InitiatorLogin) request() InitiatorStep {
	data, more := l.text.out.Next(LoginSegment)
	p := l.bare()
	p.Data = data
	r := LoginRequest(p.BHS[:])
	l.askedT = false
	switch {
	case more:
		r.SetContinue(true)
	case l.stage == StageSecurity && l.securityDone():
		l.ask(r, StageOperational)
	case l.stage == StageOperational:
		l.ask(r, StageFullFeature)
	}
	return InitiatorStep{Request: p, Last: l.askedT && l.asked == StageFullFeature}
}

func (l *InitiatorLogin) ask(r LoginRequest, next Stage) {
	l.askedT, l.asked = true, next
	r.SetTransit(true)
	r.SetNSG(next)
}

// bare is a request without text.
func (l *InitiatorLogin) bare() *PDU {
	p := new(PDU)
	r := LoginRequest(p.BHS[:])
	r.Init()
	r.SetCSG(l.stage)
	r.SetVersionMax(Version)
	r.SetVersionMin(Version)
	r.SetISID(l.cfg.ISID)
	r.SetTSIH(l.cfg.TSIH)
	r.SetITT(l.cfg.ITT)
	r.SetCID(l.cfg.CID)
	r.SetCmdSN(l.cfg.CmdSN)
	r.SetExpStatSN(l.expStatSN)
	return p
}

// securityDone tells that this side has said all it has to in the security stage.
func (l *InitiatorLogin) securityDone() bool { return l.offered == "" && (l.auth == nil || l.authLast) }

// Step takes a PDU of the target. It keeps nothing of rsp. The error is a *LoginError; the connection is to be closed then.
func (l *InitiatorLogin) Step(rsp *PDU) (InitiatorStep, error) {
	if l.over {
		return InitiatorStep{}, errLoginOver
	}
	step, err := l.step(rsp)
	if err == nil {
		l.over = step.Done
		return step, nil
	}
	l.over = true
	var e *LoginError
	if errors.As(err, &e) && e.Remote {
		return InitiatorStep{}, e
	}
	// What this side gives up for has no status: nothing is sent.
	return InitiatorStep{}, &LoginError{Err: unwrapLogin(err)}
}

// unwrapLogin takes an own LoginError's words, since its status is not meant for a target.
func unwrapLogin(err error) error {
	var e *LoginError
	if !errors.As(err, &e) {
		return err
	}
	if e.Err != nil {
		return e.Err
	}
	return errors.New(e.Text)
}

func (l *InitiatorLogin) step(rsp *PDU) (InitiatorStep, error) {
	if err := Validate(rsp, false); err != nil {
		return InitiatorStep{}, err
	}
	if rsp.Opcode() != OpLoginRsp {
		return InitiatorStep{}, fmt.Errorf("%v during login", rsp.Opcode())
	}
	h := LoginResponse(rsp.BHS[:])
	if h.Status() != LoginOK {
		return InitiatorStep{}, l.refused(h.Status(), rsp.Data)
	}
	l.text.exchanges++
	switch {
	case h.VersionActive() != Version:
		return InitiatorStep{}, fmt.Errorf("version %#02x", h.VersionActive())
	case h.ISID() != l.cfg.ISID, h.ITT() != l.cfg.ITT:
		return InitiatorStep{}, fmt.Errorf("response to another login: ISID %x ITT %#x", h.ISID(), h.ITT())
	case h.CSG() != l.stage:
		return InitiatorStep{}, fmt.Errorf("stage %v in stage %v", h.CSG(), l.stage)
	case l.text.exchanges > maxLoginExchanges:
		return InitiatorStep{}, fmt.Errorf("no end after %d responses", maxLoginExchanges)
	}
	l.expStatSN = h.StatSN() + 1
	if l.text.out.Len() > 0 { // the target asks for the rest of the text
		if len(rsp.Data) > 0 || h.Continue() || h.Transit() {
			return InitiatorStep{}, errors.New("text while this side's is not at its end")
		}
		return l.request(), nil
	}
	t, whole, err := l.text.add(rsp.Data, h.Continue())
	switch {
	case err != nil:
		return InitiatorStep{}, err
	case !whole:
		l.askedT = false
		return InitiatorStep{Request: l.bare()}, nil
	}
	if err := l.handle(t); err != nil {
		return InitiatorStep{}, err
	}
	return l.advance(h)
}

// refused is the error for a status other than success.
func (l *InitiatorLogin) refused(s LoginStatus, data []byte) error {
	e := &LoginError{Class: s.Class(), Detail: s.Detail(), Remote: true}
	t, _ := ParseText(data)
	switch {
	case s.Class() == LoginMovedTemporarily.Class():
		if e.Address, _ = t.Get(KeyTargetAddress); e.Address == "" {
			e.Text = "no address given"
		}
	case s == LoginAuthFailed && len(l.cfg.Auth) == 0:
		e.Text = "the target demands authentication and no credentials are configured"
	}
	return e
}

// handle acts on a whole text and queues the answer.
func (l *InitiatorLogin) handle(t Text) error {
	if v, ok := take(&t, KeyTargetPortalGroupTag); ok {
		tag, err := ParseNumber(v)
		switch {
		case err != nil || tag > 65535:
			return fmt.Errorf("%w: %s=%.40s", ErrNegotiation, KeyTargetPortalGroupTag, v)
		case l.cfg.CheckPortalGroup && tag != uint64(l.cfg.PortalGroup):
			return fmt.Errorf("target portal group %d, discovery told %d", tag, l.cfg.PortalGroup)
		}
		l.params.PortalGroup, l.tagSeen = uint16(tag), true
	}
	if l.stage == StageSecurity {
		return l.security(t)
	}
	if err := l.neg.Receive(t); err != nil {
		return err
	}
	return nil
}

// security handles one text of the security stage.
func (l *InitiatorLogin) security(t Text) error {
	if k := stageForbids(t); k != "" {
		return fmt.Errorf("%w: %s in %v", ErrNegotiation, k, StageSecurity)
	}
	auth := takeAuth(&t)
	chosen, ok := take(&t, KeyAuthMethod)
	if ok {
		k, _ := LookupKey(KeyAuthMethod)
		if l.offered == "" || !k.admits(l.offered, chosen) {
			return fmt.Errorf("%w: target chose %s=%.40s", ErrNegotiation, KeyAuthMethod, chosen)
		}
		l.offered = ""
		for _, a := range l.cfg.Auth {
			if a.Method() == chosen {
				l.auth = a
			}
		}
	}
	switch {
	case l.auth == nil && len(auth) > 0:
		return fmt.Errorf("%w: %s before a method was agreed", ErrNegotiation, auth[0].Key)
	case l.auth != nil && (ok || len(auth) > 0):
		out, last, err := l.auth.Exchange(auth)
		if err != nil {
			return fmt.Errorf("authentication: %w", err)
		}
		l.authLast = last
		l.text.out.Load(out)
	}
	return l.neg.Receive(t)
}

// advance goes on after a whole text: to the next stage, to the end, or with the next request.
func (l *InitiatorLogin) advance(h LoginResponse) (InitiatorStep, error) {
	answers := l.neg.Take()
	if !h.Transit() {
		l.text.out.Load(answers)
		return l.request(), nil
	}
	if !l.askedT || h.NSG() > l.asked {
		return InitiatorStep{}, fmt.Errorf("target goes to %v unasked", h.NSG())
	}
	if k := l.neg.answerOwed(answers); k != "" {
		return InitiatorStep{}, fmt.Errorf("%w: target ends the stage with %s open", ErrNegotiation, k)
	}
	if l.stage == StageSecurity {
		switch {
		case l.text.out.Len() > 0:
			return InitiatorStep{}, errors.New("target ends the security stage before authentication is complete")
		case l.offered != "" && !l.cfg.AllowNone:
			return InitiatorStep{}, errors.New("target passes over authentication")
		case l.auth != nil:
			if err := l.auth.Done(); err != nil {
				return InitiatorStep{}, fmt.Errorf("authentication: %w", err)
			}
		}
	}
	l.stage = h.NSG()
	if l.stage != StageFullFeature {
		l.enter()
		return l.request(), nil
	}
	return l.done(h)
}

// done checks the final response and gives out what was agreed.
func (l *InitiatorLogin) done(h LoginResponse) (InitiatorStep, error) {
	switch {
	case h.TSIH() == 0:
		return InitiatorStep{}, errors.New("final response without a session handle")
	case l.cfg.TSIH != 0 && h.TSIH() != l.cfg.TSIH:
		return InitiatorStep{}, fmt.Errorf("session handle %d for %d", h.TSIH(), l.cfg.TSIH)
	case l.cfg.CheckPortalGroup && !l.tagSeen:
		return InitiatorStep{}, fmt.Errorf("no %s in the login", KeyTargetPortalGroupTag)
	}
	p := l.params
	p.InitiatorName, p.TargetName = l.cfg.InitiatorName, l.cfg.TargetName
	p.ISID, p.TSIH, p.CID = l.cfg.ISID, h.TSIH(), l.cfg.CID
	if err := l.neg.Apply(&p); err != nil {
		return InitiatorStep{}, err
	}
	return InitiatorStep{Done: true, Params: &p, ExpCmdSN: h.ExpCmdSN(), MaxCmdSN: h.MaxCmdSN(), ExpStatSN: l.expStatSN}, nil
}
