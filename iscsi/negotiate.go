package iscsi

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// Role is a side of a connection.
type Role uint8

// Roles.
const (
	RoleInitiator Role = iota
	RoleTarget
)

func (r Role) String() string { return [...]string{"initiator", "target"}[r&1] }

// ErrNegotiation: the peer broke a rule of key negotiation, or the sides have nothing in common that both can work with.
var ErrNegotiation = errors.New("iscsi: negotiation failed")

// Negotiator is one side of the operational negotiation of a login (RFC 7143, section 6.2): it makes offers, answers the
// peer's, and keeps what was agreed. It does no input or output.
//
//	Offer  -> keys to send (Take)  -> peer
//	peer   -> Receive              -> keys to send (Take): answers
//	...    until both are silent   -> Apply: *Params
//
// A key that is answered Irrelevant, NotUnderstood or Reject keeps its default, which is what a peer that
// does not know it works with. Each side may send a key once; the caller checks that.
type Negotiator struct {
	role      Role
	set       Settings
	link      bool // data moves by RDMA
	handover  bool // data may come to move by RDMA: RDMAExtensions is open
	later     bool // the first operational text has been received
	discovery bool
	join      *Params // the session that the connection is added to, nil if it begins one
	keys      [len(keys)]keyState
	out       Text
	answers   []answer
}

type keyState struct {
	offer   string // what this side has offered or declared, "" if nothing
	waiting bool   // the offer has not been answered
	settled bool   // value is the outcome
	value   string
	asked   bool   // the peer has offered it and was answered
	peer    string // what the peer declared
}

// answer is a key of the peer's that is being handled, in the order in which the peer sent them.
type answer struct {
	kv   KeyValue
	key  int // -1: unknown
	send string
}

// NewNegotiator makes one side's negotiator. rdma tells that the connection's Datamover moves data by RDMA, so that RDMAExtensions=Yes
// has to be the outcome.
func NewNegotiator(role Role, s Settings, rdma bool) *Negotiator {
	return &Negotiator{role: role, set: s, link: rdma}
}

// SetDiscovery tells that the session is for discovery. Call it before Offer and Receive.
func (n *Negotiator) SetDiscovery(on bool) { n.discovery = on }

// Join tells that the connection is added to a session whose parameters are p: what is the session's was settled by its leading
// login and stays so (RFC 7143, sections 6.3.3 and 13). Call it before Offer and Receive; p is not kept beyond Apply.
func (n *Negotiator) Join(p *Params) { n.join = p }

// leads tells that k is settled by the leading login alone.
func (k *Key) leads() bool {
	return k.Session && k.Use == LeadingOnly && k.Type != KeyText && k.Func != Declare && k.Name != KeyRDMAExtensions
}

// own is this side's value for an answer to the peer, given what has been settled before.
func (n *Negotiator) own(k *Key) string {
	v := n.setting(k)
	if n.join != nil && k.leads() {
		return n.join.value(k.Name, v)
	}
	level := n.outcome(KeyErrorRecoveryLevel)
	switch {
	case k.Name == KeyErrorRecoveryLevel && n.discovery: // RFC 7143, section 7.4.1
		return "0"
	case k.Name == KeyMaxOutstandingR2T && level != "0": // RFC 7143, section 13.19
		return "1"
	case k.Name == KeyDefaultTime2Retain && n.set.ErrorRecoveryLevel == 2 && level != "2":
		return "0" // nothing is retained
	}
	return v
}

