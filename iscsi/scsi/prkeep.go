package scsi

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// ReservationStore keeps one logical unit's persistent reservations over a restart.
type ReservationStore = StateStore

// StateStore keeps a piece of a logical unit's state over a restart. Its methods are not called at the same time. store.StateFile is one.
type StateStore interface {
	// Load gives what was saved last; nothing if that was nothing.
	Load() ([]byte, error)
	// Save returns once state is on stable storage in the place of what was saved before, all of it or none. No state
	// means that nothing is to be kept.
	Save(state []byte) error
}

// errNotKept refuses APTPL where there is nothing to keep it.
var errNotKept = errors.New("scsi: there is no place to keep reservations in")

// kept is the state as it is saved.
type kept struct {
	Version       int                `json:"version"`
	Registrations []keptRegistration `json:"registrations"`
	Type          byte               `json:"type,omitempty"`
	// Holder is the index of the registration that holds the reservation, unless all do.
	Holder *int `json:"holder,omitempty"`
}

type keptRegistration struct {
	Initiator string `json:"initiator"`
	Port      uint16 `json:"port"`
	Key       string `json:"key"` // hexadecimal: JSON's numbers do not hold 64 bits
}

const keptVersion = 1

// encode writes a state; nil if nothing has to be kept.
func (s *prState) encode() ([]byte, error) {
	if !s.aptpl || len(s.list) == 0 {
		return nil, nil
	}
	k := kept{Version: keptVersion, Type: byte(s.kind)}
	for i, r := range s.list {
		k.Registrations = append(k.Registrations, keptRegistration{r.id.initiator, r.id.port, fmt.Sprintf("%#016x", r.key)})
		if s.kind != 0 && !s.kind.allRegistrants() && r.id == s.holder {
			k.Holder = &i
		}
	}
	return json.MarshalIndent(k, "", "  ")
}

// decodeKept reads a state that encode wrote.
func decodeKept(data []byte) (*prState, error) {
	s := &prState{}
	s.index()
	if len(data) == 0 {
		return s, nil
	}
	var k kept
	if err := json.Unmarshal(data, &k); err != nil {
		return nil, err
	}
	switch {
	case k.Version != keptVersion:
		return nil, fmt.Errorf("version %d, not %d", k.Version, keptVersion)
	case len(k.Registrations) == 0 || len(k.Registrations) > maxRegistrations:
		return nil, fmt.Errorf("%d registrations", len(k.Registrations))
	}
	for _, r := range k.Registrations {
		key, err := strconv.ParseUint(r.Key, 0, 64)
		if err != nil {
			return nil, fmt.Errorf("key %q", r.Key)
		}
		id := nexusID{r.Initiator, r.Port}
		if _, twice := s.key(id); twice || key == 0 {
			return nil, fmt.Errorf("registration of %q with key %q", r.Initiator, r.Key)
		}
		s.set(id, key)
	}
	s.aptpl, s.kind = true, ReservationType(k.Type)
	switch {
	case s.kind == 0:
	case !s.kind.valid():
		return nil, fmt.Errorf("reservation type %d", k.Type)
	case s.kind.allRegistrants():
	case k.Holder == nil || *k.Holder < 0 || *k.Holder >= len(s.list):
		return nil, errors.New("a reservation without its holder")
	default:
		s.holder = s.list[*k.Holder].id
	}
	return s, nil
}

// load takes over what was kept. Reservations that cannot be read are an error: to go on without them would let those in
// that they keep out.
func (r *reservations) load(keep ReservationStore) error {
	r.keep = keep
	var data []byte
	var err error
	if keep != nil {
		if data, err = keep.Load(); err != nil {
			return fmt.Errorf("persistent reservations: %w", err)
		}
	}
	s, err := decodeKept(data)
	if err != nil {
		return fmt.Errorf("persistent reservations: not what was saved (remove the file to start without any): %w", err)
	}
	r.publish(s)
	return nil
}

// store saves a state as far as it has to outlive a restart, and makes it the current one. r.mu is held.
func (r *reservations) store(s *prState) error {
	if s.aptpl && r.keep == nil {
		return errNotKept
	}
	if s.aptpl || r.state.aptpl {
		data, err := s.encode()
		if err != nil {
			return err
		}
		if err := r.keep.Save(data); err != nil {
			return err
		}
	}
	if len(s.list) == 0 {
		s.aptpl = false
	}
	r.publish(s)
	return nil
}
