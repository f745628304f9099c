package tcp

import (
	"goiwarp/iscsi"
)

// snack handles a SNACK Request at ErrorRecoveryLevel > 0 (RFC 7143, section 11.16).
func (d *Datamover) snack(f iscsi.Frame) error {
	if err := d.segment(f, nil, 0); err != nil {
		return err
	}
	r := &d.reader
	h := iscsi.SNACKRequest(r.bhs[:])
	p := iscsi.PDU{BHS: r.bhs}
	if f.Data > 0 {
		p.Data = r.bhs[:] // only its being there counts
	}
	if err := iscsi.Validate(&p, true); err != nil {
		d.refuse(outcome{reason: iscsi.RejectInvalidField, why: err.Error()})
		return nil
	}
	run := iscsi.Run{First: iscsi.SN(h.BegRun()), Len: h.RunLength()}
	segment := maxSend(d.params.Load())
	var o outcome
	switch h.Type() {
	case iscsi.SNACKStatus:
		o = d.keep.snackStatus(run)
	case iscsi.SNACKDataACK:
		itt, ok := d.keep.ackData(h.TTT(), h.BegRun())
		if !ok {
			o = outcome{reason: iscsi.RejectInvalidDataACK, why: "acknowledges no data"}
		} else if !d.local.Load() {
			d.up.DataACKNotify(itt, h.BegRun())
		}
	case iscsi.SNACKRData:
		if h.BegRun() != 0 || h.RunLength() != 0 {
			o = outcome{reason: iscsi.RejectInvalidField, why: "R-Data SNACK with a run"}
			break
		}
		o = d.keep.snackRData(h.ITT(), h.TTT(), segment)
	case iscsi.SNACKDataR2T:
		if o = d.keep.snackData(h.ITT(), run); !o.known {
			o = d.transfers.snackR2T(h.ITT(), run)
		}
	}
	d.stats.snacks.Add(1)
	if o.reason != 0 {
		d.refuse(o)
	}
	d.resend(o.again)
	return nil
}

// refuse has the PDU at hand rejected.
func (d *Datamover) refuse(o outcome) {
	if d.local.Load() {
		return
	}
	d.up.(iscsi.RecoveryNotifier).RejectNotify(&iscsi.Rejection{
		BHS: d.reader.bhs, Reason: o.reason, DataSN: o.next, Unrecoverable: o.lost, Detail: o.why,
	})
}

// resend queues PDUs that were sent before, with the command window as it is now.
func (d *Datamover) resend(list []*iscsi.PDU) {
	if len(list) == 0 {
		return
	}
	q := &d.queue
	q.mu.Lock()
	tooMany := false
	for i, p := range list {
		if q.dead || q.closing {
			for _, p := range list[i:] {
				p.Release()
			}
			break
		}
		h := iscsi.BHS(p.BHS[:])
		h.SetWindow(q.expCmdSN, q.maxCmdSN)
		if h.Opcode() == iscsi.OpR2T {
			h.SetStatSN(q.statSN)
		}
		tooMany = q.count(d.pushControl(p), d.cfg.MaxQueued) || tooMany
	}
	run := q.claim()
	q.mu.Unlock()
	d.stats.resent.Add(uint64(len(list)))
	if run {
		d.pump(false)
	}
	if tooMany {
		d.fail(&Error{Kind: Backlog, Detail: "too many PDUs wait to be sent again", Remote: true}, true)
	}
}

// snackR2T handles a Data/R2T SNACK for R2Ts: those that were not answered are sent again.
func (t *transfers) snackR2T(itt uint32, run iscsi.Run) (o outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.gets.buckets {
		for ; n != nil; n = n.next {
			g := &n.value
			if g.itt != itt {
				continue
			}
			o.known, o.next = true, max(o.next, g.r2tSN+1)
			if at := g.r2tSN - uint32(run.First); run.Len != 0 && at >= run.Len || run.Len == 0 && int32(at) < 0 {
				continue
			}
			p := newReceived(0)
			g.header(iscsi.R2T(p.BHS[:]))
			o.again = append(o.again, p)
		}
	}
	if len(o.again) == 0 {
		o.reason, o.why = iscsi.RejectProtocolError, "R2T that was not sent, or that was answered"
	}
	return o
}

// header lays the R2T of g out.
func (g *get) header(h iscsi.R2T) {
	h.Init()
	h.SetLUN(g.lun)
	h.SetITT(g.itt)
	h.SetTTT(g.ttt)
	h.SetR2TSN(g.r2tSN)
	h.SetOffset(uint32(g.off))
	h.SetDesiredLen(uint32(len(g.mem)))
}
