package ddp

// Outgoing is one message on its way out: it yields the header of one segment after the
// other (RFC 5041, section 5.2). The payload is the caller's business (see Cursor). It is reused
// from message to message.
type Outgoing struct {
	head   [UntaggedLen]byte
	tagged TaggedFields
	untag  UntaggedFields
	isTag  bool
	total  uint32
	off    uint32
	ended  bool
}

// StartTagged begins a tagged message of total octets at f.TO of f.STag; f.Last is ignored.
func (m *Outgoing) StartTagged(f TaggedFields, total uint32) {
	m.tagged, m.isTag = f, true
	m.total, m.off, m.ended = total, 0, false
}

// StartUntagged begins an untagged message of total octets; f.Last and f.MO are ignored.
func (m *Outgoing) StartUntagged(f UntaggedFields, total uint32) {
	m.untag, m.isTag = f, false
	m.total, m.off, m.ended = total, 0, false
}

// Ended says that the last segment has been made.
func (m *Outgoing) Ended() bool { return m.ended }

// Sent is how much of the payload the segments so far carry.
func (m *Outgoing) Sent() uint32 { return m.off }

// Next makes the next segment for a path that carries mulpdu octets per ULPDU: its header (valid until the next
// call) and the length of its payload. A message without payload is one segment.
func (m *Outgoing) Next(mulpdu int) (head []byte, n int) {
	hl := UntaggedLen
	if m.isTag {
		hl = TaggedLen
	}
	rest := m.total - m.off
	n = int(rest)
	if room := mulpdu - hl; int64(room) < int64(rest) {
		n = room
	}
	m.ended = uint32(n) == rest
	if m.isTag {
		m.tagged.Last = m.ended
		Tagged(m.head[:]).Encode(&m.tagged)
		m.tagged.TO += uint64(n)
	} else {
		m.untag.Last, m.untag.MO = m.ended, m.off
		Untagged(m.head[:]).Encode(&m.untag)
	}
	m.off += uint32(n)
	return m.head[:hl], n
}

// Cursor walks through a gather or scatter list. Lists are used from front to back most of the
// time; Seek is there for the rest.
type Cursor struct {
	segs []Seg
	i    int // current element
	off  int // offset within it
	pos  int // offset within the list
}

// Set puts the cursor at the start of segs.
func (c *Cursor) Set(segs []Seg) { *c = Cursor{segs: segs} }

// Seek moves the cursor to offset pos of the list.
func (c *Cursor) Seek(pos int) {
	if pos < c.pos {
		c.i, c.off, c.pos = 0, 0, 0
	}
	c.Advance(pos - c.pos)
}

// Advance moves the cursor n octets on.
func (c *Cursor) Advance(n int) {
	c.pos += n
	for n > 0 && c.i < len(c.segs) {
		if rest := c.segs[c.i].Len - c.off; n < rest {
			c.off += n
			return
		} else {
			n -= rest
		}
		c.i++
		c.off = 0
	}
}

// Loan is memory of registered regions that is held for one non-blocking operation.
type Loan struct {
	// Bufs are the pieces, in order.
	Bufs [][]byte
	held []*Region
	// Access is the union of the rights of the regions that were held.
	Access Access
}

// Take holds the regions behind the n octets at c, without moving it. It fails when one of them is not
// valid any more or smaller than the list says; nothing is held then.
func (l *Loan) Take(c *Cursor, n int) error {
	l.Bufs, l.held, l.Access = l.Bufs[:0], l.held[:0], 0
	i, off := c.i, c.off
	for n > 0 {
		if i >= len(c.segs) {
			l.Return()
			return ErrBounds
		}
		g := &c.segs[i]
		k := min(n, g.Len-off)
		if k > 0 {
			mem, ok := g.Region.Hold()
			if !ok {
				l.Return()
				return ErrInvalid
			}
			l.held = append(l.held, g.Region)
			l.Access |= g.Region.access
			from := g.Off + off
			if from > len(mem) || k > len(mem)-from {
				l.Return()
				return ErrBounds
			}
			l.Bufs = append(l.Bufs, mem[from:from+k])
			n -= k
		}
		i, off = i+1, 0
	}
	return nil
}

// TakeRegion holds n octets at off of r, whose STag must still be s.
func (l *Loan) TakeRegion(r *Region, s STag, off, n int) error {
	l.Bufs, l.held, l.Access = l.Bufs[:0], l.held[:0], 0
	mem, ok := r.Acquire(s)
	if !ok {
		return ErrInvalid
	}
	if off > len(mem) || n > len(mem)-off {
		r.Release()
		return ErrBounds
	}
	l.held = append(l.held, r)
	l.Access = r.access
	l.Bufs = append(l.Bufs, mem[off:off+n])
	return nil
}

// Regions are those held, in the order of Bufs.
func (l *Loan) Regions() []*Region { return l.held }

// Return ends the loan.
func (l *Loan) Return() {
	for i, r := range l.held {
		r.Release()
		l.held[i] = nil
	}
	l.held = l.held[:0]
	clear(l.Bufs)
	l.Bufs = l.Bufs[:0]
}
