package initiator

import (
	"sync"

	"goiwarp/iscsi"
)

// pduPool recycles the PDUs that a session sends. Its lock is a leaf: PDUs come back from within the Datamover.
type pduPool struct {
	mu   sync.Mutex
	free []*iscsi.PDU
}

// get takes an empty PDU.
func (p *pduPool) get() *iscsi.PDU {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.free)
	if n == 0 {
		return &iscsi.PDU{Owner: p}
	}
	q := p.free[n-1]
	p.free = p.free[:n-1]
	return q
}

// ReleasePDU takes q back. It must have been got from p.
func (p *pduPool) ReleasePDU(q *iscsi.PDU) {
	q.AHS, q.Data, q.Handle = nil, nil, 0
	p.mu.Lock()
	p.free = append(p.free, q)
	p.mu.Unlock()
}
