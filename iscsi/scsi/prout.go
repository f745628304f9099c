package scsi

import (
	"encoding/binary"
	"errors"
	"slices"
)

// Service actions of PERSISTENT RESERVE OUT (SPC-4, section 6.16.2).
const (
	SARegister          = 0x00
	SAReserve           = 0x01
	SARelease           = 0x02
	SAClear             = 0x03
	SAPreempt           = 0x04
	SAPreemptAndAbort   = 0x05
	SARegisterAndIgnore = 0x06
	SARegisterAndMove   = 0x07
)

// maxPRList bounds PERSISTENT RESERVE OUT's parameter list, whose TransportIDs an initiator chooses.
const maxPRList = 64 << 10

// TaskAborter is the transport's part in PREEMPT AND ABORT.
type TaskAborter interface {
	// AbortNexuses aborts the commands that those nexuses have at l, but for the one whose data x moves. It returns
	// once they have left their store, or after a bounded time, with the rest fenced off from later commands.
	AbortNexuses(l *LU, of []*Nexus, x Transfer)
}

// prRequest is a PERSISTENT RESERVE OUT command, decoded.
type prRequest struct {
	action byte
	from   nexusID
	ports  []uint16 // every target port, for ALL_TG_PT
	key    uint64   // RESERVATION KEY
	sark   uint64   // SERVICE ACTION RESERVATION KEY
	kind   ReservationType
	allTG  bool
	aptpl  bool
	unreg  bool
	others []nexusID // of SPEC_I_PT
	dest   nexusID   // of REGISTER AND MOVE
}

// notice is a unit attention that a change of reservations causes.
type notice struct {
	to   nexusID
	code Code
}

// prOutcome is what a PERSISTENT RESERVE OUT command comes to.
type prOutcome struct {
	conflict bool
	sense    *Sense
	changed  bool // there is a new state
	counts   bool // PRGENERATION goes up
	notices  []notice
	preempt  []nexusID // whose registrations PREEMPT ended
}

func (o *prOutcome) refuse(code Code) {
	o.sense = &Sense{Key: KeyIllegalRequest, Code: code}
}

// badList points to an octet of the parameter list.
func (o *prOutcome) badList(octet uint16) {
	o.sense = &Sense{Key: KeyIllegalRequest, Code: CodeInvalidFieldInParameters, FieldValid: true, Field: octet}
}

// persistentReserveOut is PERSISTENT RESERVE OUT (SPC-4, section 6.16):
//
//	 0       1        2            5                          9
//	+-------+--------+------------+--------------------------+---------+
//	|  5Fh  | action | scope type | 00 00   list length (4)  | CONTROL |
//	+-------+--------+------------+--------------------------+---------+
//
// with a parameter list of 24 octets and, for some, TransportIDs:
//
//	 0                 8                  16          20                      21
//	+-----------------+------------------+-----------+-----------------------+---------
//	| reservation key | action's key     |  obsolete | SPEC_I_PT ALL_TG APTPL| 0 0 0
//	+-----------------+------------------+-----------+-----------------------+---------
//
// The new state is on stable storage, where it has to be kept, before anybody sees it.
func (t *task) persistentReserveOut() {
	l := t.lu
	if l.reservation.Load() != nil { // SPC-2, section 5.5.1: neither kind of reservation knows the other
		t.res.Status = StatusReservationConflict
		return
	}
	length := int64(binary.BigEndian.Uint32(t.cdb[5:]))
	if length < 24 || length > maxPRList {
		t.fail(KeyIllegalRequest, CodeParameterListLength)
		return
	}
	list, ok := t.parameterList(make([]byte, length), length)
	if !ok {
		return
	}
	r := prRequest{action: t.cdb[1] & 0x1f, from: t.nexus.id()}
	if s := t.decodeReserve(&r, list); s != nil {
		t.sense(s)
		return
	}
	p := &l.persistent
	p.mu.Lock()
	if l.reservation.Load() != nil {
		p.mu.Unlock()
		t.res.Status = StatusReservationConflict
		return
	}
	next, o := p.state.apply(&r)
	if o.changed {
		if err := p.store(next); err != nil {
			p.mu.Unlock()
			t.prFault(err)
			return
		}
	}
	if o.counts {
		p.generation++
	}
	for _, n := range o.notices {
		l.attendPort(n.to, n.code)
	}
	p.mu.Unlock()
	switch {
	case o.conflict:
		t.res.Status = StatusReservationConflict
		return
	case o.sense != nil:
		t.sense(o.sense)
		return
	}
	if r.action == SAPreemptAndAbort && len(o.preempt) > 0 && t.dev != nil {
		of := l.nexusesOf(o.preempt)
		if a := t.dev.aborter.Load(); a != nil {
			(*a).AbortNexuses(l, of, t.x)
		}
		if err := awaitCopies(t.ctx, t.stopCopiesOf(of)); err != nil {
			t.res.Err = err
		}
	}
}

