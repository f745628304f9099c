package iscsi

import "errors"

// Switch is a Datamover of the login phase alone: once the login is over another one takes the connection over, iSER or plain
// iSCSI as RDMAExtensions was agreed (RFC 7145, section 5.1).
//
//	Switch:     Start, SendControl of Login PDUs, NoticeKeyValues, AllocateConnectionResources, EnableDatamover
//	                                                                                                  |
//	Successor:  full feature phase, with the same Notifier <------------------------------------------+
//
// EnableDatamover decides. Afterwards the Switch passes calls on, so that its owner may change over when it likes, but
// its Done is the successor's only from then on.
type Switch interface {
	Datamover
	// Successor is the Datamover of full feature phase; nil before EnableDatamover.
	Successor() Datamover
	// Ready is closed when the successor's connection carries PDUs, or has ended. It is valid after EnableDatamover.
	Ready() <-chan struct{}
}

// ErrNoRDMA: the login was to end in RDMA mode (Settings.RequireRDMA), but RDMAExtensions=Yes was not agreed.
var ErrNoRDMA = errors.New("iscsi: the peer does not agree to RDMAExtensions=Yes")

// SetHandover tells that the connection carries a byte stream now and data by RDMA later if RDMAExtensions=Yes is agreed: an initiator
// offers it, with the keys of both modes, and a target agrees. Call it before Offer and Receive.
func (n *Negotiator) SetHandover() { n.handover = true }

// leadingOnly are RFC 7145's keys of use LO (section 6).
func leadingOnly(k *Key) bool {
	switch k.Name {
	case KeyRDMAExtensions, KeyMaxUnexpectedPDUs, KeyMaxAHSLength, KeySolicitedOnly, KeyISERHello:
		return true
	}
	return false
}

// mayRDMA tells that RFC 7145's keys may come to count: an initiator says them together with its offer of RDMAExtensions.
func (n *Negotiator) mayRDMA() bool {
	if n.role == RoleInitiator && n.handover && n.join == nil && !n.discovery {
		return true
	}
	return n.rdma()
}

// setting is this side's value of a key, given what is known of RDMA so far.
func (n *Negotiator) setting(k *Key) string {
	rdma := n.link
	switch {
	case !n.handover:
	case n.join != nil:
		rdma = n.rdma()
	default:
		// Digests are the only other keys whose value depends on it. An initiator does not know yet; Apply mends it.
		rdma = k.Name == KeyRDMAExtensions || n.role == RoleTarget && n.rdma()
	}
	return n.set.value(k.Name, n.role, rdma)
}

// initiatorOffers tells whether an initiator says the key of its own accord. What may become an RDMA connection or a plain one
// gets the keys of both.
func (n *Negotiator) initiatorOffers(k *Key) bool {
	if n.handover && n.join != nil && leadingOnly(k) {
		return false
	}
	return n.set.offers(k, n.mayRDMA()) || n.handover && !n.rdma() && n.set.offers(k, false)
}

// unheard forgets a declaration that the target does not know, or answers with No: its meaning needs both sides (RFC 7145, section 5.1.3).
func (n *Negotiator) unheard(k *Key, st *keyState) {
	if k.Name == KeyISERHello || k.Name == KeySolicitedOnly {
		st.offer = ""
	}
}

// joinSession gives p what the leading connection has settled for the session.
func (n *Negotiator) joinSession(p *Params) {
	if !n.handover || n.join == nil || !n.rdma() {
		return
	}
	p.OwnMaxOutstandingUnexpectedPDUs = n.join.OwnMaxOutstandingUnexpectedPDUs
	p.MaxOutstandingUnexpectedPDUs = n.join.MaxOutstandingUnexpectedPDUs
	p.MaxAHSLength = n.join.MaxAHSLength
	p.TaggedBufferForSolicitedDataOnly = n.join.TaggedBufferForSolicitedDataOnly
	p.ISERHelloRequired = n.join.ISERHelloRequired
}
