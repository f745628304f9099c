package scsi

// apply works a PERSISTENT RESERVE OUT command out on a state, which stays as it is, and gives the next one.
func (s *prState) apply(r *prRequest) (next *prState, o prOutcome) {
	next = s.clone()
	key, registered := s.key(r.from)
	switch r.action {
	case SARegister, SARegisterAndIgnore:
		next.register(r, &o)
		return next, o
	}
	// All else is for registered nexuses that say their key (SPC-4, section 5.12.5.3).
	if !registered || key != r.key {
		o.conflict = true
		return s, o
	}
	switch r.action {
	case SAReserve:
		next.reserve(r, &o)
	case SARelease:
		next.release(r, &o)
	case SAClear:
		next.clear(r, &o)
	case SAPreempt, SAPreemptAndAbort:
		next.preempt(r, &o)
	case SARegisterAndMove:
		next.move(r, &o)
	}
	return next, o
}

// register is REGISTER, and REGISTER AND IGNORE EXISTING KEY (SPC-4, sections 5.12.7 and 5.12.11.3):
//
//	nexus           key given   action's key   REGISTER          ... AND IGNORE
//	not registered  0           0              nothing           nothing
//	not registered  0           not 0          registers         registers
//	not registered  not 0       any            conflict          as above
//	registered      its own     0              unregisters       unregisters
//	registered      its own     not 0          changes its key   changes its key
//	registered      another     any            conflict          as above
//
// With ALL_TG_PT the same is done at every target port where it applies.
func (s *prState) register(r *prRequest, o *prOutcome) {
	key, registered := s.key(r.from)
	if r.action == SARegister {
		if !registered && r.key != 0 || registered && key != r.key {
			o.conflict = true
			return
		}
		if registered && len(r.others) > 0 { // SPEC_I_PT is for who is not registered
			o.badList(20)
			return
		}
	}
	ids := []nexusID{r.from}
	if r.allTG {
		for _, p := range r.ports {
			if p != r.from.port {
				ids = append(ids, nexusID{r.from.initiator, p})
			}
		}
	}
	if r.sark == 0 {
		if !registered {
			return
		}
		for _, id := range ids {
			if k, ok := s.key(id); ok && (k == key || r.action == SARegisterAndIgnore) {
				s.unregister(id, o)
			}
		}
		s.aptpl, o.changed, o.counts = r.aptpl, true, true
		return
	}
	for _, other := range r.others {
		if other == r.from {
			continue
		}
		if _, ok := s.key(other); ok {
			o.badList(28)
			return
		}
		ids = append(ids, other)
		if r.allTG {
			for _, p := range r.ports {
				id := nexusID{other.initiator, p}
				if _, ok := s.key(id); !ok && p != other.port {
					ids = append(ids, id)
				}
			}
		}
	}
	for _, id := range ids {
		k, ok := s.key(id)
		if ok && id != r.from && k != key && r.action == SARegister {
			continue // at that port the command would have been a conflict
		}
		s.set(id, r.sark)
	}
	if len(s.list) > maxRegistrations {
		o.refuse(CodeInsufficientRegistration)
		return
	}
	s.aptpl, o.changed, o.counts = r.aptpl, true, true
}

// unregister ends one registration and, with the last holder's, the reservation. Others who are registered learn of
// the end of one that was theirs, too (SPC-4, section 5.12.11.2.3).
func (s *prState) unregister(id nexusID, o *prOutcome) {
	held := s.holds(id)
	s.remove(func(r registration) bool { return r.id == id })
	if !held {
		return
	}
	if s.kind.allRegistrants() {
		if len(s.list) == 0 {
			s.kind, s.holder = 0, nexusID{}
		}
		return
	}
	if s.kind.registrantsOnly() {
		s.tell(id, CodeReservationsReleased, o)
	}
	s.kind, s.holder = 0, nexusID{}
}