// stopCopiesOf ends the copies of nexuses that are preempted here: those in the background that this logical unit manages, and all that write to it
// for another one, whose piece under way began before the preemption. Pieces that come later find that they may not.
func (t *task) stopCopiesOf(of []*Nexus) []*copyResult {
	l := t.lu
	list := l.copies.stop(func(r *copyResult) bool { return r.background && slices.Contains(of, r.nexus) })
	for _, m := range *t.dev.luns.Load() {
		if m != l {
			list = append(list, m.copies.stop(func(r *copyResult) bool { return r.into.Load() == l && slices.Contains(of, r.nexus) })...)
		}
	}
	return list
}

// prFault answers where the state could not be kept: nothing has changed.
func (t *task) prFault(err error) {
	t.fault("persistent reservations could not be kept", err, true, 0)
	if errors.Is(err, errNotKept) {
		t.sense(&Sense{
			Key: KeyIllegalRequest, Code: CodeInvalidFieldInParameters,
			FieldValid: true, Field: 20, BitValid: true,
		})
		return
	}
	t.fail(KeyIllegalRequest, CodeInsufficientRegistration)
}

// decodeReserve reads the CDB and the parameter list and checks what needs no state.
func (t *task) decodeReserve(r *prRequest, list []byte) *Sense {
	bad := func(octet int) *Sense {
		return &Sense{Key: KeyIllegalRequest, Code: CodeInvalidFieldInParameters, FieldValid: true, Field: uint16(octet)}
	}
	r.key, r.sark = binary.BigEndian.Uint64(list), binary.BigEndian.Uint64(list[8:])
	switch r.action {
	case SAReserve, SARelease, SAPreempt, SAPreemptAndAbort:
		r.kind = ReservationType(t.cdb[2] & 0x0f)
		if t.cdb[2]>>4 != 0 || !r.kind.valid() { // the logical unit is the only scope
			return &Sense{Key: KeyIllegalRequest, Code: CodeInvalidFieldInCDB, FieldValid: true, InCDB: true, Field: 2}
		}
	}
	if r.action == SARegisterAndMove {
		return t.decodeMove(r, list)
	}
	specIPT := list[20]&0x08 != 0
	switch {
	case specIPT && r.action != SARegister:
		return &Sense{Key: KeyIllegalRequest, Code: CodeInvalidFieldInParameters, FieldValid: true, Field: 20, BitValid: true, Bit: 3}
	case !specIPT && len(list) != 24:
		return &Sense{Key: KeyIllegalRequest, Code: CodeParameterListLength}
	}
	if r.action == SARegister || r.action == SARegisterAndIgnore {
		r.allTG, r.aptpl = list[20]&0x04 != 0, list[20]&0x01 != 0
		r.ports = t.ports()
	}
	if !specIPT {
		return nil
	}
	if len(list) < 28 {
		return &Sense{Key: KeyIllegalRequest, Code: CodeParameterListLength}
	}
	n := int64(binary.BigEndian.Uint32(list[24:]))
	if n != int64(len(list)-28) {
		return &Sense{Key: KeyIllegalRequest, Code: CodeParameterListLength}
	}
	for at := 28; at < len(list); {
		id, size, ok := parseTransportID(list[at:])
		if !ok || len(r.others) >= maxRegistrations {
			return bad(at)
		}
		names := []string{id}
		if !initiatorPort(id) { // a name alone is every port of it that is known here
			names = t.lu.portsOf(id)
		}
		for _, name := range names {
			r.others = append(r.others, nexusID{name, r.from.port})
		}
		at += size
	}
	return nil
}

// decodeMove reads REGISTER AND MOVE's own parameter list (SPC-4, section 6.16.4):
//
//	 0                 8               16  17             18           20         24
//	+-----------------+---------------+---+--------------+------------+----------+-------------
//	| reservation key | action's key  | 0 | UNREG  APTPL | target port| length   | TransportID
//	+-----------------+---------------+---+--------------+------------+----------+-------------
func (t *task) decodeMove(r *prRequest, list []byte) *Sense {
	r.unreg, r.aptpl = list[17]&0x02 != 0, list[17]&0x01 != 0
	port := binary.BigEndian.Uint16(list[18:])
	n := int64(binary.BigEndian.Uint32(list[20:]))
	if n < 24 || n != int64(len(list)-24) {
		return &Sense{Key: KeyIllegalRequest, Code: CodeParameterListLength}
	}
	id, _, ok := parseTransportID(list[24:])
	if ok && !initiatorPort(id) {
		ports := t.lu.portsOf(id)
		if ok = len(ports) == 1; ok {
			id = ports[0]
		}
	}
	if !ok {
		return &Sense{Key: KeyIllegalRequest, Code: CodeInvalidFieldInParameters, FieldValid: true, Field: 24}
	}
	known := false
	for _, p := range t.ports() {
		known = known || p == port
	}
	if !known {
		return &Sense{Key: KeyIllegalRequest, Code: CodeInvalidFieldInParameters, FieldValid: true, Field: 18}
	}
	r.dest = nexusID{id, port}
	return nil
}

