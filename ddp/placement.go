package ddp

// Placement puts the payload of one segment into registered memory. It is the mpa.Scatter of a
// payload that is read from the socket straight to its destination, and the target of a copy when the
// FPDU is buffered already. Regions are held for each attempt alone, so that one that is invalidated
// in between stops the placement at once. It is reused from segment to segment.
type Placement struct {
	cur  Cursor
	loan Loan
	left int

	region *Region // a tagged buffer under its STag, instead of cur
	stag   STag
	off    int
	fault  error
}

// ToSegs aims at n octets at offset off of a scatter list; the caller has checked the bounds.
func (p *Placement) ToSegs(segs []Seg, off, n int) {
	p.cur.Set(segs)
	p.cur.Seek(off)
	p.region, p.left, p.fault = nil, n, nil
}

// ToRegion aims at n octets at offset off of a tagged buffer, for as long as its STag is s.
func (p *Placement) ToRegion(r *Region, s STag, off, n int) {
	p.region, p.stag, p.off, p.left, p.fault = r, s, off, n, nil
}

// Acquire holds what is left of the destination.
func (p *Placement) Acquire() ([][]byte, error) {
	var err error
	if p.region != nil {
		err = p.loan.TakeRegion(p.region, p.stag, p.off, p.left)
		if err != nil {
			err = &Error{Type: TaggedBuffer, Code: CodeInvalidSTag, Detail: p.stag.String() + " was invalidated"}
		}
	} else if err = p.loan.Take(&p.cur, p.left); err != nil {
		err = &Error{Type: LocalCatastrophic, Code: CodeLocal, Detail: "buffer: " + err.Error()}
	}
	if err != nil {
		p.fault = err
		return nil, err
	}
	return p.loan.Bufs, nil
}

// Release ends the hold after n octets were placed.
func (p *Placement) Release(n int) {
	p.left -= n
	if p.region != nil {
		p.off += n
		p.region.Count(n) // before the loan ends
	} else {
		p.cur.Advance(n)
	}
	p.loan.Return()
}

// Fault is the error that stopped the placement in Acquire, or nil.
func (p *Placement) Fault() error { return p.fault }

// Source is a segment that is buffered whole: CopyTo copies its octets from off on.
type Source interface {
	CopyTo(off int, dst []byte) int
}

// Copy places the payload of a buffered segment; it starts at off of src.
func (p *Placement) Copy(src Source, off int) error {
	bufs, err := p.Acquire()
	if err != nil {
		return err
	}
	n := 0
	for _, b := range bufs {
		n += src.CopyTo(off+n, b)
	}
	p.Release(n)
	return nil
}

// Done drops all references to memory.
func (p *Placement) Done() { p.cur.Set(nil); p.region = nil }
