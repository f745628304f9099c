package iscsi

import (
	"errors"
	"fmt"
	"strings"
)

// MaxNameLen is the longest iSCSI name in octets (RFC 7143, section 4.2.7.2).
const MaxNameLen = 223

// DiscoveryTarget is the name that stands for all targets of a node; RFC 7143 reserves it, some old initiators send it.
const DiscoveryTarget = "iqn.1992-08.com.cisco:discovery"

// ErrName: not an iSCSI name.
var ErrName = errors.New("iscsi: not an iSCSI name")

// NormalizeName checks an iSCSI name and returns the one form in which names are compared and kept: names do not
// distinguish case, and the stringprep profile of RFC 3722 folds to lower case. Every name that comes in, from a peer
// or a person, goes through here once, at the edge.
//
// The forms are iqn.yyyy-mm.reversed.domain[:string], eui. with 16 hexadecimal digits and naa. with 16 or 32
// (RFC 7143, section 4.2.7.3). Characters beyond ASCII are taken as they are if they have no case to fold. So is the
// underscore, which the profile forbids: hosts are named with it all the same, and other targets let them in.
func NormalizeName(name string) (string, error) {
	n := strings.ToLower(name)
	if max(len(n), len(name)) > MaxNameLen { // folding may lengthen a name beyond ASCII
		return "", fmt.Errorf("%w: %d octets, at most %d", ErrName, len(name), MaxNameLen)
	}
	bad := func(why string) (string, error) { return "", fmt.Errorf("%w: %q: %s", ErrName, name, why) }
	for _, r := range n {
		if r <= 0x2c || r == 0x2f || r >= 0x3b && r <= 0x60 && r != '_' || r >= 0x7b && r <= 0xa0 || r == 0xfffd {
			return bad(fmt.Sprintf("character %q", r))
		}
	}
	kind, rest, _ := strings.Cut(n, ".")
	switch kind {
	case "iqn":
		date, authority, _ := strings.Cut(rest, ".")
		if len(date) != 7 || date[4] != '-' || !digits(date[:4]) || !digits(date[5:]) || date[5:] < "01" || date[5:] > "12" {
			return bad("no date yyyy-mm after iqn.")
		}
		if domain, _, _ := strings.Cut(authority, ":"); domain == "" {
			return bad("no domain after the date")
		}
	case "eui":
		if len(rest) != 16 || !hexDigits(rest) {
			return bad("eui. wants 16 hexadecimal digits")
		}
	case "naa":
		if len(rest) != 16 && len(rest) != 32 || !hexDigits(rest) {
			return bad("naa. wants 16 or 32 hexadecimal digits")
		}
	default:
		return bad("begins with neither iqn. nor eui. nor naa.")
	}
	return n, nil
}

func digits(s string) bool { return strings.Trim(s, "0123456789") == "" }

func hexDigits(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }
