package rdmap

import (
	"errors"
	"fmt"
	"time"

	"goiwarp/ddp"
	"goiwarp/mpa"
)

// fail ends the stream with a Terminate Message, the last thing that is sent. The first failure is the one that is reported
// (RFC 5040, section 7.1, rule 4). A responder that has heard no valid FPDU may send none (RFC 5044, section 7.1.2), and just closes.
func (s *Stream) fail(err error, t Terminate) {
	s.mu.Lock()
	if s.state >= failing {
		s.mu.Unlock()
		return
	}
	if s.err == nil {
		s.err = err
	}
	s.log.Warn("rdmap: stream fails", "err", err)
	s.stopped.Store(true)
	if !s.canSend {
		s.dieLocked(err)
	} else {
		s.term, s.state = t, failing
		s.watchLocked()
	}
	s.mu.Unlock()
	s.wake()
}

// terminated ends the stream after the peer's Terminate Message: nothing more is sent.
func (s *Stream) terminated(t *TerminateError) {
	s.mu.Lock()
	if op := s.culpritLocked(t); op != nil && op.err == nil {
		op.err = t
	}
	s.dieLocked(t)
	s.mu.Unlock()
}

// culpritLocked finds the operation that a Terminate Message complains about.
func (s *Stream) culpritLocked(t *TerminateError) *Op {
	h := t.Message.DDP
	if h == nil {
		return nil
	}
	if ddp.Control(h).Tagged() {
		stag := ddp.Tagged(h).STag()
		for op := s.q.head; op != nil; op = op.link {
			if op.Code == Write && op.RemoteSTag == stag && op.stage != stageQueued {
				return op
			}
		}
		return nil
	}
	if u := ddp.Untagged(h); u.QN() == QueueRequest {
		for op := s.q.reads; op != nil; op = op.linkRead {
			if op.msn == u.MSN() {
				return op
			}
		}
	}
	return nil
}

// peerClosed handles the peer's FIN: what is posted still goes out, but nothing can be answered any more.
func (s *Stream) peerClosed() {
	s.mu.Lock()
	s.rx.fin = true
	broken := s.rx.receive != nil || s.rx.cover.Started()
	switch {
	case broken && s.state < failing:
		s.dieLocked(&mpa.Error{Code: mpa.CodeLost, Detail: "the peer closed within a message"})
	case s.state == open:
		s.state = closing
		s.watchLocked()
	}
	s.mu.Unlock()
	s.wake()
}

// writeFailedLocked: our half is gone. Why may still come from the peer, so that the reader goes on for a moment.
func (s *Stream) writeFailedLocked(err error) {
	if s.state >= finished {
		return
	}
	s.stopped.Store(true)
	s.writeErr = err
	s.state = finished
	close(s.ended)
	s.watchLocked()
}

// finishLocked closes our half, behind the last message.
func (s *Stream) finishLocked() {
	if s.state >= finished {
		return
	}
	s.state = finished
	if err := s.c.CloseWrite(); err != nil {
		s.log.Debug("rdmap: half close", "err", err)
	}
	close(s.ended)
	s.watchLocked()
}

// dieLocked ends everything at once.
func (s *Stream) dieLocked(err error) {
	if s.state == dead {
		return
	}
	if s.err == nil {
		s.err = err
	}
	if s.state != finished {
		close(s.ended)
	}
	s.state = dead
	s.stopped.Store(true)
	if err := s.c.Close(); err != nil {
		s.log.Debug("rdmap: close", "err", err)
	}
}

// watchLocked bounds the time that the end of the stream takes.
func (s *Stream) watchLocked() {
	s.watched = s.progress.Load()
	if s.linger == nil {
		s.linger = time.AfterFunc(s.cfg.Linger, s.lingerOver)
	} else {
		s.linger.Reset(s.cfg.Linger)
	}
}

// lingerOver ends a stream whose peer has let the time pass. As long as it takes what we have to say, it gets more.
func (s *Stream) lingerOver() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (s.state == closing || s.state == failing) && s.progress.Load() != s.watched {
		s.watchLocked()
		return
	}
	var err error
	if s.state == closing {
		err = &mpa.Error{Code: mpa.CodeLost, Detail: fmt.Sprintf("the peer took nothing for %v", s.cfg.Linger)}
	}
	s.dieLocked(err)
}

// finish waits for the end of our half, lets the peer end its own, and gives everything back.
func (s *Stream) finish() {
	s.wake()
	<-s.ended
	s.mu.Lock()
	drain := s.state != dead && !s.rx.fin
	s.mu.Unlock()
	if drain {
		why := s.c.Drain(time.Now().Add(s.cfg.Linger))
		s.log.Debug("rdmap: drained", "until", why)
	}
	s.mu.Lock()
	if s.err == nil && s.writeErr != nil {
		s.err = s.writeErr
	}
	s.dieLocked(nil)
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.linger != nil {
		s.linger.Stop()
	}
	s.mu.Unlock()
	close(s.quit)
	<-s.done
	s.mu.Lock()
	for s.writing {
		s.idle.Wait()
	}
	s.tx.drop()
	err := s.err
	s.mu.Unlock()
	s.flush(err)
	s.cfg.Domain.Leave(s.id)
}

// flush gives back what is outstanding, oldest first, and says goodbye.
func (s *Stream) flush(err error) {
	var flushed error = &flushError{cause: err}
	s.enter()
	if r := s.rx.receive; r != nil {
		s.rx.receive = nil
		d := &s.rx.delivery
		*d = Delivery{Err: d.Err}
		if d.Err == nil {
			d.Err = flushed
		}
		s.h.Received(r, d)
	}
	complete := true
	for {
		s.mu.Lock()
		if s.q.head == nil {
			s.mu.Unlock()
			break
		}
		// Operations complete in order: behind one that did not, nothing did (section 5.5, rule 15).
		complete = complete && s.completeLocked()
		op := s.q.pop()
		s.mu.Unlock()
		switch {
		case op.internal:
		case complete, op.err != nil:
			s.h.Done(op, op.err)
		default:
			s.h.Done(op, flushed)
		}
	}
	s.h.BatchEnd()
	s.mu.Lock()
	s.batch = false
	s.mu.Unlock()
	s.h.Closed(err)
	s.cb.Unlock()
	if err != nil && !errors.Is(err, ErrClosed) {
		s.log.Debug("rdmap: stream closed", "err", err)
	}
}
