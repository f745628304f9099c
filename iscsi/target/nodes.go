package target

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// Errors of changes while a Server serves.
var (
	// ErrNoTarget: no target has that name.
	ErrNoTarget = errors.New("target: no such target")
	// ErrTargetTaken: a target has that name already.
	ErrTargetTaken = errors.New("target: target exists already")
	// ErrTargetRemoved ends the sessions of a target that is taken away.
	ErrTargetRemoved = errors.New("target: target removed")
	// ErrDrained ends sessions on request of an operator.
	ErrDrained = errors.New("target: session ended by the operator")
)

// node is a target node with its logical units' task sets.
type node struct {
	Target

	limit  int
	absent *unit // commands to LUNs that are not there

	access   atomic.Pointer[access]
	alias    atomic.Pointer[string]
	groups   atomic.Pointer[[]uint16]
	redirect atomic.Pointer[Redirect]
	draining atomic.Bool // no new sessions
	removed  atomic.Bool

	mu    sync.RWMutex // guards units
	units map[*scsi.LU]*unit
}

// checkTarget normalises and checks one target.
func checkTarget(t *Target) error {
	name, err := iscsi.NormalizeName(t.Name)
	switch {
	case err != nil:
		return fmt.Errorf("target: %w", err)
	case t.Device == nil:
		return fmt.Errorf("target: %s has no device", t.Name)
	}
	if err := checkAlias(t.Name, t.Alias); err != nil {
		return err
	}
	if err := t.Access.Check(); err != nil {
		return fmt.Errorf("%s: %w", t.Name, err)
	}
	if err := t.Redirect.Check(); err != nil {
		return fmt.Errorf("%s: %w", t.Name, err)
	}
	t.Name = name
	if t.PortalGroup == 0 {
		t.PortalGroup = 1
	}
	return nil
}

// newNode makes the node of a checked target.
func newNode(t Target, workers int) (*node, error) {
	n := &node{Target: t, limit: workers, absent: newUnit(workers), units: make(map[*scsi.LU]*unit)}
	a, err := t.Access.compile()
	if err != nil {
		return nil, err
	}
	n.access.Store(a)
	n.redirect.Store(t.Redirect)
	n.alias.Store(&t.Alias)
	n.groups.Store(&t.PortalGroups)
	return n, nil
}

// all are the targets served now.
func (s *Server) all() []*node { return *s.nodes.Load() }

// node finds a target by its normalised name; nil if there is none.
func (s *Server) node(name string) *node {
	for _, n := range s.all() {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// lookup finds a target by its name in any case. The error wraps ErrNoTarget.
func (s *Server) lookup(name string) (*node, error) {
	normal, err := iscsi.NormalizeName(name)
	if err == nil {
		if n := s.node(normal); n != nil {
			return n, nil
		}
	}
	return nil, fmt.Errorf("%w: %s", ErrNoTarget, name)
}

// AddTarget serves one more target from now on. Errors wrap ErrTargetTaken and ErrAccess, or are about t.
func (s *Server) AddTarget(t Target) error {
	if err := checkTarget(&t); err != nil {
		return err
	}
	n, err := newNode(t, s.live.Load().Workers)
	if err != nil {
		return err
	}
	t.Device.SetTaskAborter(preemptor{s, n})
	n.setPorts(*s.portals.Load())
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return ErrClosed
	case s.node(t.Name) != nil:
		return fmt.Errorf("%w: %s", ErrTargetTaken, t.Name)
	}
	n.setWorkers(s.live.Load().Workers) // Change has not seen it
	s.warnWeak(t.Name, n.access.Load())
	next := append(slices.Clone(s.all()), n)
	s.nodes.Store(&next)
	return nil
}

// RemoveTarget takes a target away: it is drained as Drain does, and further logins find no such target. It returns when the last
// command has ended, or ctx has. The caller closes the stores then. The error wraps ErrNoTarget, or ctx's.
func (s *Server) RemoveTarget(ctx context.Context, name string) error {
	n, err := s.lookup(name)
	if err != nil {
		return err
	}
	s.mu.Lock()
	next := slices.DeleteFunc(slices.Clone(s.all()), func(o *node) bool { return o == n })
	if len(next) == len(s.all()) {
		s.mu.Unlock()
		return fmt.Errorf("%w: %s", ErrNoTarget, name)
	}
	s.nodes.Store(&next)
	s.mu.Unlock()
	n.removed.Store(true)
	if err := s.drainNode(ctx, n, ErrTargetRemoved); err != nil {
		return err
	}
	for _, u := range n.all() {
		u.close()
	}
	return nil
}
