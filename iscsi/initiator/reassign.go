package initiator

import (
	"errors"
	"fmt"
	"slices"

	"goiwarp/iscsi"
)

// This file sends on other connections what a lost one has left (RFC 7143, sections 7.2 and 11.5):
//
//	CmdSN >= ExpCmdSN   the target has never had it: sent again, with its number and tag, which fills the hole
//	CmdSN <  ExpCmdSN   the target has it: TASK REASSIGN, behind which data and status come
//	ping                sent again, with its number if that is a hole
//	ABORT TASK          sent again, behind the task's reassignment
//	other requests      end with an error; what stops many tasks ends the session, since nobody knows which are stopped
//
// So a command is executed once, and its status is not lost: the target keeps it until ExpStatSN says that it was received.

// todo is what a command of a lost connection waits for.
type todo uint8

const (
	nothing todo = iota
	resend
	reassign
)

// orphan is a command or a ping that is to be sent on another connection.
type orphan struct {
	itt   uint32
	cmdSN iscsi.SN
}

// maxMoving is how many TASK REASSIGN are under way at once. They are for immediate delivery, and targets take few such requests; over
// iSER they count as unexpected until the command numbering goes on (RFC 7145, section 8.1.1.3).
const maxMoving = 4

// errLostRequest ends a request other than a command whose answer was lost with its connection.
var errLostRequest = fmt.Errorf("initiator: %w: lost before the answer came, and recovered", iscsi.ErrConnection)

// strand sorts out the requests other than commands that waited for their answers on a lost connection. An error means that the
// session cannot go on.
func (s *Session) strand(b *branch) (fatal error) {
	for i := range s.slots {
		sl := &s.slots[i]
		c := sl.ctl
		if c == nil || c.via != b || c.parked {
			continue
		}
		switch {
		case c.want == iscsi.OpNOPIn, c.aborts():
			s.parkControl(c, b)
		case c.moves:
			s.rec.moving--
			s.freeSlot(sl)
		default:
			if c.stops != nil {
				fatal = fmt.Errorf("initiator: %w: lost under %v", iscsi.ErrConnection, iscsi.TaskMgmtRequest(c.bhs[:]).Function())
			}
			s.freeSlot(sl)
			s.endControl(c, errLostRequest)
		}
	}
	return fatal
}

// aborts tells ABORT TASK, which has the same effect when it is sent twice.
func (c *control) aborts() bool {
	return c.want == iscsi.OpTaskMgmtRsp && iscsi.TaskMgmtRequest(c.bhs[:]).Function() == iscsi.AbortTask
}

// parkControl lets c wait until it can be sent. b is the lost connection that it was sent on; nil: none.
func (s *Session) parkControl(c *control, b *branch) {
	c.parked, c.via = true, b
	s.rec.parked = append(s.rec.parked, c)
}

// strands tells whether nothing can be sent by a connection; nil is the leading one.
func (s *Session) strands(b *branch) bool {
	if b != nil {
		return b.lost
	}
	return s.rec.headless
}

// resume lets everything that a lost connection has left go on. The target has logged it out, and s.expCmdSN is from after that. mu
// is held.
func (s *Session) resume(b *branch) {
	if b.resumed || s.ending() {
		return
	}
	b.resumed = true
	s.rec.fruitless++
	s.recovered.Add(1)
	s.rec.lost = slices.DeleteFunc(s.rec.lost, func(o *branch) bool { return o == b })
	for i := range s.slots {
		r := s.slots[i].req
		if r == nil || r.via != b || r.todo != nothing {
			continue
		}
		r.todo = reassign
		if s.expCmdSN.LessEqual(r.cmdSN) {
			r.todo = resend
		}
		s.rec.orphans = append(s.rec.orphans, orphan{r.itt, r.cmdSN})
	}
	slices.SortFunc(s.rec.orphans, func(a, b orphan) int { return int(int32(a.cmdSN - b.cmdSN)) })
	s.pump()
	s.checkDrained()
}

// adopts tells whether there is something for adopt.
func (s *Session) adopts() bool { return len(s.rec.orphans) > 0 || len(s.rec.parked) > 0 }

// adopt sends what lost connections have left, as far as that goes now; it is called again with whatever the target sends.
func (s *Session) adopt() {
	for len(s.rec.orphans) > 0 && !s.rec.headless && !s.ending() {
		o := s.rec.orphans[0]
		sl := s.lookup(o.itt)
		if sl == nil || sl.req == nil || sl.req.todo == nothing {
			s.rec.orphans = s.rec.orphans[1:] // it was aborted
			continue
		}
		r := sl.req
		if r.todo == reassign && s.rec.moving >= maxMoving {
			break
		}
		by := s.spread()
		err := s.move(r, by)
		if err == nil {
			s.rec.orphans = s.rec.orphans[1:]
			continue
		}
		if errors.Is(err, iscsi.ErrConnection) {
			s.lose(by, err)
			continue
		}
		s.nudge(err)
		break
	}
	s.unpark()
}

