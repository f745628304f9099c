package iscsi

import (
	"errors"
	"strconv"
)

// Identity is who wants to log in to what: known once the first text of a login is whole. Names are normalised.
type Identity struct {
	InitiatorName  string
	InitiatorAlias string
	TargetName     string // "" in a discovery session that names none
	Discovery      bool
	ISID           [6]byte
	TSIH           uint16 // not 0: wants to join or reinstate within that session
	CID            uint16
}

// Grant is the target's consent to go on with a login.
type Grant struct {
	PortalGroup uint16 // TargetPortalGroupTag
	TargetAlias string
	// Auth are the authentication methods of which the initiator has to pass one, made for this login. None: nobody has to.
	Auth []Authenticator
	// Join are the parameters of the session that the connection is to be added to, or reinstated in (Identity.TSIH is not
	// 0); nil for a leading login.
	Join *Params
}

// TargetLoginConfig is what a target's side of one login needs.
type TargetLoginConfig struct {
	Settings Settings
	// RDMA tells that the Datamover moves data by RDMA.
	RDMA bool
	// Handover tells that the Datamover will, if RDMAExtensions=Yes is agreed (DatamoverInfo.Handover).
	Handover bool
	// Identify decides on an initiator: whether the target exists and the initiator may see it, and how it has to authenticate.
	// It is called once, inside Step, and may not wait. A *LoginError becomes the login status, any other error
	// status 0300.
	Identify func(Identity) (Grant, error)
	// StatSN is the number of the first Login Response.
	StatSN SN
	// Window is how many commands the initiator may send at once after login; 0: 1.
	Window int
}

// TargetStep is what to do next in a login.
type TargetStep struct {
	// Response is to be sent; nil with Ready. With Done it goes to Datamover.EnableDatamover.
	Response *PDU
	// Ready: all is agreed but for the session. The target now ends an older session of the same initiator,
	// allocates what the connection needs, and calls Finish or Refuse, at any time later.
	Ready bool
	// Done: Response is the final one; full feature phase begins behind it.
	Done bool
	// Params are what was agreed; set with Ready and Done.
	Params *Params
}

// TargetLogin is the target's side of one login phase (RFC 7143, section 6.3), driven by what arrives. It does no
// input or output, does not wait and is not safe for use by several goroutines at once.
//
//	         Step(request): more to negotiate -> Response
//	            +------+
//	            v      |         all agreed             Finish(tsih)
//	start --> security --> operational -----> Ready --------------> Done
//	            |              |                |                 full feature phase
//	            +--------------+----------------+--> refused: Response with the status, then close
//
// The security stage may be left out, and so may the operational one.
type TargetLogin struct {
	cfg    TargetLoginConfig
	neg    *Negotiator
	text   loginText
	state  targetState
	stage  Stage
	first  bool // a request has been seen
	id     Identity
	known  bool // id is complete and Identify has agreed
	grant  Grant
	auth   Authenticator // chosen, nil before
	authed bool          // the initiator needs to prove nothing any more
	cmdSN  SN
	statSN SN
	itt    uint32
	params *Params
}

type targetState uint8

const (
	targetNegotiating targetState = iota
	targetReady
	targetDone
	targetRefused
)

// errLoginOver: a step after the end.
var errLoginOver = errors.New("iscsi: login is over")

// NewTargetLogin begins a login.
func NewTargetLogin(cfg TargetLoginConfig) *TargetLogin {
	if cfg.Window == 0 {
		cfg.Window = 1
	}
	l := &TargetLogin{cfg: cfg, statSN: cfg.StatSN, neg: NewNegotiator(RoleTarget, cfg.Settings, cfg.RDMA)}
	if cfg.Handover {
		l.neg.SetHandover()
	}
	return l
}

// Identity is who logs in; its names are empty until they are known.
func (l *TargetLogin) Identity() Identity { return l.id }