// ports are the relative identifiers of all target ports.
func (t *task) ports() []uint16 {
	if t.dev == nil {
		return []uint16{t.nexus.id().port}
	}
	var list []uint16
	for _, p := range t.dev.Ports() {
		list = append(list, p.Relative)
	}
	return list
}

// attendPort queues a unit attention for the open sessions of a nexus.
func (l *LU) attendPort(id nexusID, code Code) {
	l.mu.Lock()
	for n, a := range l.attentions {
		if n.id() == id {
			n.pending.Add(int32(a.add(code)))
		}
	}
	l.mu.Unlock()
}

// Tell queues a unit attention for one nexus.
func (l *LU) Tell(n *Nexus, code Code) { l.attend(n, code) }

// nexusesOf are the open ones of the nexuses named.
func (l *LU) nexusesOf(ids []nexusID) []*Nexus {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*Nexus
	for n := range l.attentions {
		for _, id := range ids {
			if n.id() == id {
				list = append(list, n)
			}
		}
	}
	return list
}

// portsOf are the initiator ports of an initiator's name that are logged in.
func (l *LU) portsOf(initiator string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := make(map[string]bool)
	var list []string
	for n := range l.attentions {
		if p := n.initiator; !seen[p] && len(p) > len(initiator) && p[:len(initiator)] == initiator && initiatorPort(p) &&
			p[len(initiator):len(initiator)+len(isidMark)] == isidMark {
			seen[p] = true
			list = append(list, p)
		}
	}
	return list
}

var reservationCommands = []command{
	{
		op: OpReserve10, name: "RESERVE(10)", zero: 0x13,
		usage: []byte{OpReserve10, 0, 0, 0, 0, 0, 0, 0, 0, 0}, run: (*task).reserve,
	},
	{
		op: OpRelease10, name: "RELEASE(10)", flags: despiteReservation, zero: 0x13,
		usage: []byte{OpRelease10, 0, 0, 0, 0, 0, 0, 0, 0, 0}, run: (*task).release,
	},
	prInCommand(PRReadKeys, "PERSISTENT RESERVE IN, READ KEYS"),
	prInCommand(PRReadReservation, "PERSISTENT RESERVE IN, READ RESERVATION"),
	prInCommand(PRReportCapabilities, "PERSISTENT RESERVE IN, REPORT CAPABILITIES"),
	prInCommand(PRReadFullStatus, "PERSISTENT RESERVE IN, READ FULL STATUS"),
	prOutCommand(SARegister, 0x00, "PERSISTENT RESERVE OUT, REGISTER"),
	prOutCommand(SAReserve, 0xff, "PERSISTENT RESERVE OUT, RESERVE"),
	prOutCommand(SARelease, 0xff, "PERSISTENT RESERVE OUT, RELEASE"),
	prOutCommand(SAClear, 0x00, "PERSISTENT RESERVE OUT, CLEAR"),
	prOutCommand(SAPreempt, 0xff, "PERSISTENT RESERVE OUT, PREEMPT"),
	prOutCommand(SAPreemptAndAbort, 0xff, "PERSISTENT RESERVE OUT, PREEMPT AND ABORT"),
	prOutCommand(SARegisterAndIgnore, 0x00, "PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY"),
	prOutCommand(SARegisterAndMove, 0x00, "PERSISTENT RESERVE OUT, REGISTER AND MOVE"),
}

func prInCommand(sa byte, name string) command {
	return command{
		op: OpPersistentReserveIn, action: sa, name: name, flags: action,
		usage: []byte{OpPersistentReserveIn, sa, 0, 0, 0, 0, 0, 0xff, 0xff, 0},
		plan:  allocation16(7), run: (*task).persistentReserveIn,
	}
}

func prOutCommand(sa, scope byte, name string) command {
	return command{
		op: OpPersistentReserveOut, action: sa, name: name, flags: action | waits,
		usage: []byte{OpPersistentReserveOut, sa, scope, 0, 0, 0xff, 0xff, 0xff, 0xff, 0},
		plan:  parameters(func(cdb []byte) int64 { return int64(binary.BigEndian.Uint32(cdb[5:])) }),
		run:   (*task).persistentReserveOut,
	}
}
