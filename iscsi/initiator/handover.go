package initiator

import (
	"context"
	"fmt"

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
	s.lend(s.dm)
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

// inherit lets a further connection of a session end in the mode of the leading one (RFC 7145, section 5.1): a session is over RDMA, or
// is not.
func (b *branch) inherit(c *iscsi.InitiatorLoginConfig) {
	if !b.dm.Info().Handover {
		return
	}
	c.Handover = b.s.params.RDMAExtensions
	c.Settings.RequireRDMA = c.Handover
}

// sameMode holds what a further connection has agreed on against that.
func (b *branch) sameMode(p *iscsi.Params) error {
	if p.RDMAExtensions == b.s.params.RDMAExtensions {
		return nil
	}
	return fmt.Errorf("initiator: connection %d has %s=%v, the session %v", b.cid, iscsi.KeyRDMAExtensions, p.RDMAExtensions, b.s.params.RDMAExtensions)
}

// changeOver is Session.changeOver for a further connection.
func (b *branch) changeOver() {
	if sw, ok := b.dm.(iscsi.Switch); ok {
		b.handover = sw
		b.dm = sw.Successor()
	}
}

// awaitHandover returns when a further connection that has logged in carries commands, or has failed to.
func (b *branch) awaitHandover(ctx context.Context) error {
	b.s.mu.Lock()
	sw, err := b.handover, b.err
	b.s.unlock()
	if sw == nil || err != nil {
		return err
	}
	select {
	case <-sw.Ready():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