// move sends a command by another connection, or has it reassigned to it; nil is the leading one. With an error nothing has changed.
func (s *Session) move(r *Request, by *branch) error {
	old, what := r.via, r.todo
	r.via, r.todo = by, nothing
	if by != nil {
		by.load++
	}
	old.load--
	r.tick = s.deadline.tick
	var err error
	if what == resend {
		err = s.transmit(r)
	} else {
		err = s.reassign(r, by)
	}
	if err != nil {
		if by != nil {
			by.load--
		}
		old.load++
		r.via, r.todo = old, what
	}
	return err
}

// reassign sends a TASK REASSIGN for r, with the data that it has acknowledged (RFC 7143, section 11.5.6).
func (s *Session) reassign(r *Request, by *branch) error {
	c := newControl()
	c.moves = true
	p := s.pdus.get()
	h := iscsi.TaskMgmtRequest(p.BHS[:])
	h.Init()
	h.SetImmediate(true)
	h.SetFunction(iscsi.TaskReassign)
	h.SetRTT(r.itt)
	h.SetCmdSN(s.cmdSN)
	h.SetExpStatSN(s.statSN(by))
	var t *iscsi.TaskBuffers
	if r.InLen > 0 || r.OutLen > 0 {
		t = &r.bufs
		h.SetExpDataSN(t.AckedSN)
	}
	if err := s.sendTask(by, p, c, t); err != nil {
		return err
	}
	s.rec.moving++
	return nil
}

// reassigned takes the answer to a TASK REASSIGN. A task that the target does not have any more, although it has had the command, cannot be
// told from one that was executed, so that the session ends, which a Disk knows how to go on from.
func (s *Session) reassigned(p *iscsi.PDU, itt uint32) {
	s.rec.moving--
	code := iscsi.TaskMgmtResponse(p.BHS[:]).Response()
	sl := s.lookup(itt)
	if code == iscsi.TaskComplete || sl == nil || sl.req == nil {
		return
	}
	if code == iscsi.TaskNoTask && s.aborting(itt) {
		return // ABORT TASK was executed, and its answer lost: it is asked for again
	}
	s.failLocked(&RecoveryError{CID: s.params.CID, Cause: iscsi.ErrConnection, Err: &refusal{fmt.Sprintf("TASK REASSIGN: %v", code)}})
}

// aborting tells whether an ABORT TASK of a task waits for its answer.
func (s *Session) aborting(itt uint32) bool {
	for i := range s.slots {
		if c := s.slots[i].ctl; c != nil && c.aborts() && iscsi.TaskMgmtRequest(c.bhs[:]).RTT() == itt {
			return true
		}
	}
	return false
}

// unpark sends the requests other than commands that can be sent now.
func (s *Session) unpark() {
	for i := 0; i < len(s.rec.parked) && !s.rec.headless && !s.ending(); {
		c := s.rec.parked[i]
		sl := s.lookup(iscsi.BHS(c.bhs[:]).ITT())
		gone := sl == nil || sl.ctl != c
		if !gone {
			by, ok := s.unparks(c)
			if !ok {
				i++
				continue
			}
			if err := s.sendParked(c, by); err != nil {
				if errors.Is(err, iscsi.ErrConnection) {
					s.lose(by, err)
					continue
				}
				return // later
			}
		}
		s.rec.parked = slices.Delete(s.rec.parked, i, i+1)
	}
}

// unparks tells whether c can be sent, and by which connection.
func (s *Session) unparks(c *control) (by *branch, ok bool) {
	if !c.aborts() {
		return nil, c.via == nil || c.via.resumed // before that nobody knows whether its number is a hole
	}
	sl := s.lookup(iscsi.TaskMgmtRequest(c.bhs[:]).RTT())
	if sl == nil || sl.req == nil {
		return nil, true // the task has ended, which the target says
	}
	r := sl.req
	return r.via, r.todo == nothing && !s.strands(r.via)
}

// sendParked sends c with the tag that it has.
func (s *Session) sendParked(c *control, by *branch) error {
	p := s.pdus.get()
	p.BHS = c.bhs
	h := iscsi.NOPOut(p.BHS[:]) // the fields stand where they do in all requests
	fresh := false
	if h.Immediate() || h.CmdSN().Less(s.expCmdSN) {
		fresh = !c.aborts() && s.cmdSN.LessEqual(s.maxCmdSN)
		h.SetImmediate(!fresh)
		h.SetCmdSN(s.cmdSN)
	}
	h.SetExpStatSN(s.statSN(by))
	sent := p.BHS
	if err := s.sendBy(by, p, nil); err != nil {
		return err
	}
	if fresh {
		s.cmdSN++
	}
	c.bhs, c.via, c.parked = sent, by, false
	return nil
}

// nudge deals with a connection that takes no more requests for immediate delivery, or has no memory left, while commands wait to be
// moved: the next answer lets them go on. If none is to come a ping makes one.
func (s *Session) nudge(err error) {
	if s.rec.moving > 0 || s.alive.ping.waits() || s.inFlight > len(s.rec.orphans) {
		return
	}
	c, perr := s.sendPing()
	if perr != nil {
		s.failLocked(err)
		return
	}
	s.alive.ping = c
}
