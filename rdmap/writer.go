package rdmap

// write is the writer: the goroutine that waits for the socket when it is full, and that delivers the
// completions of what others sent.
func (s *Stream) write() {
	defer close(s.done)
	for {
		select {
		case <-s.kick:
		case <-s.quit:
			s.mu.Lock()
			if s.handoff {
				s.handoff, s.writing = false, false
				s.idle.Broadcast()
			}
			s.mu.Unlock()
			return
		}
		s.mu.Lock()
		own := s.handoff
		s.handoff = false
		if !own && !s.batch {
			own = s.claimLocked()
		}
		owed := s.completeLocked()
		s.mu.Unlock()
		if own {
			s.pumpWait()
		} else if owed {
			s.enter()
			s.leave()
		}
	}
}

// enter makes the caller the one who runs callbacks. What they post waits for leave.
func (s *Stream) enter() {
	s.cb.Lock()
	s.mu.Lock()
	s.batch = true
	s.mu.Unlock()
}

// leave delivers completions, tells the Handler that the batch is over, and sends what was posted, as
// long as that yields more completions.
func (s *Stream) leave() {
	for round := 0; ; round++ {
		s.deliver()
		if s.called {
			s.called = false
			s.h.BatchEnd()
		}
		s.mu.Lock()
		if round < batchRounds {
			if s.claimLocked() {
				s.mu.Unlock()
				s.pump()
				continue
			}
			if s.completeLocked() {
				s.mu.Unlock()
				continue
			}
		}
		s.batch = false
		more := s.completeLocked() || !s.writing && s.sendableLocked()
		s.mu.Unlock()
		s.cb.Unlock()
		if more {
			s.wake()
		}
		return
	}
}

// deliver gives back the operations that are complete.
func (s *Stream) deliver() {
	for {
		s.mu.Lock()
		if !s.completeLocked() {
			s.mu.Unlock()
			return
		}
		op := s.q.pop()
		s.mu.Unlock()
		if !op.internal {
			s.called = true
			s.h.Done(op, op.err)
		}
	}
}
