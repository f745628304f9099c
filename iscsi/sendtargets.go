package iscsi

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Values of SendTargets (RFC 7143, appendix C).
const (
	SendTargetsAll     = "All" // every target; only in discovery sessions
	SendTargetsSession = ""    // the target of this session
)

// DefaultPort is iSCSI's registered TCP port.
const DefaultPort = "3260"

// Portal is one address of a target.
type Portal struct {
	// Addr is host:port, with an IPv6 address in brackets.
	Addr string
	// Group is the portal group tag; HasGroup tells that it was given (redirections leave it out).
	Group    uint16
	HasGroup bool
}

// String is the portal as a value of TargetAddress.
func (p Portal) String() string {
	if p.HasGroup {
		return p.Addr + "," + strconv.Itoa(int(p.Group))
	}
	return p.Addr
}

// ParsePortal reads a value of TargetAddress: host[:port][,tag] (RFC 7143, section 13.8). A missing port becomes 3260.
// Errors wrap ErrText.
func ParsePortal(v string) (Portal, error) {
	var p Portal
	addr, tag, tagged := strings.Cut(v, ",")
	if tagged {
		n, err := strconv.ParseUint(tag, 10, 16)
		if err != nil {
			return p, fmt.Errorf("%w: portal group tag %.20q", ErrText, tag)
		}
		p.Group, p.HasGroup = uint16(n), true
	}
	host, port := addr, DefaultPort
	if h, q, err := net.SplitHostPort(addr); err == nil {
		host, port = h, q
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
		if strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return p, fmt.Errorf("%w: address %.80q", ErrText, addr)
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" || strings.ContainsAny(host, "[]/ ") {
		return p, fmt.Errorf("%w: address %.80q", ErrText, addr)
	}
	p.Addr = net.JoinHostPort(host, port)
	return p, nil
}

// TargetInfo is one target as discovery tells it.
type TargetInfo struct {
	Name    string // normalised
	Alias   string
	Portals []Portal
}

// AppendTargets appends the answer to SendTargets: each target's name, followed by its addresses.
func AppendTargets(t Text, targets []TargetInfo) Text {
	for _, ti := range targets {
		t.Add(KeyTargetName, ti.Name)
		if ti.Alias != "" {
			t.Add(KeyTargetAlias, ti.Alias)
		}
		for _, p := range ti.Portals {
			t.Add(KeyTargetAddress, p.String())
		}
	}
	return t
}

// ParseTargets reads the answer to SendTargets. A target without addresses is reached at the portal that was asked. An address
// that does not parse is passed over, as one bad portal should not hide the others; errors (wrapping ErrText or ErrName) are for text
// that is no answer at all.
func ParseTargets(t Text) ([]TargetInfo, error) {
	var all []TargetInfo
	for _, kv := range t {
		if kv.Key == KeyTargetName {
			name, err := NormalizeName(kv.Value)
			if err != nil {
				return nil, err
			}
			all = append(all, TargetInfo{Name: name})
			continue
		}
		if len(all) == 0 {
			if kv.Key == KeySendTargets {
				return nil, fmt.Errorf("%w: SendTargets answered by %.40q", ErrText, kv.Value)
			}
			continue
		}
		last := &all[len(all)-1]
		switch kv.Key {
		case KeyTargetAlias:
			last.Alias = kv.Value
		case KeyTargetAddress:
			if p, err := ParsePortal(kv.Value); err == nil {
				last.Portals = append(last.Portals, p)
			}
		}
	}
	return all, nil
}