// value is a session's value of a key as it stands on the wire; def for keys that Params do not hold.
func (p *Params) value(name, def string) string {
	switch name {
	case KeyMaxConnections:
		return strconv.Itoa(p.MaxConnections)
	case KeyInitialR2T:
		return yesNo(p.InitialR2T)
	case KeyImmediateData:
		return yesNo(p.ImmediateData)
	case KeyMaxBurstLength:
		return strconv.Itoa(p.MaxBurstLength)
	case KeyFirstBurstLength:
		return strconv.Itoa(p.FirstBurstLength)
	case KeyMaxOutstandingR2T:
		return strconv.Itoa(p.MaxOutstandingR2T)
	case KeyDefaultTime2Wait:
		return strconv.Itoa(p.DefaultTime2Wait)
	case KeyDefaultTime2Retain:
		return strconv.Itoa(p.DefaultTime2Retain)
	case KeyDataPDUInOrder:
		return yesNo(p.DataPDUInOrder)
	case KeyDataSequenceInOrder:
		return yesNo(p.DataSequenceInOrder)
	case KeyErrorRecoveryLevel:
		return strconv.Itoa(p.ErrorRecoveryLevel)
	case KeyTaskReporting:
		return p.TaskReporting
	case KeyProtocolLevel:
		return strconv.Itoa(p.ISCSIProtocolLevel)
	}
	return def
}

// inherit makes the session's part of p what the leading login has settled.
func (p *Params) inherit(s *Params) {
	p.MaxConnections, p.InitialR2T, p.ImmediateData = s.MaxConnections, s.InitialR2T, s.ImmediateData
	p.MaxBurstLength, p.FirstBurstLength, p.MaxOutstandingR2T = s.MaxBurstLength, s.FirstBurstLength, s.MaxOutstandingR2T
	p.DefaultTime2Wait, p.DefaultTime2Retain = s.DefaultTime2Wait, s.DefaultTime2Retain
	p.DataPDUInOrder, p.DataSequenceInOrder = s.DataPDUInOrder, s.DataSequenceInOrder
	p.ErrorRecoveryLevel, p.TaskReporting, p.ISCSIProtocolLevel = s.ErrorRecoveryLevel, s.TaskReporting, s.ISCSIProtocolLevel
}

// rdma tells that RFC 7145's keys count in this session, as far as is known.
func (n *Negotiator) rdma() bool {
	switch {
	case n.discovery:
		return false
	case n.handover && n.join != nil: // the session's, not to be exchanged again (RFC 7145, section 5.1)
		return n.join.RDMAExtensions
	}
	return n.link || n.handover && n.outcome(KeyRDMAExtensions) == Yes
}

// Offer queues this side's declarations and offers: an initiator's are all that its Settings hold, a target's those that it cannot leave
// to the initiator. A target calls it after the first Receive, so that it does not offer what it was just asked.
func (n *Negotiator) Offer() {
	for i := range keys {
		k, st := &keys[i], &n.keys[i]
		if st.offer != "" || st.asked || k.NotDiscovery && n.discovery || k.RDMA && !n.mayRDMA() {
			continue
		}
		v := n.setting(k)
		if v == "" {
			continue
		}
		switch {
		case n.role == RoleInitiator && (!k.Initiator || !n.initiatorOffers(k)),
			n.role == RoleTarget && !n.targetOffers(k, st, v),
			n.join != nil && k.leads():
			continue
		}
		st.offer = v
		if k.Func != Declare {
			st.waiting = true
		}
		n.out.Add(k.Name, v)
	}
}

func (n *Negotiator) targetOffers(k *Key, st *keyState, v string) bool {
	switch {
	case !k.Target:
		return false
	case k.Func == Declare && k.RDMA && st.peer == "":
		// Linux's user space ends the login over a declaration of RFC 7145 that it does not know,
		// and it knows none. Who declares the key knows it.
		return false
	case k.Func == Declare:
		return n.set.offers(k, n.rdma())
	case !guards(k):
		return false
	}
	result, ok := k.Combine(k.Default, v)
	return !ok || result != k.Default
}

