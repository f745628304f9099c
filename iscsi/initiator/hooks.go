package initiator

import (
	"time"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
)

// Hooks let a program watch a session: for metrics, for the wire, for what changes. Each may be nil, and costs nothing then. They run on the
// goroutine that sends or receives, so that they must not block, and must not call the session. A Disk's sessions share
// theirs, which are then called by several goroutines at once.
type Hooks struct {
	// PDU sees every PDU that the session sends or has received, login included. Data-In, R2T and solicited Data-Out, which the Datamover makes
	// of its own, are not among them. p is valid during the call only, and may hold the CHAP exchange of a login.
	PDU func(sent bool, p *iscsi.PDU)
	// Command is told of every SCSI command that has ended, however it did.
	Command func(*CommandInfo)
	// Attention is told of every unit attention: something happened to the logical unit, and the command that it came with was not run.
	Attention func(lun uint64, s scsi.Sense)
	// Async is told of every asynchronous message.
	Async func(*AsyncInfo)
	// State is told when the session comes up, with nil, and when it has ended, with the reason.
	State func(target, portal string, err error)
}

// CommandInfo is a SCSI command that has ended. It is valid during the call only.
type CommandInfo struct {
	LUN     uint64 // as it stands on the wire
	CDB     []byte
	In, Out int // octets that were moved
	Status  scsi.Status
	Err     error // as Request.Err
	// Latency is the time from submission to the end, waiting for the command window included.
	Latency time.Duration
}

// AsyncInfo is an asynchronous message (RFC 7143, section 11.9). It is valid during the call only.
type AsyncInfo struct {
	Event  iscsi.AsyncEvent
	LUN    uint64
	Params [3]uint16
	// Sense is set for AsyncSense.
	Sense    scsi.Sense
	HasSense bool
}

// sendPDU is the Datamover's SendControl, watched.
func (s *Session) sendPDU(p *iscsi.PDU, t *iscsi.TaskBuffers) error { return s.sendBy(nil, p, t) }

// sendBy is sendPDU by a connection; nil is the leading one.
func (s *Session) sendBy(b *branch, p *iscsi.PDU, t *iscsi.TaskBuffers) error {
	if f := s.cfg.Hooks.PDU; f != nil {
		f(true, p)
	}
	if b != nil {
		return b.dm.SendControl(p, t)
	}
	return s.dm.SendControl(p, t)
}

// commandEnded tells of r, before its owner has it again. Session.mu is not held.
func (s *Session) commandEnded(r *Request) {
	i := &CommandInfo{LUN: r.lun, CDB: r.command(), Status: r.Status, Err: r.Err, Latency: time.Since(r.begun)}
	if r.Err == nil || r.Status != scsi.StatusGood {
		if r.OutLen > 0 {
			i.Out = r.Moved()
		} else {
			i.In = r.Moved()
		}
	}
	s.cfg.Hooks.Command(i)
}

// attentionCame tells of a command's sense data, if it is a unit attention.
func (s *Session) attentionCame(r *Request, e *scsi.Error) {
	if f := s.cfg.Hooks.Attention; f != nil && e.UnitAttention() {
		f(r.lun, e.Sense)
	}
}

// asyncCame tells of an asynchronous message.
func (s *Session) asyncCame(p *iscsi.PDU) {
	f := s.cfg.Hooks.Async
	if f == nil {
		return
	}
	h := iscsi.AsyncMessage(p.BHS[:])
	i := &AsyncInfo{Event: h.Event(), LUN: h.LUN(), Params: [3]uint16{h.Parameter1(), h.Parameter2(), h.Parameter3()}}
	if i.Event == iscsi.AsyncSense {
		i.Sense, i.HasSense = scsi.ParseSense(iscsi.SenseData(p.Data))
	}
	f(i)
}

// stateChanged tells that the session is up, or has ended by err.
func (s *Session) stateChanged(err error) {
	if f := s.cfg.Hooks.State; f != nil {
		f(s.cfg.TargetName, s.cfg.Addr, err)
	}
}
