package initiator

import (
	"errors"

	"goiwarp/iscsi"
)

// This file is the initiator's part of TaskReporting=FastAbort (RFC 7143, section 4.2.3.4): a target that aborts many tasks does not wait for
// the data that it has asked for, and the initiator does not send it any more.

// mutes stops the data-out of a command that is about to end; mu is held.
func (s *Session) mutes(r *Request) {
	r.mute = true
	if d, ok := s.mover(r).(iscsi.DataStopper); ok {
		d.StopDataOut(r.itt)
	}
}

// stopData stops the data of the commands that a function, which has just been sent, concerns on its own connection (step a); mu is
// held. Those on others go on until the target tells them.
func (s *Session) stopData(c *control) {
	if s.params == nil || !s.params.FastAbort() {
		return
	}
	for i := range s.slots {
		if r := s.slots[i].req; r != nil && r.via == c.via && c.stops(r) {
			s.mutes(r)
		}
	}
}

// stopMute ends the commands that a function concerned which the target has not done after all: without their data they would never end; mu is
// held.
func (s *Session) stopMute(c *control) {
	var mute []*Request
	for i := range s.slots {
		if r := s.slots[i].req; r != nil && r.mute && c.stops(r) {
			mute = append(mute, r)
		}
	}
	s.stopEach(mute)
}

// tasksTerminated is the news that the target has aborted the commands of a logical unit, for another initiator or for a function that went by
// another connection (section 11.9.1, event 5). Their data stops, and the acknowledgement is a NOP-Out with the LUN.
//
// Only commands that the target had when it said so are meant; it tells by ExpCmdSN. They end by ABORT TASK, to which it answers that there
// is no such task, behind whatever it has answered before; and one that it has all the same does not outlive the news of its end. What a function
// under way will end is left to that.
func (s *Session) tasksTerminated(b *branch, h iscsi.AsyncMessage) {
	if s.params == nil || !s.params.FastAbort() {
		return
	}
	var ended []*Request
	for i := range s.slots {
		r := s.slots[i].req
		if r == nil || r.via != b || r.lun != h.LUN() || !r.cmdSN.Less(h.ExpCmdSN()) || r.mute { // mute: told before, and on its way out
			continue
		}
		s.mutes(r)
		if !s.beingStopped(r) {
			ended = append(ended, r)
		}
	}
	q := s.pdus.get()
	n := iscsi.NOPOut(q.BHS[:])
	n.Init()
	n.SetImmediate(true)
	n.SetLUN(h.LUN())
	n.SetITT(iscsi.ReservedTag)
	n.SetTTT(iscsi.ReservedTag)
	n.SetCmdSN(s.cmdSN)
	n.SetExpStatSN(s.statSN(b))
	if err := s.sendBy(b, q, nil); errors.Is(err, iscsi.ErrConnection) {
		s.sendFault(b, err)
		return
	} else if err != nil { // too many such PDUs at once, over RDMA: the next PDU acknowledges as well
		s.log.Debug("iscsi task termination is acknowledged later", "target", s.cfg.TargetName, "error", err)
	}
	s.stopEach(ended)
}

// beingStopped tells that a function is under way that will end a command.
func (s *Session) beingStopped(r *Request) bool {
	for i := range s.slots {
		if c := s.slots[i].ctl; c != nil && c.stops != nil && c.stops(r) {
			return true
		}
	}
	return false
}

// stopEach ends commands by ABORT TASK, one after the other; mu is held.
func (s *Session) stopEach(list []*Request) {
	if len(list) == 0 {
		return
	}
	tags := make([]uint32, len(list))
	for i, r := range list {
		tags[i] = r.itt
	}
	s.wg.Go(func() {
		for i, r := range list {
			s.retire(r, tags[i])
			s.stopTask(r, tags[i])
		}
	})
}

// retire pings by a command's connection over RDMA, where few PDUs for immediate delivery may follow each other: what is not immediate lets the
// target say that it has taken those before it (RFC 7145, section 8.1.1.3).
func (s *Session) retire(r *Request, itt uint32) {
	s.mu.Lock()
	sl := s.lookup(itt)
	if s.state != sessionUp || !s.params.RDMAExtensions || sl == nil || sl.req != r {
		s.unlock()
		return
	}
	c, err := s.sendPingBy(r.via)
	s.unlock()
	if err != nil {
		return
	}
	select {
	case <-c.wake:
	case <-s.done:
	}
}