// Receive handles one whole text of the peer's (all PDUs joined by C). Keys that are not operational are the caller's: it takes
// them out first. Errors wrap ErrNegotiation.
func (n *Negotiator) Receive(t Text) error {
	n.answers = n.answers[:0]
	for _, kv := range t {
		i, ok := keyIndex[kv.Key]
		if !ok {
			i = -1
		}
		n.answers = append(n.answers, answer{kv: kv, key: i})
	}
	// What other keys depend on comes first, whatever the order on the wire; answers keep that order.
	for _, pass := range [...]func(*Key) bool{decides, limits, others} {
		for j := range n.answers {
			a := &n.answers[j]
			if a.key < 0 || !pass(&keys[a.key]) {
				continue
			}
			if err := n.receive(a); err != nil {
				return err
			}
		}
	}
	n.later = n.later || slices.ContainsFunc(n.answers, func(a answer) bool { return a.key >= 0 && !keys[a.key].AnyStage })
	for _, a := range n.answers {
		switch {
		case a.key < 0 && a.kv.Value != NotUnderstood:
			n.out.Add(a.kv.Key, NotUnderstood)
		case a.send != "":
			n.out.Add(a.kv.Key, a.send)
		}
	}
	return nil
}

func decides(k *Key) bool {
	return k.Name == KeyRDMAExtensions || k.Name == KeyInitialR2T || k.Name == KeyImmediateData || k.Name == KeyErrorRecoveryLevel
}
func limits(k *Key) bool { return k.Name == KeyMaxBurstLength }
func others(k *Key) bool { return !decides(k) && !limits(k) }

func (n *Negotiator) receive(a *answer) error {
	k, st := &keys[a.key], &n.keys[a.key]
	v := a.kv.Value
	if st.waiting {
		return n.answered(k, st, v)
	}
	st.asked = k.Func != Declare
	mayPeer := k.Target
	if n.role == RoleTarget {
		mayPeer = k.Initiator
	}
	switch {
	case special(v):
		if k.Func == Declare && st.offer != "" { // the peer does not know what was declared to it
			n.unheard(k, st)
			return nil
		}
		return fmt.Errorf("%w: %s=%s offered", ErrNegotiation, k.Name, v)
	case !mayPeer && k.Name == KeyISERHello && st.offer != "" && k.Valid(v):
		if v == No {
			n.unheard(k, st)
		}
		return nil
	case !mayPeer:
		return fmt.Errorf("%w: %s is not the peer's to send", ErrNegotiation, k.Name)
	case k.Use == FullFeatureOnly:
		return fmt.Errorf("%w: %s during login", ErrNegotiation, k.Name)
	case k.Type == KeyMarkers:
		a.send = Rejected
		if v == Yes || v == No {
			a.send = No
		}
		return nil
	case k.NotDiscovery && n.discovery, k.RDMA && !n.rdma(), k.Name == KeyFirstBurstLength && n.noUnsolicited():
		if k.Func != Declare {
			a.send = Irrelevant
		}
		return nil
	case k.Func == Declare:
		if !k.Valid(v) {
			return fmt.Errorf("%w: %s=%.40s", ErrNegotiation, k.Name, v)
		}
		st.peer = v
		return nil
	case !k.Valid(v):
		a.send = Rejected
		return nil
	}
	own := n.own(k)
	if k.Name == KeyRDMAExtensions && n.handover && n.later {
		own = No // too late: what depends on it may have been agreed on (RFC 7145, section 6.3)
	}
	result, ok := k.Combine(v, own)
	if !ok || n.join != nil && k.leads() && result != own {
		a.send = Rejected
		return nil
	}
	if k.Name == KeyFirstBurstLength {
		result, _ = k.Combine(result, n.outcome(KeyMaxBurstLength))
	}
	st.settled, st.value = true, result
	a.send = result
	return nil
}

// answered takes the peer's answer to this side's offer.
func (n *Negotiator) answered(k *Key, st *keyState, v string) error {
	st.waiting = false
	switch {
	case special(v):
		if k.Name == KeyRDMAExtensions && n.link {
			return fmt.Errorf("%w: the peer answers %s=%s on an RDMA connection", ErrNegotiation, k.Name, v)
		}
		return nil // the default stands
	case !k.admits(st.offer, v):
		return fmt.Errorf("%w: %s=%s answered by %.40s", ErrNegotiation, k.Name, st.offer, v)
	}
	st.settled, st.value = true, v
	return nil
}

// special tells that v is an answer that says nothing about the key's value (RFC 7143, section 6.2).
func special(v string) bool { return v == NotUnderstood || v == Irrelevant || v == Rejected }