// tell notes a unit attention for all who are registered but one.
func (s *prState) tell(except nexusID, code Code, o *prOutcome) {
	for _, r := range s.list {
		if r.id != except {
			o.notices = append(o.notices, notice{r.id, code})
		}
	}
}

// reserve is RESERVE (SPC-4, section 5.12.9): a holder may ask again for what it has.
func (s *prState) reserve(r *prRequest, o *prOutcome) {
	if s.kind != 0 {
		o.conflict = !s.holds(r.from) || s.kind != r.kind
		return
	}
	s.kind, s.holder, o.changed = r.kind, r.from, true
}

// release is RELEASE (SPC-4, section 5.12.11.2.2): GOOD without effect from who holds nothing.
func (s *prState) release(r *prRequest, o *prOutcome) {
	switch {
	case !s.holds(r.from):
		return
	case s.kind != r.kind:
		o.refuse(CodeInvalidRelease)
		return
	case s.kind.registrantsOnly():
		s.tell(r.from, CodeReservationsReleased, o)
	}
	s.kind, s.holder, o.changed = 0, nexusID{}, true
}

// clear is CLEAR (SPC-4, section 5.12.11.2.7).
func (s *prState) clear(r *prRequest, o *prOutcome) {
	s.tell(r.from, CodeReservationsPreempted, o)
	s.list, s.kind, s.holder = nil, 0, nexusID{}
	s.index()
	o.changed, o.counts = true, true
}

// preempt is PREEMPT, and the registrations' part of PREEMPT AND ABORT (SPC-4, sections 5.12.11.2.4 to 5.12.11.2.6):
//
//	reservation      action's key      effect
//	one holder       the holder's      its registrations go, the reservation becomes the sender's
//	one holder       0                 refused
//	all registrants  0                 all other registrations go, the reservation becomes the sender's
//	any or none      anybody's         the registrations with the key go
//	any or none      nobody's          conflict
func (s *prState) preempt(r *prRequest, o *prOutcome) {
	before := s.kind
	holders := false
	switch {
	case s.kind == 0:
	case s.kind.allRegistrants():
		holders = r.sark == 0
	default:
		holderKey, _ := s.key(s.holder)
		holders = holderKey == r.sark && r.sark != 0
	}
	if r.sark == 0 && !holders {
		o.badList(8)
		return
	}
	gone := s.remove(func(reg registration) bool {
		switch {
		case !holders:
			return reg.key == r.sark
		case reg.id == r.from: // it takes over
			return false
		}
		return r.sark == 0 || reg.key == r.sark
	})
	if len(gone) == 0 && !holders {
		o.conflict = true
		return
	}
	o.changed, o.counts, o.preempt = true, true, gone
	for _, id := range gone {
		if id != r.from {
			o.notices = append(o.notices, notice{id, CodeRegistrationsPreempted})
		}
	}
	switch {
	case holders:
		s.kind, s.holder = r.kind, r.from
		if before != r.kind {
			s.tell(r.from, CodeReservationsReleased, o)
		}
	case s.kind.allRegistrants() && len(s.list) == 0:
		s.kind, s.holder = 0, nexusID{}
	}
}

// move is REGISTER AND MOVE (SPC-4, section 5.12.8): the holder hands its reservation on.
func (s *prState) move(r *prRequest, o *prOutcome) {
	switch {
	case s.kind == 0:
		o.sense = &Sense{Key: KeyIllegalRequest, Code: CodeInvalidFieldInCDB, FieldValid: true, InCDB: true, Field: 1}
		return
	case !s.holds(r.from), s.kind.allRegistrants():
		o.conflict = true
		return
	case r.sark == 0:
		o.badList(8)
		return
	case r.dest == r.from:
		o.badList(24)
		return
	}
	s.set(r.dest, r.sark)
	if len(s.list) > maxRegistrations {
		o.refuse(CodeInsufficientRegistration)
		return
	}
	s.holder = r.dest
	if r.unreg {
		s.remove(func(reg registration) bool { return reg.id == r.from })
	}
	s.aptpl, o.changed, o.counts = r.aptpl, true, true
}
