package scsi

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// ReservationType is the type of a persistent reservation (SPC-4, section 6.15.3.4): what others are kept from, and
// who the others are.
type ReservationType byte

// The types of persistent reservations. Write exclusive keeps others from changing the medium, exclusive access from
// reading it, too. Others are all but the holder; with registrants only, all who are not registered; with all
// registrants likewise, and each registered nexus is a holder.
const (
	WriteExclusive                 ReservationType = 1
	ExclusiveAccess                ReservationType = 3
	WriteExclusiveRegistrantsOnly  ReservationType = 5
	ExclusiveAccessRegistrantsOnly ReservationType = 6
	WriteExclusiveAllRegistrants   ReservationType = 7
	ExclusiveAccessAllRegistrants  ReservationType = 8
)

var reservationTypes = map[ReservationType]string{
	WriteExclusive:                 "write exclusive",
	ExclusiveAccess:                "exclusive access",
	WriteExclusiveRegistrantsOnly:  "write exclusive, registrants only",
	ExclusiveAccessRegistrantsOnly: "exclusive access, registrants only",
	WriteExclusiveAllRegistrants:   "write exclusive, all registrants",
	ExclusiveAccessAllRegistrants:  "exclusive access, all registrants",
}

func (r ReservationType) String() string {
	if s, ok := reservationTypes[r]; ok {
		return s
	}
	return fmt.Sprintf("reservation type %d", byte(r))
}

func (r ReservationType) valid() bool { return reservationTypes[r] != "" }

// exclusive tells that others may not even read.
func (r ReservationType) exclusive() bool {
	return r == ExclusiveAccess || r == ExclusiveAccessRegistrantsOnly || r == ExclusiveAccessAllRegistrants
}

// registrantsOnly tells that the registered nexuses may do all that the holder may.
func (r ReservationType) registrantsOnly() bool { return r >= WriteExclusiveRegistrantsOnly }

// allRegistrants tells that every registered nexus is a holder.
func (r ReservationType) allRegistrants() bool { return r >= WriteExclusiveAllRegistrants }

// nexusID names an I_T nexus beyond its life: the initiator port's name, for iSCSI the initiator's name with the ISID,
// and the relative target port identifier. Registrations belong to it, so that a session that comes back finds its own.
type nexusID struct {
	initiator string
	port      uint16
}

// registration is one nexus with its reservation key.
type registration struct {
	id  nexusID
	key uint64
}

// maxRegistrations bounds the registrations of a logical unit: a peer chooses TransportIDs at will.
const maxRegistrations = 1024

// prState is the registrations of a logical unit and its persistent reservation. One that has been published does not
// change: commands read it without a lock.
type prState struct {
	list   []registration  // in the order in which they came
	keys   map[nexusID]int // index into list
	kind   ReservationType // 0: no reservation
	holder nexusID         // unless kind is of all registrants
	aptpl  bool            // kept over a restart (activate persist through power loss)
}

func (s *prState) clone() *prState {
	next := *s
	next.list = slices.Clone(s.list)
	next.keys = make(map[nexusID]int, len(s.list))
	next.index()
	return &next
}

func (s *prState) index() {
	if s.keys == nil {
		s.keys = make(map[nexusID]int, len(s.list))
	}
	clear(s.keys)
	for i, r := range s.list {
		s.keys[r.id] = i
	}
}

// key is the reservation key of a nexus, if it is registered.
func (s *prState) key(id nexusID) (uint64, bool) {
	i, ok := s.keys[id]
	if !ok {
		return 0, false
	}
	return s.list[i].key, true
}

// set registers a nexus or changes its key.
func (s *prState) set(id nexusID, key uint64) {
	if i, ok := s.keys[id]; ok {
		s.list[i].key = key
		return
	}
	s.keys[id] = len(s.list)
	s.list = append(s.list, registration{id, key})
}

// remove ends the registrations that match and gives them. The reservation stays for the caller to look at.
func (s *prState) remove(match func(registration) bool) (gone []nexusID) {
	keep := s.list[:0]
	for _, r := range s.list {
		if match(r) {
			gone = append(gone, r.id)
		} else {
			keep = append(keep, r)
		}
	}
	s.list = keep
	s.index()
	return gone
}

// holds tells whether a nexus is a persistent reservation holder (SPC-4, section 5.12.10).
func (s *prState) holds(id nexusID) bool {
	if s.kind == 0 {
		return false
	}
	if s.kind.allRegistrants() {
		_, ok := s.keys[id]
		return ok
	}
	return s.holder == id
}