// noUnsolicited tells that FirstBurstLength is irrelevant (RFC 7143, section 13.14).
func (n *Negotiator) noUnsolicited() bool {
	return n.settledAs(KeyInitialR2T, Yes) && n.settledAs(KeyImmediateData, No)
}

func (n *Negotiator) settledAs(name, v string) bool {
	st := &n.keys[keyIndex[name]]
	return st.settled && st.value == v
}

// outcome is a negotiated key's value as it stands: agreed, or the default.
func (n *Negotiator) outcome(name string) string {
	st := &n.keys[keyIndex[name]]
	if st.settled {
		return st.value
	}
	return keys[keyIndex[name]].Default
}

// Take returns what is to be sent now.
func (n *Negotiator) Take() Text {
	t := n.out
	n.out = nil
	return t
}

// Waiting is the name of an own offer that still needs the peer's answer, "" if there is none.
func (n *Negotiator) Waiting() string {
	for i := range keys {
		if st := &n.keys[i]; st.waiting && !keys[i].answerOptional(st.offer) {
			return keys[i].Name
		}
	}
	return ""
}

// answerOwed tells that t holds an answer or an offer which the peer, having ended the stage, could not see any more: its value would
// differ from what the peer said. An answer that only repeats the peer's value is not missed.
func (n *Negotiator) answerOwed(t Text) string {
	for _, kv := range t {
		i, ok := keyIndex[kv.Key]
		if !ok || special(kv.Value) {
			continue
		}
		at := slices.IndexFunc(n.answers, func(a answer) bool { return a.key == i })
		if at < 0 || !sameValue(&keys[i], n.answers[at].kv.Value, kv.Value) {
			return kv.Key
		}
	}
	return ""
}

// Apply puts the outcome into p and checks the rules between keys. Errors wrap ErrNegotiation.
func (n *Negotiator) Apply(p *Params) error {
	for i := range keys { // offers that may go unanswered
		if st := &n.keys[i]; st.waiting && keys[i].answerOptional(st.offer) {
			st.waiting, st.settled, st.value = false, true, st.offer
		}
	}
	if k := n.Waiting(); k != "" {
		return fmt.Errorf("%w: no answer to %s", ErrNegotiation, k)
	}
	if n.link && n.rdma() && n.outcome(KeyRDMAExtensions) != Yes {
		return fmt.Errorf("%w: %s=Yes was not agreed on an RDMA connection", ErrNegotiation, KeyRDMAExtensions)
	}
	if n.handover && n.set.RequireRDMA && !n.discovery && !n.rdma() {
		return fmt.Errorf("%w: %w", ErrNegotiation, ErrNoRDMA)
	}
	number := func(name string) int { v, _ := ParseNumber(n.outcome(name)); return int(v) }
	p.Discovery = n.discovery
	p.HeaderDigest = n.outcome(KeyHeaderDigest) == "CRC32C"
	p.DataDigest = n.outcome(KeyDataDigest) == "CRC32C"
	p.InitialR2T = n.outcome(KeyInitialR2T) == Yes
	p.ImmediateData = n.outcome(KeyImmediateData) == Yes
	p.MaxBurstLength = number(KeyMaxBurstLength)
	p.FirstBurstLength = number(KeyFirstBurstLength)
	p.MaxOutstandingR2T = number(KeyMaxOutstandingR2T)
	p.DataPDUInOrder = n.outcome(KeyDataPDUInOrder) == Yes
	p.DataSequenceInOrder = n.outcome(KeyDataSequenceInOrder) == Yes
	p.ErrorRecoveryLevel = number(KeyErrorRecoveryLevel)
	p.DefaultTime2Wait = number(KeyDefaultTime2Wait)
	p.DefaultTime2Retain = number(KeyDefaultTime2Retain)
	p.MaxConnections = number(KeyMaxConnections)
	p.ISCSIProtocolLevel = number(KeyProtocolLevel)
	p.TaskReporting = n.outcome(KeyTaskReporting)
	p.RDMAExtensions = n.rdma()
	if n.handover && n.rdma() { // whatever was said of them (RFC 7145, section 6.1)
		p.HeaderDigest, p.DataDigest = false, false
	}
	if n.role == RoleInitiator || n.noUnsolicited() {
		// Answers may leave the two at odds. An initiator is always right to send less; a target keeps to what
		// the initiator may believe, unless there is no unsolicited data at all.
		p.FirstBurstLength = min(p.FirstBurstLength, p.MaxBurstLength)
	}
	for _, name := range [...]string{KeyHeaderDigest, KeyDataDigest} {
		if n.handover && n.rdma() {
			break
		}
		own := n.set.value(name, n.role, n.link)
		if _, ok := keys[keyIndex[name]].Combine(n.outcome(name), own); !ok {
			return fmt.Errorf("%w: %s=%s, this side wants %s", ErrNegotiation, name, n.outcome(name), own)
		}
	}
	if p.ErrorRecoveryLevel > 0 && p.DataSequenceInOrder {
		p.MaxOutstandingR2T = 1 // RFC 7143, section 13.19, even if the peer would take more
	}
	if n.join != nil {
		p.inherit(n.join)
	}
	n.applySegments(p, number)
	return nil
}

