package store

// Anchor implements Anchorer: the range becomes extents that are allocated and unwritten, where the file system has such and tells of them.
func (s *File) Anchor(off, n int64) error {
	if err := s.begin(off, n, true); err != nil {
		return err
	}
	defer s.gate.leave()
	if n == 0 {
		return nil
	}
	return zeroRange(s.fd, off, n, s.block)
}

// Provisioned implements Anchorer.
func (s *File) Provisioned(off, most int64) (p Provision, n int64, err error) {
	if err := s.begin(off, most, false); err != nil {
		return Mapped, 0, err
	}
	defer s.gate.leave()
	if s.block {
		return Mapped, most, nil
	}
	if err := s.intact(off, most); err != nil {
		return Mapped, 0, err
	}
	// The page cache knows of data that has no blocks yet, which the map of extents does not.
	mapped, n, err := extent(s.fd, off, most)
	switch {
	case err != nil, mapped:
		return Mapped, n, err
	case !s.info.Anchors:
		return Deallocated, n, nil
	}
	return holeProvision(s.fd, off, n)
}
