package iser

import "goiwarp/rnic"

// Stats are the counters of what the connection's queue pair did so far: RDMA operations, frames and CRC errors. They are zero as long as
// there is no queue pair, which a handover makes last, and never if its startup fails.
func (d *Datamover) Stats() rnic.Stats {
	_, s := d.link()
	return s
}

// Stats are the counters of the connection that the login led to: zero as long as it is a byte stream.
func (h *Handover) Stats() rnic.Stats {
	h.mu.Lock()
	d := h.iser
	h.mu.Unlock()
	if d == nil {
		return rnic.Stats{}
	}
	return d.Stats()
}