// conflicts tells whether the reservation keeps a nexus from a command of that access (SPC-4, table 65).
func (s *prState) conflicts(id nexusID, a access) bool {
	if a == accessAny || s.holds(id) {
		return false
	}
	if s.kind.registrantsOnly() {
		if _, ok := s.keys[id]; ok {
			return false
		}
	}
	return a == accessWrite || s.kind.exclusive()
}

// reservations are a logical unit's persistent reservations.
type reservations struct {
	// active is the state while there is a reservation, else nil: what each command looks at.
	active atomic.Pointer[prState]

	mu         sync.Mutex // guards what follows, and the making of SPC-2 reservations
	state      *prState
	generation uint32 // PRGENERATION; 0 at power on
	keep       ReservationStore
}

// publish makes a state the current one. r.mu is held.
func (r *reservations) publish(s *prState) {
	r.state = s
	if s.kind == 0 {
		r.active.Store(nil)
	} else {
		r.active.Store(s)
	}
}

// Registration is one registered I_T nexus, for status displays.
type Registration struct {
	// Initiator is the initiator port's name, Port the relative target port identifier.
	Initiator string
	Port      uint16
	Key       uint64
	// Holder tells that the nexus holds the reservation, alone or with the other registrants.
	Holder bool
}

// ReservationStatus says who is registered with a logical unit and how it is reserved.
type ReservationStatus struct {
	Registrations []Registration
	// Type is 0 if there is no persistent reservation.
	Type ReservationType
	// Generation counts the changes of registrations since power on (PRGENERATION).
	Generation uint32
	// Persistent tells that all this outlives a restart (APTPL).
	Persistent bool
	// Legacy is the initiator port that holds a reservation by RESERVE(6) or (10); empty if there is none.
	Legacy string
}

// Reservations says who is registered with the logical unit and how it is reserved.
func (l *LU) Reservations() ReservationStatus {
	r := &l.persistent
	r.mu.Lock()
	defer r.mu.Unlock()
	s := ReservationStatus{Type: r.state.kind, Generation: r.generation, Persistent: r.state.aptpl}
	for _, reg := range r.state.list {
		s.Registrations = append(s.Registrations, Registration{
			Initiator: reg.id.initiator, Port: reg.id.port, Key: reg.key, Holder: r.state.holds(reg.id),
		})
	}
	if n := l.reservation.Load(); n != nil {
		s.Legacy = n.initiator
	}
	return s
}

// reserved ends the command with RESERVATION CONFLICT if a reservation of either kind keeps its nexus from it.
func (t *task) reserved(c *command) bool {
	l := t.lu
	if holder := l.reservation.Load(); holder != nil && holder != t.nexus && (c == nil || c.flags&despiteReservation == 0) {
		t.res.Status = StatusReservationConflict
		return true
	}
	s := l.persistent.active.Load()
	if s == nil || !s.conflicts(t.nexus.id(), accessOf(c, t.cdb)) {
		return false
	}
	t.res.Status = StatusReservationConflict
	return true
}

// reserve is RESERVE(6) and (10) of SPC-2 for the whole logical unit, which older hypervisors still ask for. The
// third-party and extent forms are long obsolete and refused.
//
// Where nexuses are registered for persistent reservations, a registered one gets GOOD without effect, and every other
// a conflict (SPC-4, section 5.12.3, with the CRH bit).
func (t *task) reserve() {
	r := &t.lu.persistent
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.state.list) > 0 {
		if _, ok := r.state.key(t.nexus.id()); !ok {
			t.res.Status = StatusReservationConflict
		}
		return
	}
	if t.nexus == nil || t.lu.reservation.CompareAndSwap(nil, t.nexus) || t.lu.reservation.Load() == t.nexus {
		return
	}
	t.res.Status = StatusReservationConflict
}

// release is RELEASE(6) and (10): GOOD, without effect if another nexus holds the reservation or none does. Persistent
// reservations are treated as by reserve.
func (t *task) release() {
	r := &t.lu.persistent
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.state.list) > 0 {
		if _, ok := r.state.key(t.nexus.id()); !ok {
			t.res.Status = StatusReservationConflict
		}
		return
	}
	if t.nexus != nil {
		t.lu.reservation.CompareAndSwap(t.nexus, nil)
	}
}
