package target

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// Access says who may log in to a target, how they prove who they are, and what they see of it. For Config.Discovery it says
// who may ask for targets at all.
//
// Rules are looked at in order, and the first whose initiators and networks fit decides: an initiator that fits no rule is refused with
// status 0202 and does not find the target in SendTargets. A nil *Access lets everybody do everything.
type Access struct {
	// Rules in order of precedence. None: nobody.
	Rules []AccessRule
	// Algorithms are the CHAP algorithms taken; the initiator's order decides among them. Empty: all.
	Algorithms []iscsi.CHAPAlgorithm
	// Hidden answers an initiator that fits no rule with status 0203, as if there were no such target, so that names of targets cannot be
	// found by trying. Otherwise it is told 0202, which helps who looks for a mistake (RFC 7143, section 11.13.5). Not for discovery.
	Hidden bool
}

// AccessRule is one entry of an access list.
type AccessRule struct {
	// Name is for logs and people.
	Name string
	// Initiators are iSCSI names, or patterns of them in which * stands for any octets and ? for one; case does not
	// matter. Empty: any.
	Initiators []string
	// Networks are the addresses that the initiator may come from. Empty: any. IPv4 addresses are IPv4 however they were written.
	Networks []netip.Prefix
	// Users are those of whom the initiator has to be one, proven by CHAP. Empty: no authentication.
	Users []iscsi.Credentials
	// Mutual is what the target proves itself with when the initiator asks for it. Its secret must be none of the Users'. The zero
	// value: a request for mutual authentication fails.
	Mutual iscsi.Credentials
	// LUNs are the logical units shown, and as which numbers. nil: all of them under their own numbers; empty: none.
	LUNs []LUNMapping
	// ReadOnly refuses all writes.
	ReadOnly bool
}

// LUNMapping shows one logical unit.
type LUNMapping struct {
	LUN      int  // number that the initiator sees
	Device   int  // number in Target.Device
	ReadOnly bool // writes are refused
}

// ErrAccess: an access list that cannot be.
var ErrAccess = errors.New("target: impossible access list")

// ErrAccessLost ends a session whose initiator is no longer let in.
var ErrAccessLost = errors.New("target: access withdrawn")

// Check tells what is wrong with a, in one line. Errors wrap ErrAccess.
func (a *Access) Check() error {
	_, err := a.compile()
	return err
}

// access is an Access made ready to be asked. nil is no restriction.
type access struct {
	rules      []rule
	algorithms []iscsi.CHAPAlgorithm
	hidden     bool
}

type rule struct {
	AccessRule
	exact    map[string]struct{}
	patterns []string
	view     *scsi.View
}

// compile checks a and normalises its names.
func (a *Access) compile() (*access, error) {
	if a == nil {
		return nil, nil
	}
	c := &access{algorithms: a.Algorithms, hidden: a.Hidden}
	for i := range a.Rules {
		r, err := a.Rules[i].compile()
		if err == nil {
			err = r.checkCHAP(a.Algorithms)
		}
		if err != nil {
			name := r.Name
			if name == "" {
				name = fmt.Sprint(i + 1)
			}
			return nil, fmt.Errorf("%w: rule %s: %w", ErrAccess, name, err)
		}
		c.rules = append(c.rules, r)
	}
	return c, nil
}

func (ar AccessRule) compile() (rule, error) {
	r := rule{AccessRule: ar}
	for _, name := range ar.Initiators {
		if !strings.ContainsAny(name, "*?") {
			n, err := iscsi.NormalizeName(name)
			if err != nil {
				return r, err
			}
			if r.exact == nil {
				r.exact = make(map[string]struct{})
			}
			if _, twice := r.exact[n]; twice {
				return r, fmt.Errorf("initiator %s is there twice", name)
			}
			r.exact[n] = struct{}{}
			continue
		}
		p := strings.ToLower(name)
		if bad := strings.IndexFunc(p, func(c rune) bool {
			return c <= ' ' || c == ',' || c == '/' || strings.ContainsRune("[]{}\\\"'=", c)
		}); bad >= 0 || len(p) > iscsi.MaxNameLen {
			return r, fmt.Errorf("initiator pattern %q: want an iSCSI name with * and ? in it", name)
		}
		r.patterns = append(r.patterns, p)
	}
	for i, p := range ar.Networks {
		if !p.IsValid() {
			return r, fmt.Errorf("network %d is no address with a prefix length", i+1)
		}
	}
	if ar.LUNs == nil && !ar.ReadOnly {
		return r, nil
	}
	var luns map[int]scsi.Mapping
	if ar.LUNs != nil {
		luns = make(map[int]scsi.Mapping, len(ar.LUNs))
		for _, m := range ar.LUNs {
			if _, twice := luns[m.LUN]; twice {
				return r, fmt.Errorf("LUN %d is mapped twice", m.LUN)
			}
			luns[m.LUN] = scsi.Mapping{Number: m.Device, ReadOnly: m.ReadOnly}
		}
	}
	var err error
	r.view, err = scsi.NewView(luns, ar.ReadOnly)
	return r, err
}