// applySegments sets the lengths of data segments, which over RDMA have keys of their own.
func (n *Negotiator) applySegments(p *Params, number func(string) int) {
	declared := func(name string) (own, peer uint64) {
		k, st := &keys[keyIndex[name]], &n.keys[keyIndex[name]]
		own, _ = ParseNumber(st.offer)
		if st.offer == "" {
			own, _ = ParseNumber(k.Default)
		}
		peer, _ = ParseNumber(st.peer)
		if st.peer == "" {
			peer, _ = ParseNumber(k.Default)
		}
		return own, peer
	}
	if !n.rdma() {
		own, peer := declared(KeyMaxRecvDataSegment)
		p.MaxRecvDataSegment, p.MaxSendDataSegment = int(own), int(peer)
		return
	}
	p.TargetRecvDataSegmentLength = number(KeyTargetRecvSegment)
	p.InitiatorRecvDataSegmentLength = number(KeyInitiatorRecvSegment)
	p.MaxRecvDataSegment, p.MaxSendDataSegment = p.InitiatorRecvDataSegmentLength, p.TargetRecvDataSegmentLength
	if n.role == RoleTarget {
		p.MaxRecvDataSegment, p.MaxSendDataSegment = p.MaxSendDataSegment, p.MaxRecvDataSegment
	}
	own, peer := declared(KeyMaxUnexpectedPDUs)
	p.OwnMaxOutstandingUnexpectedPDUs, p.MaxOutstandingUnexpectedPDUs = uint32(own), uint32(peer)
	_, peer = declared(KeyMaxAHSLength)
	p.MaxAHSLength = uint32(peer)
	flag := func(name string) bool {
		st := &n.keys[keyIndex[name]]
		return st.peer == Yes || n.role == RoleInitiator && st.offer == Yes
	}
	p.TaggedBufferForSolicitedDataOnly = flag(KeySolicitedOnly)
	p.ISERHelloRequired = flag(KeyISERHello)
	n.joinSession(p)
}

// AnswerText answers the operational keys of a Text Request in full feature phase, where only keys of use ALL may be
// said, and puts what they change into p. SendTargets and declarations get no answer here.
func AnswerText(t Text, p *Params) Text {
	var out Text
	for _, kv := range t {
		k, ok := LookupKey(kv.Key)
		switch {
		case !ok:
			if kv.Value != NotUnderstood {
				out.Add(kv.Key, NotUnderstood)
			}
		case k.Name == KeySendTargets:
		case k.Use != Always, !k.Valid(kv.Value):
			out.Add(kv.Key, Rejected)
		case k.Name == KeyMaxRecvDataSegment && !p.RDMAExtensions:
			v, _ := ParseNumber(kv.Value)
			p.MaxSendDataSegment = int(v)
		}
	}
	return out
}