// CmdSN is the number that the first command of full feature phase will have.
func (l *TargetLogin) CmdSN() SN { return l.cmdSN }

// StatSN is the number of the next status.
func (l *TargetLogin) StatSN() SN { return l.statSN }

// Step takes a PDU of the initiator. It keeps nothing of req. On an error, a *LoginError, the login is refused: the step's Response
// tells the initiator so, and the connection is to be closed after it.
func (l *TargetLogin) Step(req *PDU) (TargetStep, error) {
	if l.state != targetNegotiating {
		if l.state == targetReady {
			return l.fail(NewLoginError(LoginInvalidRequest, "%v while a Login Response is due", req.Opcode()))
		}
		return TargetStep{}, errLoginOver
	}
	step, err := l.step(req)
	if err != nil {
		return l.fail(err)
	}
	return step, nil
}

// Refuse ends the login with a status other than success. The answer to send is in the step.
func (l *TargetLogin) Refuse(err error) TargetStep {
	step, _ := l.fail(err)
	return step
}

// fail makes the refusal out of any error.
func (l *TargetLogin) fail(err error) (TargetStep, error) {
	var e *LoginError
	switch {
	case errors.As(err, &e) && e.Class != 0:
	case errors.Is(err, ErrNegotiation), errors.Is(err, ErrText), errors.Is(err, ErrName):
		e = &LoginError{Class: LoginInitiatorError.Class(), Detail: LoginInitiatorError.Detail(), Err: err}
	default:
		e = &LoginError{Class: LoginTargetError.Class(), Detail: LoginTargetError.Detail(), Err: err}
	}
	l.state = targetRefused
	p := new(PDU)
	r := l.respond(p)
	r.SetStatus(e.Status())
	if e.Class == LoginMovedTemporarily.Class() && e.Address != "" {
		p.Data = Text{{KeyTargetAddress, e.Address}}.Append(nil)
	}
	return TargetStep{Response: p}, e
}

// respond lays out a response in the current stage and uses up a StatSN.
func (l *TargetLogin) respond(p *PDU) LoginResponse {
	r := LoginResponse(p.BHS[:])
	r.Init()
	r.SetVersionMax(Version)
	r.SetVersionActive(Version)
	r.SetISID(l.id.ISID)
	r.SetTSIH(l.id.TSIH)
	r.SetITT(l.itt)
	r.SetStatSN(l.statSN)
	BHS(r).SetWindow(l.cmdSN, l.cmdSN+SN(l.cfg.Window)-1)
	l.statSN++
	return r
}

func (l *TargetLogin) step(req *PDU) (TargetStep, error) {
	if req.Opcode() != OpLoginReq {
		return TargetStep{}, NewLoginError(LoginInvalidRequest, "%v", req.Opcode())
	}
	h := LoginRequest(req.BHS[:])
	if err := l.header(h); err != nil {
		return TargetStep{}, err
	}
	if err := Validate(req, true); err != nil {
		return TargetStep{}, &LoginError{Class: LoginInitiatorError.Class(), Err: err}
	}
	if l.text.out.Len() > 0 { // the answer is on its way in pieces; the initiator asks for the next
		if len(req.Data) > 0 || h.Continue() {
			return TargetStep{}, NewLoginError(LoginInitiatorError, "text while the target's is not at its end")
		}
		return l.reply(h)
	}
	t, whole, err := l.text.add(req.Data, h.Continue())
	switch {
	case err != nil:
		return TargetStep{}, err
	case !whole:
		return l.empty(), nil
	}
	if err := l.handle(t, h.CSG()); err != nil {
		return TargetStep{}, err
	}
	l.text.out.Load(l.neg.Take())
	return l.reply(h)
}

