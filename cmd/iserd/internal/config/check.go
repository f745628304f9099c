package config

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"goiwarp/iscsi"
)

// Systemd is what Portal.Listen begins with for sockets that systemd opened.
const Systemd = "systemd:"

// Check finds what cannot be, and normalises names. It opens nothing: a file that is missing is found when it is used.
func (c *Config) Check() Errors {
	var errs Errors
	fail := func(at Pos, format string, args ...any) {
		errs = append(errs, &Error{at, fmt.Sprintf(format, args...)})
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		fail(c.logPos, "log-level %q: want debug, info, warn or error", c.LogLevel)
	}
	if c.Metrics.Listen != "" {
		if err := address(c.Metrics.Listen, true); err != nil {
			fail(c.Metrics.Pos, "metrics: %v", err)
		}
	}
	if c.Limits.SessionMemory > c.Limits.Memory {
		fail(c.Limits.Pos, "limits: session-memory is more than memory in all")
	}
	if c.Limits.Memory < LeastMemory {
		fail(c.Limits.Pos, "limits: memory: want at least 32MiB")
	}
	if c.Limits.SessionMemory < 1<<20 {
		fail(c.Limits.Pos, "limits: session-memory: want at least 1MiB")
	}
	c.checkPortals(fail)
	c.Discovery.check(fail, nil)
	names := make(map[string]Pos)
	files := make(map[string]string)
	for i := range c.Targets {
		t := &c.Targets[i]
		if t.Name == "" {
			fail(t.Pos, "a target needs a name, such as iqn.2026-11.com.example:store1")
		} else if name, err := iscsi.NormalizeName(t.Name); err != nil {
			fail(t.Pos, "target name %q: %v", t.Name, err)
		} else {
			t.Name = name
			if at, twice := names[name]; twice {
				fail(t.Pos, "target %s is there twice (before: %s)", name, strings.TrimSuffix(at.String(), ": "))
			}
			names[name] = t.Pos
		}
		c.checkTarget(t, files, fail)
	}
	return errs
}

type failer = func(at Pos, format string, args ...any)

func (c *Config) checkPortals(fail failer) {
	seen := make(map[string]bool)
	for i := range c.Portals {
		p := &c.Portals[i]
		name, fromSystemd := strings.CutPrefix(p.Listen, Systemd)
		switch {
		case p.Listen == "":
			fail(p.Pos, "a portal needs an address to listen on, such as listen = \"192.0.2.10:3260\"")
			continue
		case fromSystemd && p.RDMA:
			fail(p.Pos, "%s: an RDMA device takes no socket from systemd", p.Listen)
		case fromSystemd && strings.ContainsAny(name, " :/"):
			fail(p.Pos, "%s: want systemd:NAME, the FileDescriptorName= of the socket unit", p.Listen)
		case !fromSystemd:
			if err := address(p.Listen, true); err != nil {
				fail(p.Pos, "%v", err)
			}
		}
		_, port, _ := net.SplitHostPort(p.Listen)
		key := fmt.Sprint(p.Listen, p.RDMA)
		if seen[key] && port != "0" {
			fail(p.Pos, "%s is listened on twice", p.Listen)
		}
		seen[key] = true
		if p.Advertise != "" {
			if err := address(p.Advertise, false); err != nil {
				fail(p.Pos, "advertise: %v", err)
			}
		}
	}
}

// address checks an address:port. One to listen on may have no host, and port 0.
func address(s string, listen bool) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" && !listen {
		return fmt.Errorf("%q: want ADDRESS:PORT, with an IPv6 address in brackets", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); !listen && (err != nil || n == 0) {
		return fmt.Errorf("%q: the port is a number from 1 to 65535", s)
	}
	return nil
}

