package iscsi

// Missing follows numbers that a peer counts up, DataSN and R2TSN of a task or StatSN of a connection, and knows which of them have been
// passed over: what a SNACK asks for (RFC 7143, section 11.16). Numbers wrap around. The zero value expects 0.
type Missing struct {
	next  SN
	holes []Run
}

// Run is a run of consecutive numbers, as a SNACK names it by BegRun and RunLength.
type Run struct {
	First SN
	Len   uint32
}

// maxHoles bounds what Missing remembers: a stream with more separate losses is not worth mending.
const maxHoles = 64

// Reset forgets all and expects next.
func (m *Missing) Reset(next SN) { m.next, m.holes = next, m.holes[:0] }

// Next is the number after the highest one known of.
func (m *Missing) Next() SN { return m.next }

// Oldest is the lowest number that has not arrived: a hole's, or Next.
func (m *Missing) Oldest() SN {
	if len(m.holes) > 0 {
		return m.holes[0].First
	}
	return m.next
}

// Whole tells that nothing is missing below Next.
func (m *Missing) Whole() bool { return len(m.holes) == 0 }

// Expect notes that the peer has sent everything below next. hole is what is known to be missing only now; its Len is 0 if nothing is. ok is
// false if there are too many holes, or next cannot be: more than 2^20 ahead.
func (m *Missing) Expect(next SN) (hole Run, ok bool) {
	if !m.next.Less(next) {
		return hole, true
	}
	hole = Run{m.next, uint32(next - m.next)}
	if hole.Len > 1<<20 || len(m.holes) == maxHoles {
		return hole, false
	}
	m.holes = append(m.holes, hole)
	m.next = next
	return hole, true
}

// Take notes the arrival of a number. fresh is false for one that has arrived before. hole is what its arrival shows to be missing, as Expect
// tells it; ok likewise.
func (m *Missing) Take(n SN) (fresh bool, hole Run, ok bool) {
	if n == m.next {
		m.next++
		return true, hole, true
	}
	if m.next.Less(n) {
		hole, ok = m.Expect(n)
		if ok {
			m.next++
		}
		return ok, hole, ok
	}
	for i := range m.holes {
		h := &m.holes[i]
		at := uint32(n - h.First)
		if at >= h.Len {
			continue
		}
		switch rest := h.Len - at - 1; {
		case h.Len == 1:
			m.holes = append(m.holes[:i], m.holes[i+1:]...)
		case at == 0:
			h.First, h.Len = h.First+1, rest
		case rest == 0:
			h.Len = at
		default:
			if len(m.holes) == maxHoles {
				return false, Run{}, false
			}
			h.Len = at
			m.holes = append(m.holes, Run{})
			copy(m.holes[i+2:], m.holes[i+1:])
			m.holes[i+1] = Run{n + 1, rest}
		}
		return true, Run{}, true
	}
	return false, Run{}, true
}
