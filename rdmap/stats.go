package rdmap

import "sync/atomic"

// counters are Stats while they are counted.
type counters struct {
	octetsSent, octetsReceived           atomic.Uint64
	sendsSent, sendsReceived             atomic.Uint64
	writesSent, writesReceived           atomic.Uint64
	readsSent, readsReceived             atomic.Uint64
	atomicsSent, atomicsReceived         atomic.Uint64
	invalidatesSent, invalidatesReceived atomic.Uint64
}

// sent counts an operation whose message was queued.
func (c *counters) sent(op *Op) {
	switch op.Code {
	case Send:
		c.sendsSent.Add(1)
		if op.Flags&Invalidate != 0 {
			c.invalidatesSent.Add(1)
		}
	case Immediate:
		c.sendsSent.Add(1)
	case Write:
		c.writesSent.Add(1)
	case Read:
		c.readsSent.Add(1)
	case FetchAdd, CmpSwap:
		c.atomicsSent.Add(1)
	}
}

func (c *counters) read() Stats {
	return Stats{
		OctetsSent: c.octetsSent.Load(), OctetsReceived: c.octetsReceived.Load(),
		SendsSent: c.sendsSent.Load(), SendsReceived: c.sendsReceived.Load(),
		WritesSent: c.writesSent.Load(), WritesReceived: c.writesReceived.Load(),
		ReadsSent: c.readsSent.Load(), ReadsReceived: c.readsReceived.Load(),
		AtomicsSent: c.atomicsSent.Load(), AtomicsReceived: c.atomicsReceived.Load(),
		InvalidatesSent: c.invalidatesSent.Load(), InvalidatesRecv: c.invalidatesReceived.Load(),
	}
}
