package scsi

// maxAttentions bounds the unit attentions that wait for one nexus at one logical unit. A newer one
// is dropped when it is full: the initiator will learn by the ones before it that it must look
// again.
const maxAttentions = 8

// attention is what one logical unit has to tell one nexus, oldest first.
type attention struct {
	codes [maxAttentions]Code
	n     int
}

// add queues c. It reports by how much the queue grew. A reset (29h) makes everything older of no
// interest: an initiator that is told of it looks at everything anew (SAM-5, section 5.14.3).
func (a *attention) add(c Code) int {
	before := a.n
	if c.ASC() == CodeReset.ASC() {
		keep := 0
		for _, q := range a.codes[:a.n] {
			if q == CodeReportedLUNsChanged {
				a.codes[keep] = q
				keep++
			}
		}
		a.n = keep
	}
	for _, q := range a.codes[:a.n] {
		if q == c {
			return a.n - before
		}
	}
	if a.n < maxAttentions {
		a.codes[a.n] = c
		a.n++
	}
	return a.n - before
}

// drop removes c wherever it stands and reports by how much the queue grew (0 or -1).
func (a *attention) drop(c Code) int {
	for i, q := range a.codes[:a.n] {
		if q == c {
			copy(a.codes[i:], a.codes[i+1:a.n])
			a.n--
			return -1
		}
	}
	return 0
}

// Attach makes the logical unit known to a nexus that belongs to no Device, with a first unit
// attention of POWER ON, RESET, OR BUS DEVICE RESET.
func (l *LU) Attach(n *Nexus) { n.attach(l, CodeReset) }

func (n *Nexus) attach(l *LU, code Code) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	l.mu.Lock()
	_, known := l.attentions[n]
	if !known {
		l.attentions[n] = new(attention)
		n.lus = append(n.lus, l)
	}
	l.mu.Unlock()
	l.attend(n, code)
}

// leave undoes attach. The logical unit is about to be closed, which waits for its copies.
func (n *Nexus) leave(l *LU) {
	n.mu.Lock()
	for i, have := range n.lus {
		if have == l {
			n.lus = append(n.lus[:i], n.lus[i+1:]...)
			break
		}
	}
	n.mu.Unlock()
	l.detach(n)
}

// detach ends what the logical unit has of a nexus. Copies in the background are told to end, and given.
func (l *LU) detach(n *Nexus) []*copyResult {
	l.reservation.CompareAndSwap(n, nil)
	copies := l.copies.stop(func(r *copyResult) bool { return r.background && r.nexus == n })
	l.copies.forget(n)
	l.mu.Lock()
	delete(l.preventing, n)
	if a := l.attentions[n]; a != nil {
		n.pending.Add(-int32(a.n))
		delete(l.attentions, n)
	}
	l.mu.Unlock()
	return copies
}

// attend queues a unit attention for one nexus.
func (l *LU) attend(n *Nexus, code Code) {
	l.mu.Lock()
	if a := l.attentions[n]; a != nil {
		n.pending.Add(int32(a.add(code)))
	}
	l.mu.Unlock()
}

// Attention queues a unit attention for every nexus but except, which may be nil.
func (l *LU) Attention(code Code, except *Nexus) {
	l.mu.Lock()
	for n, a := range l.attentions {
		if n != except {
			n.pending.Add(int32(a.add(code)))
		}
	}
	l.mu.Unlock()
}

// takeAttention gives the oldest unit attention of a nexus and forgets it.
func (l *LU) takeAttention(n *Nexus) (Code, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.attentions[n]
	if a == nil || a.n == 0 {
		return 0, false
	}
	code := a.codes[0]
	n.pending.Add(int32(a.drop(code)))
	return code, true
}

// PendingAttention is the oldest unit attention that waits for a nexus, which goes on waiting, and how many
// there are; 0 if there is none.
func (l *LU) PendingAttention(n *Nexus) (oldest Code, count int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.attentions[n]
	if a == nil || a.n == 0 {
		return 0, 0
	}
	return a.codes[0], a.n
}

// dropAttention forgets one unit attention of a nexus.
func (l *LU) dropAttention(n *Nexus, code Code) {
	l.mu.Lock()
	if a := l.attentions[n]; a != nil {
		n.pending.Add(int32(a.drop(code)))
	}
	l.mu.Unlock()
}