func (c *Config) checkTarget(t *Target, files map[string]string, fail failer) {
	if len(t.Alias) > iscsi.MaxValueLen || strings.ContainsRune(t.Alias, 0) {
		fail(t.Pos, "the alias of %s is longer than %d octets, or has a zero octet", t.Name, iscsi.MaxValueLen)
	}
	for _, g := range append(slices.Clone(t.Groups), t.Redirect.Groups...) {
		if !slices.ContainsFunc(c.Portals, func(p Portal) bool { return max(p.Group, 1) == g }) {
			fail(t.Pos, "target %s: no portal has the group %d", t.Name, g)
		}
	}
	named := make(map[int]bool)
	for _, s := range t.States {
		switch {
		case !slices.ContainsFunc(c.Portals, func(p Portal) bool { return max(p.Group, 1) == s.Group }) && (len(c.Portals) > 0 || s.Group != 1):
			fail(s.Pos, "alua: no portal has the group %d", s.Group)
		case len(t.Groups) > 0 && !slices.Contains(t.Groups, s.Group):
			fail(s.Pos, "alua: target %s is not reached through group %d", t.Name, s.Group)
		case named[s.Group]:
			fail(s.Pos, "alua: group %d is there twice", s.Group)
		}
		named[s.Group] = true
	}
	if r := &t.Redirect; r.Address != "" {
		if err := address(r.Address, false); err != nil {
			fail(r.Pos, "redirect: %v", err)
		}
	}
	seen := make(map[int]bool)
	for i := range t.LUNs {
		l := &t.LUNs[i]
		if seen[l.Number] {
			fail(l.Pos, "LUN %d is there twice", l.Number)
		}
		seen[l.Number] = true
		spec, _, err := l.Parse()
		if err != nil {
			fail(l.Pos, "%v", err)
			continue
		}
		if spec.Kind != "file" {
			continue
		}
		path, err := filepath.Abs(spec.Path)
		if err != nil {
			path = spec.Path
		}
		if other, twice := files[path]; twice && !(spec.ReadOnly && strings.HasSuffix(other, " ro")) {
			fail(l.Pos, "%s: the same file is named twice", l.Spec())
		}
		files[path] = t.Name
		if spec.ReadOnly {
			files[path] += " ro"
		}
	}
	t.Access.check(fail, seen)
}

// check checks an access list; luns are those of the target, nil for none at all.
func (a *Access) check(fail failer, luns map[int]bool) {
	for _, name := range a.Algorithms {
		if _, err := iscsi.ParseCHAPAlgorithm(name); err != nil {
			fail(a.Pos, "chap-algorithms: %v", err)
		}
	}
	for i := range a.Rules {
		r := &a.Rules[i]
		for _, n := range r.Networks {
			if _, err := ParseNetwork(n); err != nil {
				fail(r.Pos, "networks: %v", err)
			}
		}
		for _, n := range r.Initiators {
			if _, err := iscsi.NormalizeName(n); err != nil && !strings.ContainsAny(n, "*?") {
				fail(r.Pos, "initiators: %q: %v", n, err)
			}
		}
		if r.MutualCHAP != "" && r.CHAP == "" {
			fail(r.Pos, "mutual-chap needs chap: the target proves itself to users alone")
		}
		if luns == nil && (r.LUNs != nil || r.ReadOnly) {
			fail(r.Pos, "discovery shows no LUNs: luns and read-only belong to a target's rules")
			continue
		}
		shown := make(map[int]bool)
		for _, m := range r.LUNs {
			if !luns[m.LUN] {
				fail(r.Pos, "luns: the target has no LUN %d", m.LUN)
			}
			if shown[m.As] {
				fail(r.Pos, "luns: LUN %d is shown twice", m.As)
			}
			shown[m.As] = true
		}
	}
}

// ParseNetwork reads a network, or an address as a network of one.
func ParseNetwork(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("%q: want an address or a network, as 192.0.2.0/24 or 2001:db8::/32", s)
	}
	if p != p.Masked() {
		return p, fmt.Errorf("%s: bits are set behind the prefix; did you mean %s?", s, p.Masked())
	}
	return p, nil
}