// checkCHAP has the handshake's own rules look at the credentials.
func (r *rule) checkCHAP(algorithms []iscsi.CHAPAlgorithm) error {
	if len(r.Users) == 0 {
		if !r.Mutual.IsZero() {
			return errors.New("mutual authentication without users")
		}
		return nil
	}
	_, err := iscsi.NewCHAPTarget(r.chap(algorithms))
	return err
}

func (r *rule) chap(algorithms []iscsi.CHAPAlgorithm) iscsi.CHAPTargetConfig {
	return iscsi.CHAPTargetConfig{Users: r.Users, Mutual: r.Mutual, Algorithms: algorithms}
}

// hasUser tells that a user may log in under the rule; "" is nobody, who may if none are demanded.
func (r *rule) hasUser(user string) bool {
	if len(r.Users) == 0 {
		return true
	}
	for _, u := range r.Users {
		if u.User == user {
			return true
		}
	}
	return false
}

// fits tells that the rule is about an initiator, whose name is normalised.
func (r *rule) fits(initiator string, from netip.Addr) bool {
	named := len(r.Initiators) == 0
	if !named {
		_, named = r.exact[initiator]
	}
	for i := 0; !named && i < len(r.patterns); i++ {
		named = matches(r.patterns[i], initiator)
	}
	if !named || len(r.Networks) == 0 {
		return named
	}
	from = from.Unmap().WithZone("")
	for _, p := range r.Networks {
		if p.Contains(from) || p.Addr().Is4In6() && p.Bits() >= 96 && netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96).Contains(from) {
			return true
		}
	}
	return false
}

// everybody is the rule where there is no access list.
var everybody = &rule{}

// find is the rule for an initiator, nil if it may not enter.
func (a *access) find(initiator string, from netip.Addr) *rule {
	if a == nil {
		return everybody
	}
	for i := range a.rules {
		if r := &a.rules[i]; r.fits(initiator, from) {
			return r
		}
	}
	return nil
}

// matches tells that s has the form of pattern, where * is any octets and ? one. Its time is bounded by the product of the lengths.
func matches(pattern, s string) bool {
	star, mark := -1, 0
	p, i := 0, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, i
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == s[i]):
			p++
			i++
		case star >= 0:
			mark++
			p, i = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// addrOf is the IP address in a; the zero value, which is in no network, if it has none.
func addrOf(a net.Addr) netip.Addr {
	if a == nil {
		return netip.Addr{}
	}
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap()
	}
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap()
}

// SetAccess replaces a target's access list, nil for none, while the server serves. It holds for every login from now on. Sessions
// that it no longer lets in (their initiator, their address or the user that they logged in as) are dropped; where only what they see
// has changed they are told; all others are left alone. Errors wrap ErrAccess or ErrNoTarget and change nothing.
func (s *Server) SetAccess(target string, a *Access) error {
	c, err := a.compile()
	if err != nil {
		return err
	}
	n, err := s.lookup(target)
	if err != nil {
		return err
	}
	s.warnWeak(n.Name, c)
	n.access.Store(c)
	for _, conn := range s.connections(n) {
		conn.reviewAccess()
	}
	return nil
}

// SetDiscovery replaces the access list for discovery, as SetAccess does for a target.
func (s *Server) SetDiscovery(a *Access) error {
	c, err := a.compile()
	if err != nil {
		return err
	}
	s.warnWeak("discovery", c)
	s.discovery.Store(c)
	for _, conn := range s.connections(nil) {
		conn.reviewAccess()
	}
	return nil
}
