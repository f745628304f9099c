package iser

import "goiwarp/iscsi"

// absence is what becomes of a PDU whose data is not there.
type absence int

const (
	absentError   absence = iota // it is broken
	absentServed                 // it is a command without unsolicited data
	absentIgnored                // it means nothing
)

// absentData handles a control PDU whose header tells of data that the message does not have. libiscsi 1.19, once it has agreed on
// immediate data or on InitialR2T=No, gives its writes the headers that go with it, and Data-Out PDUs too, but leaves all data
// where the Write STag of the command shows it:
//
//	SCSI Command   F=0  DataSegmentLength=8192  Write STag, base at octet 0   | no data
//	Data-Out       F=1  DataSegmentLength=512   BufferOffset=8192             | no data
//
// So the command has no unsolicited data, and such Data-Out PDUs tell nothing. d.mu is held.
func (d *Datamover) absentData(p *iscsi.PDU, msg []byte) absence {
	h := iscsi.BHS(p.BHS[:])
	if !d.target || len(msg) < HeaderLen+iscsi.BHSLen || h.DataLen() == 0 || len(msg) != HeaderLen+iscsi.BHSLen+h.AHSLen() {
		return absentError
	}
	switch {
	case h.Opcode() == iscsi.OpSCSICommand && Header(msg).WriteValid():
		d.emptyData = true
		h.SetDataLen(0)
		iscsi.SCSICommand(h).SetFinal(true)
		p.AHS, p.Data = msg[HeaderLen+iscsi.BHSLen:], nil
		return absentServed
	case h.Opcode() == iscsi.OpDataOut && h.TTT() == iscsi.ReservedTag && d.emptyData:
		return absentIgnored
	}
	return absentError
}
