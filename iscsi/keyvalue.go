package iscsi

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Limits of text (RFC 7143, section 6.1). All are in octets.
const (
	MaxKeyLen   = 63
	MaxValueLen = 255
	// MaxBinaryLen is the longest binary value that any key of RFC 7143 takes (CHAP_C, CHAP_R; section 12.1.3).
	MaxBinaryLen = 1024
	// MaxTextLen is the longest text that is taken from a peer in one login, all its PDUs together, and in one answer to
	// a Text Request other than SendTargets. The RFC asks for 8192, for long authentication items 64 KiB.
	MaxTextLen = 64 << 10
)

// ErrText: text that is not a sequence of key=value pairs, or beyond the limits.
var ErrText = errors.New("iscsi: malformed text")

// Special values of keys (RFC 7143, section 6.2).
const (
	NotUnderstood = "NotUnderstood"
	Irrelevant    = "Irrelevant"
	Rejected      = "Reject"
	None          = "None"
	Yes           = "Yes"
	No            = "No"
)

// KeyValue is one pair of text.
type KeyValue struct{ Key, Value string }

// Text is what the data segments of login and text PDUs carry: pairs, each ended by a zero octet.
//
//	Key=Value\0Key=Value\0 ...
type Text []KeyValue

// Get is the first value of key.
func (t Text) Get(key string) (value string, ok bool) {
	for _, kv := range t {
		if kv.Key == key {
			return kv.Value, true
		}
	}
	return "", false
}

// Add appends a pair.
func (t *Text) Add(key, value string) { *t = append(*t, KeyValue{key, value}) }

// Duplicate is the first key that occurs twice, "" if there is none. (Of all text only SendTargets' answers may repeat keys.)
func (t Text) Duplicate() string {
	seen := make(map[string]struct{}, len(t))
	for _, kv := range t {
		if _, ok := seen[kv.Key]; ok {
			return kv.Key
		}
		seen[kv.Key] = struct{}{}
	}
	return ""
}

// Append appends t as it stands on the wire.
func (t Text) Append(dst []byte) []byte {
	for _, kv := range t {
		dst = append(dst, kv.Key...)
		dst = append(dst, '=')
		dst = append(dst, kv.Value...)
		dst = append(dst, 0)
	}
	return dst
}

// ParseText takes text apart. Pairs keep their order; keys may repeat (Duplicate tells). Zero octets beyond those
// that end pairs are skipped, since some peers count padding in. Errors wrap ErrText.
func ParseText(b []byte) (Text, error) {
	var t Text
	for s := string(b); s != ""; {
		pair, rest, ended := strings.Cut(s, "\x00")
		if !ended {
			return t, fmt.Errorf("%w: %.80q has no end", ErrText, pair)
		}
		s = rest
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok:
			return t, fmt.Errorf("%w: %.80q has no =", ErrText, pair)
		case !validKey(key):
			return t, fmt.Errorf("%w: key %.80q", ErrText, key)
		case len(value) > valueLimit(key):
			return t, fmt.Errorf("%w: value of %s has %d octets, limit %d", ErrText, key, len(value), valueLimit(key))
		}
		t = append(t, KeyValue{key, value})
	}
	return t, nil
}