// header checks what must hold for every request, and what must not change between them.
func (l *TargetLogin) header(h LoginRequest) error {
	if !l.first {
		l.first = true
		l.stage = h.CSG()
		l.id.ISID, l.id.TSIH, l.id.CID = h.ISID(), h.TSIH(), h.CID()
		l.itt, l.cmdSN = h.ITT(), h.CmdSN()
	}
	l.text.exchanges++
	switch {
	case h.VersionMin() > Version:
		return NewLoginError(LoginBadVersion, "versions %#02x to %#02x", h.VersionMin(), h.VersionMax())
	case h.ISID() != l.id.ISID, h.TSIH() != l.id.TSIH, h.CID() != l.id.CID:
		return NewLoginError(LoginInitiatorError, "ISID, TSIH or CID changed during login")
	case h.ITT() != l.itt:
		return NewLoginError(LoginInitiatorError, "ITT changed from %#x to %#x", l.itt, h.ITT())
	case h.CSG() != l.stage:
		return NewLoginError(LoginInitiatorError, "stage %v in stage %v", h.CSG(), l.stage)
	case l.text.exchanges > maxLoginExchanges:
		return NewLoginError(LoginInitiatorError, "no end after %d requests", maxLoginExchanges)
	}
	return nil
}

// empty answers a request whose text goes on (RFC 7143, section 6.2).
func (l *TargetLogin) empty() TargetStep {
	p := new(PDU)
	r := l.respond(p)
	r.SetCSG(l.stage)
	return TargetStep{Response: p}
}

// handle acts on a whole text and queues the answer.
func (l *TargetLogin) handle(t Text, stage Stage) error {
	if !l.known {
		if err := l.identify(&t, stage); err != nil {
			return err
		}
	} else if k := namesAgain(t); k != "" {
		return NewLoginError(LoginInitiatorError, "%s after the first request", k)
	}
	if stage == StageSecurity {
		return l.security(t)
	}
	if _, ok := t.Get(KeyAuthMethod); ok {
		return NewLoginError(LoginInitiatorError, "%s in %v", KeyAuthMethod, stage)
	}
	if err := l.neg.Receive(t); err != nil {
		return err
	}
	l.neg.Offer()
	return nil
}

// namesAgain is the first key of t that belongs into the first text of a login (RFC 7143, section 6.3.1), "" if there is none.
func namesAgain(t Text) string {
	for _, kv := range t {
		switch kv.Key {
		case KeyInitiatorName, KeyTargetName, KeySessionType:
			return kv.Key
		}
	}
	return ""
}

// identify takes the names out of the first text and asks the target about them.
func (l *TargetLogin) identify(t *Text, stage Stage) error {
	name, ok := take(t, KeyInitiatorName)
	if !ok {
		return NewLoginError(LoginMissingParameter, "no %s", KeyInitiatorName)
	}
	var err error
	if l.id.InitiatorName, err = NormalizeName(name); err != nil {
		return err
	}
	l.id.InitiatorAlias, _ = t.Get(KeyInitiatorAlias)
	switch kind, ok := take(t, KeySessionType); {
	case !ok, kind == "Normal":
	case kind == "Discovery":
		l.id.Discovery = true
	default:
		return NewLoginError(LoginBadSessionType, "%s=%.40s", KeySessionType, kind)
	}
	l.neg.SetDiscovery(l.id.Discovery)
	name, ok = take(t, KeyTargetName)
	switch {
	case !ok && !l.id.Discovery:
		return NewLoginError(LoginMissingParameter, "no %s", KeyTargetName)
	case ok:
		if l.id.TargetName, err = NormalizeName(name); err != nil {
			return err
		}
	}
	if l.grant, err = l.cfg.Identify(l.id); err != nil {
		return err
	}
	l.known = true
	l.neg.Join(l.grant.Join)
	if l.authed = len(l.grant.Auth) == 0; !l.authed && stage != StageSecurity {
		return NewLoginError(LoginAuthFailed, "initiator %s skips the authentication that is demanded", l.id.InitiatorName)
	}
	if l.grant.TargetAlias != "" {
		l.neg.out.Add(KeyTargetAlias, l.grant.TargetAlias)
	}
	l.neg.out.Add(KeyTargetPortalGroupTag, strconv.Itoa(int(l.grant.PortalGroup)))
	return nil
}

// security handles one text of the security stage.
func (l *TargetLogin) security(t Text) error {
	if k := stageForbids(t); k != "" {
		return NewLoginError(LoginInitiatorError, "%s in %v", k, StageSecurity)
	}
	keys := takeAuth(&t)
	if offer, ok := take(&t, KeyAuthMethod); ok {
		name, a := pickAuth(offer, l.grant.Auth)
		if name == "" {
			return NewLoginError(LoginAuthFailed, "no common authentication method in %.80s", offer)
		}
		l.auth = a
		l.neg.out.Add(KeyAuthMethod, name)
	}
	if len(keys) > 0 {
		if l.auth == nil {
			return NewLoginError(LoginInitiatorError, "%s before a method was agreed", keys[0].Key)
		}
		out, _, err := l.auth.Exchange(keys)
		if err != nil {
			return &LoginError{Class: LoginAuthFailed.Class(), Detail: LoginAuthFailed.Detail(), Err: err}
		}
		l.neg.out = append(l.neg.out, out...)
	}
	if l.auth != nil {
		l.authed = l.auth.Done() == nil
	}
	return l.neg.Receive(t) // aliases, and keys nobody knows
}

// reply makes the next response to a request in good order: text, or the transit that it asks for.
func (l *TargetLogin) reply(h LoginRequest) (TargetStep, error) {
	next := l.next(h)
	if next == StageFullFeature && l.text.out.Len() <= LoginSegment {
		l.params = &Params{
			InitiatorName: l.id.InitiatorName, TargetName: l.id.TargetName, ISID: l.id.ISID,
			CID: l.id.CID, TSIH: l.id.TSIH, PortalGroup: l.grant.PortalGroup,
		}
		if err := l.neg.Apply(l.params); err != nil {
			return TargetStep{}, err
		}
		l.state = targetReady
		return TargetStep{Ready: true, Params: l.params}, nil
	}
	p := new(PDU)
	r := l.respond(p)
	r.SetCSG(l.stage)
	data, more := l.text.out.Next(LoginSegment)
	p.Data = data
	switch {
	case more:
		r.SetContinue(true)
	case next != l.stage:
		r.SetTransit(true)
		r.SetNSG(next)
		l.stage = next
	}
	return TargetStep{Response: p}, nil
}

// next is the stage that the response to h may name: the current one if the initiator does not ask, or this side is not ready.
func (l *TargetLogin) next(h LoginRequest) Stage {
	switch {
	case !h.Transit(), l.stage == StageSecurity && !l.authed, l.neg.Waiting() != "":
		return l.stage
	case l.stage == StageSecurity && h.NSG() == StageFullFeature && l.wantsOperational():
		return StageOperational
	}
	return h.NSG()
}

// wantsOperational tells that this side has something to negotiate itself, so that defaults alone will not do.
func (l *TargetLogin) wantsOperational() bool {
	probe := *l.neg
	probe.out = nil
	probe.Offer()
	return probe.Waiting() != "" || probe.rdma()
}

// Finish ends a login that is Ready with success: tsih is the session's handle, not 0 (RFC 7143, section 11.13.3).
func (l *TargetLogin) Finish(tsih uint16) TargetStep {
	if l.state != targetReady {
		return TargetStep{}
	}
	l.state = targetDone
	l.id.TSIH, l.params.TSIH = tsih, tsih
	p := new(PDU)
	r := l.respond(p)
	r.SetCSG(l.stage)
	r.SetTransit(true)
	r.SetNSG(StageFullFeature)
	p.Data, _ = l.text.out.Next(LoginSegment)
	l.stage = StageFullFeature
	return TargetStep{Response: p, Done: true, Params: l.params}
}
