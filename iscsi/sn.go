package iscsi

// SN is a serial number, CmdSN or StatSN, that wraps around: comparisons follow the serial number
// arithmetic of RFC 1982 with 32 bits (RFC 7143, section 4.2.2).
type SN uint32

// Less tells that s comes before t. Of two numbers exactly 2^31 apart neither does, as RFC 1982 leaves that open.
func (s SN) Less(t SN) bool { d := t - s; return d != 0 && d < 1<<31 }

// LessEqual tells that s is t or comes before it.
func (s SN) LessEqual(t SN) bool { return s == t || s.Less(t) }

// In tells that s lies in the window from first to last, both included. The window of a last just
// before first is empty.
func (s SN) In(first, last SN) bool {
	return last+1 != first && first.LessEqual(s) && s.LessEqual(last)
}
