package ddp

// maxGaps bounds how many pieces a message may be in while segments are missing between them.
const maxGaps = 8

// Cover keeps account of which octets of one message have been placed. Segments usually come
// in order, and then it is one number; any order is taken (RFC 5041, section 5.3) as long as there are no
// more than maxGaps pieces at once. The zero value is an empty message.
type Cover struct {
	next   uint64 // octets [0, next) are there
	n      uint8  // pieces beyond
	length uint64 // of the message, once its last segment has come
	last   bool
	pieces [maxGaps]piece
}

type piece struct{ from, to uint64 }

// Next is the offset that the next segment has if segments come in order.
func (c *Cover) Next() uint64 { return c.next }

// Add accounts for the octets [from, to), which end the message if last is set. It is false when
// the segments contradict each other, or lie in too many pieces.
func (c *Cover) Add(from, to uint64, last bool) bool {
	switch {
	case last && c.last && to != c.length:
		return false
	case last:
		c.last, c.length = true, to
		for i := range c.pieces[:c.n] {
			if c.pieces[i].to > to {
				return false
			}
		}
		if c.next > to {
			return false
		}
	case c.last && to > c.length:
		return false
	}
	if from == to {
		return true
	}
	if from <= c.next {
		c.next = max(c.next, to)
		c.absorb()
		return true
	}
	for i := range c.pieces[:c.n] {
		p := &c.pieces[i]
		if from <= p.to && to >= p.from {
			p.from, p.to = min(p.from, from), max(p.to, to)
			return true
		}
	}
	if int(c.n) == maxGaps {
		return false
	}
	c.pieces[c.n] = piece{from, to}
	c.n++
	return true
}

// absorb takes the pieces that next has reached.
func (c *Cover) absorb() {
	for i := 0; i < int(c.n); {
		if c.pieces[i].from > c.next {
			i++
			continue
		}
		c.next = max(c.next, c.pieces[i].to)
		c.n--
		c.pieces[i] = c.pieces[c.n]
		i = 0
	}
}

// Complete says whether all octets of the message are there.
func (c *Cover) Complete() bool { return c.last && c.next >= c.length }

// Len is the message's length; it is known once the last segment has come.
func (c *Cover) Len() uint64 { return c.length }

// Started says whether any segment has come.
func (c *Cover) Started() bool { return c.next > 0 || c.n > 0 || c.last }

// Reset empties it for the next message.
func (c *Cover) Reset() { c.next, c.n, c.length, c.last = 0, 0, 0, false }
