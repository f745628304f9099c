package tcp

import (
	"sync"

	"goiwarp/iscsi"
)

// received recycles the PDUs that ControlNotify delivers, by the room that comes with them.
type received struct{}

// rooms are the sizes, in octets, of the memory that a received PDU has for its AHS and data
// segment: none, sense and small text, the login and immediate data of most peers, and what peers declare
// that want it large. A longer one is left to the garbage collector.
var rooms = [...]int{0, 512, 8192 + iscsi.BHSLen, 64<<10 + iscsi.BHSLen, 256<<10 + iscsi.BHSLen}

var receivedPools [len(rooms)]sync.Pool

// newReceived returns a PDU with room for n octets.
func newReceived(n int) *iscsi.PDU {
	for class, room := range rooms {
		if n > room {
			continue
		}
		p, _ := receivedPools[class].Get().(*iscsi.PDU)
		if p == nil {
			p = &iscsi.PDU{Handle: uint64(class), Room: make([]byte, room)}
		}
		p.Owner = received{}
		return p
	}
	return &iscsi.PDU{Room: make([]byte, n)}
}

// ReleasePDU implements iscsi.PDUOwner.
func (received) ReleasePDU(p *iscsi.PDU) {
	p.Owner, p.AHS, p.Data = nil, nil, nil
	receivedPools[p.Handle].Put(p)
}
