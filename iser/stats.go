package iser

import "goiwarp/rnic"

// Stats are the counters of what the connection's queue pair did so far: RDMA operations, frames and CRC errors.
func (d *Datamover) Stats() rnic.Stats { return d.qp.Stats() }

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
