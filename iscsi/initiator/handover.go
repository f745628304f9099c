package initiator

import (
	"context"

	"goiwarp/iscsi"
)

// changeOver makes the Datamover of full feature phase the session's, where the login had one of its own (RFC 7145, section 5.1).
// mu is held.
func (s *Session) changeOver() {
	sw, ok := s.dm.(iscsi.Switch)
	if !ok {
		return
	}
	s.handover = sw
	s.dm = sw.Successor()
	s.info = s.dm.Info()
}

// awaitHandover returns when the connection carries commands in its new mode, or has failed to: whoever logs in hears of that from
// Login. It returns at once where nothing is handed over.
func (s *Session) awaitHandover(ctx context.Context) {
	s.mu.Lock()
	sw := s.handover
	s.handover = nil
	s.unlock()
	if sw == nil {
		return
	}
	select {
	case <-sw.Ready():
	case <-ctx.Done():
		s.fail(context.Cause(ctx))
	}
}