// validKey tells that s is a key-name: a standard-label, or one with the X# of RFC 3720's public extension keys. The RFCs want
// a capital letter first and then name keys iSCSIProtocolLevel and iSERHelloRequired: any letter will do.
func validKey(s string) bool {
	if s == "" || len(s) > MaxKeyLen || s[0]|0x20 < 'a' || s[0]|0x20 > 'z' {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case strings.IndexByte(".-+@_#", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// valueLimit is how long an encoded value of key may be. The limit of 255 is on the value, not on its
// encoding: binary values take two octets for one, behind a prefix.
func valueLimit(key string) int {
	switch key {
	case "TargetAddress": // a domain name or address of up to 255 octets, port and tag
		return MaxValueLen + len("[]:65535,65535")
	}
	if isAuthKey(key) { // tokens of SRP and Kerberos; what CHAP takes of it is for CHAP to say
		return 2 + 2*8192
	}
	return MaxValueLen
}

// isAuthKey tells that key belongs to an authentication method's exchange (RFC 7143, section 12.1).
func isAuthKey(key string) bool {
	return strings.HasPrefix(key, "CHAP_") || strings.HasPrefix(key, "SRP_") || strings.HasPrefix(key, "KRB_")
}

// ParseNumber reads a numerical-value: decimal, or hexadecimal after 0x. Errors wrap ErrText.
func ParseNumber(s string) (uint64, error) {
	digits, base := s, 10
	if len(s) > 2 && (s[:2] == "0x" || s[:2] == "0X") {
		digits, base = s[2:], 16
	}
	n, err := strconv.ParseUint(digits, base, 64)
	if err != nil || digits[0] == '+' {
		return 0, fmt.Errorf("%w: number %.40q", ErrText, s)
	}
	return n, nil
}

// ParseBinary reads a binary-value of at most limit octets: hexadecimal after 0x or base64 after 0b. An odd
// number of hexadecimal digits has a zero before it. Errors wrap ErrText and never show the value, which may be a secret's proof.
func ParseBinary(s string, limit int) ([]byte, error) {
	if len(s) < 3 {
		return nil, fmt.Errorf("%w: binary value of %d octets", ErrText, len(s))
	}
	body := s[2:]
	if len(body) > 2*limit+4 {
		return nil, fmt.Errorf("%w: binary value longer than %d octets", ErrText, limit)
	}
	var b []byte
	var err error
	switch s[:2] {
	case "0x", "0X":
		if len(body)%2 == 1 {
			body = "0" + body
		}
		b, err = hex.DecodeString(body)
	case "0b", "0B":
		b, err = base64.StdEncoding.Strict().DecodeString(body)
		if strings.ContainsAny(body, "\r\n") { // the decoder skips them
			err = ErrText
		}
	default:
		err = ErrText
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: not a binary value", ErrText)
	case len(b) > limit:
		return nil, fmt.Errorf("%w: binary value longer than %d octets", ErrText, limit)
	}
	return b, nil
}

// FormatBinary writes a binary-value in hexadecimal, which every peer reads.
func FormatBinary(b []byte) string { return "0x" + hex.EncodeToString(b) }

// TextCollector puts together the text of PDUs that are joined by their C bits (RFC 7143, section 6.1).
// The zero value takes MaxTextLen octets.
type TextCollector struct {
	// Limit bounds the octets of one text; 0 means MaxTextLen.
	Limit int
	buf   []byte
}

// Add takes one PDU's data segment; more is the PDU's C bit. With the last one it returns the whole text and done. Errors wrap ErrText.
func (c *TextCollector) Add(data []byte, more bool) (t Text, done bool, err error) {
	limit := c.Limit
	if limit == 0 {
		limit = MaxTextLen
	}
	if len(c.buf)+len(data) > limit {
		return nil, false, fmt.Errorf("%w: more than %d octets", ErrText, limit)
	}
	if more {
		c.buf = append(c.buf, data...)
		return nil, false, nil
	}
	if len(c.buf) > 0 {
		data = append(c.buf, data...)
		c.buf = nil
	}
	t, err = ParseText(data)
	return t, true, err
}

// Pending tells that a text is under way: the last PDU had C set.
func (c *TextCollector) Pending() bool { return len(c.buf) > 0 }

// TextSplitter cuts text into data segments for PDUs joined by their C bits.
type TextSplitter struct{ buf []byte }

// Load puts t behind what is still to be sent.
func (s *TextSplitter) Load(t Text) { s.buf = t.Append(s.buf) }

// Next is the data segment of the next PDU, at most limit octets; more is that PDU's C bit.
func (s *TextSplitter) Next(limit int) (data []byte, more bool) {
	n := min(limit, len(s.buf))
	data, s.buf = s.buf[:n:n], s.buf[n:]
	return data, len(s.buf) > 0
}

// Len is how many octets are still to be sent.
func (s *TextSplitter) Len() int { return len(s.buf) }
