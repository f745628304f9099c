package initiator

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"goiwarp/iscsi"
)

// DefaultPort is iSCSI's registered TCP port.
const DefaultPort = 3260

// URL names a target, and mostly one of its logical units, as libiscsi writes it:
//
//	iscsi://HOST[:PORT]/TARGET-NAME[/LUN]     plain iSCSI over TCP
//	iser://HOST[:PORT]/TARGET-NAME[/LUN]      iSER
//
// HOST is a name, an IPv4 address, or an IPv6 address in brackets, a zone included.
type URL struct {
	Transport string // "iscsi" or "iser"
	Portal    Portal
	Target    string // iSCSI name
	// LUN is the logical unit's number; HasLUN tells whether the URL names one.
	LUN    uint16
	HasLUN bool
}

// Portal is a host and a TCP port.
type Portal struct {
	Host string // without brackets
	Port int
}

// String is the form in which portals are always printed: an IPv6 address in brackets.
func (p Portal) String() string { return net.JoinHostPort(p.Host, strconv.Itoa(p.Port)) }

// ParsePortal reads HOST, HOST:PORT, an IPv6 address bare, or in brackets with or without a port.
// The port defaults to DefaultPort.
func ParsePortal(s string) (Portal, error) {
	host, port, hasPort := s, "", false
	switch {
	case strings.HasPrefix(s, "["):
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return Portal{}, fmt.Errorf("portal %q: the bracket is not closed", s)
		}
		host = s[1:end]
		if rest := s[end+1:]; rest != "" {
			if port, hasPort = strings.CutPrefix(rest, ":"); !hasPort {
				return Portal{}, fmt.Errorf("portal %q: only a port may follow the bracket", s)
			}
		}
		if !strings.Contains(host, ":") {
			return Portal{}, fmt.Errorf("portal %q: brackets are for IPv6 addresses", s)
		}
	case strings.Count(s, ":") == 1:
		host, port, hasPort = strings.Cut(s, ":")
	}
	if host == "" || strings.ContainsAny(host, "[]/ \t\n@") {
		return Portal{}, fmt.Errorf("portal %q: want HOST or HOST:PORT", s)
	}
	p := Portal{Host: host, Port: DefaultPort}
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return Portal{}, fmt.Errorf("portal %q: port %q is not a number from 1 to 65535", s, port)
		}
		p.Port = int(n)
	}
	return p, nil
}

// IsURL says whether s begins like a URL of this package, so that it is no file name.
func IsURL(s string) bool {
	return strings.HasPrefix(s, "iser://") || strings.HasPrefix(s, "iscsi://")
}

// ParseURL reads a URL. Its errors say in one line what is wrong.
func ParseURL(s string) (URL, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok || !IsURL(s) {
		return URL{}, fmt.Errorf("%q is not a URL: want iser://HOST[:PORT]/TARGET/LUN or iscsi://…", s)
	}
	host, path, ok := strings.Cut(rest, "/")
	if !ok || path == "" {
		return URL{}, fmt.Errorf("%q names no target: want %s://HOST[:PORT]/TARGET/LUN", s, scheme)
	}
	if strings.Contains(host, "@") {
		// Not echoed: it may hold a secret.
		return URL{}, fmt.Errorf("%s URL: a user and a secret do not belong into a URL, which the list of processes shows to everybody; give them apart (iser: --chap-user and --chap-secret-file)", scheme)
	}
	portal, err := ParsePortal(host)
	if err != nil {
		return URL{}, err
	}
	u := URL{Transport: scheme, Portal: portal}
	name, lun, hasLUN := strings.Cut(strings.TrimSuffix(path, "/"), "/")
	if u.Target, err = iscsi.NormalizeName(name); err != nil {
		return URL{}, fmt.Errorf("%q: target name %q: %w", s, name, err)
	}
	if hasLUN {
		n, err := strconv.ParseUint(lun, 10, 16)
		if err != nil || n > 16383 {
			return URL{}, fmt.Errorf("%q: LUN %q is not a number from 0 to 16383", s, lun)
		}
		u.LUN, u.HasLUN = uint16(n), true
	}
	return u, nil
}

// String is the URL in its full form.
func (u URL) String() string {
	s := u.Transport + "://" + u.Portal.String() + "/" + u.Target
	if u.HasLUN {
		s += "/" + strconv.Itoa(int(u.LUN))
	}
	return s
}
