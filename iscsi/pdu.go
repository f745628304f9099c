package iscsi

// BHSLen is the length of the Basic Header Segment in octets (RFC 7143, section 11.2).
const BHSLen = 48

// PDU is one iSCSI PDU without digests: what passes between the iSCSI layer and a Datamover.
//
//	+--------------------+----------------+---------------------------+
//	| BHS (48)           | AHS (n*4)      | data segment (+pad to 4)  |
//	+--------------------+----------------+---------------------------+
//
// BHS is read and written through the per-opcode views (SCSICommand(p.BHS[:]).CmdSN() ...). The Datamover fills
// TotalAHSLength and DataSegmentLength from AHS and Data when it sends.
type PDU struct {
	BHS  [BHSLen]byte
	AHS  []byte // without padding removed: a multiple of 4 octets
	Data []byte // the data segment, without padding

	// Owner gets the PDU back from Release; nil for PDUs that the garbage collector frees.
	Owner PDUOwner
	// Room is scratch space that a small data segment or AHS may live in, kept with the PDU across reuse.
	Room []byte
	// Handle is the owner's (a receive buffer's index, for one).
	Handle uint64
}

// PDUOwner recycles PDUs.
type PDUOwner interface{ ReleasePDU(p *PDU) }

// Release gives the PDU and the memory of AHS and Data back to where they came from.
func (p *PDU) Release() {
	if p.Owner != nil {
		p.Owner.ReleasePDU(p)
	}
}

// Opcode is the PDU's opcode, without the I bit (RFC 7143, section 11.2.1.2).
func (p *PDU) Opcode() Opcode { return Opcode(p.BHS[0] & 0x3f) }
