package initiator

import (
	"context"
	"encoding/binary"
	"errors"

	"goiwarp/iscsi/scsi"
)

// Capacity asks for the logical unit's size, anew each time: READ CAPACITY(16), or (10) where that is not known.
func (l *LUN) Capacity(ctx context.Context) (scsi.Capacity, error) {
	b, err := l.fetch(ctx, scsi.ReadCapacity16(), 32)
	if err == nil {
		return scsi.ParseReadCapacity16(b)
	}
	if !errors.Is(err, scsi.KeyIllegalRequest.Err()) {
		return scsi.Capacity{}, err
	}
	if b, err = l.fetch(ctx, scsi.ReadCapacity10(), 8); err != nil {
		return scsi.Capacity{}, err
	}
	return scsi.ParseReadCapacity10(b)
}

// Inquiry asks for the standard INQUIRY data (SPC-4, section 6.6.2).
func (l *LUN) Inquiry(ctx context.Context) (scsi.InquiryData, error) {
	b, err := l.fetch(ctx, scsi.Inquiry(255), 255)
	if err != nil {
		return scsi.InquiryData{}, err
	}
	return scsi.ParseInquiry(b)
}

// VPD asks for a vital product data page, as it is: with its header of 4 octets.
func (l *LUN) VPD(ctx context.Context, page byte) ([]byte, error) {
	return l.fetch(ctx, scsi.InquiryVPD(page, 4096), 4096)
}

// vpd asks for a page and reads it.
func vpd[T any](ctx context.Context, l *LUN, page byte, parse func([]byte) (T, error)) (T, error) {
	b, err := l.VPD(ctx, page)
	if err != nil {
		var none T
		return none, err
	}
	return parse(b)
}

// VPDPages asks which VPD pages there are (page 00h).
func (l *LUN) VPDPages(ctx context.Context) ([]byte, error) {
	return vpd(ctx, l, scsi.PageSupported, scsi.ParseSupportedPages)
}

// Serial asks for the unit serial number (VPD page 80h).
func (l *LUN) Serial(ctx context.Context) (string, error) {
	return vpd(ctx, l, scsi.PageSerial, scsi.ParseSerial)
}

// Designators asks for the names of the logical unit, its port and its device (VPD page 83h).
func (l *LUN) Designators(ctx context.Context) ([]scsi.Designator, error) {
	return vpd(ctx, l, scsi.PageIdentification, scsi.ParseIdentification)
}

// Limits asks for the block limits (VPD page B0h).
func (l *LUN) Limits(ctx context.Context) (scsi.BlockLimits, error) {
	return vpd(ctx, l, scsi.PageBlockLimits, scsi.ParseBlockLimits)
}

// RotationRate asks for the medium's rotation rate (VPD page B1h): 0 is not told, 1 non-rotating, else revolutions a minute.
func (l *LUN) RotationRate(ctx context.Context) (uint16, error) {
	return vpd(ctx, l, scsi.PageCharacteristic, scsi.ParseCharacteristics)
}

// Provisioning asks what the logical unit does about blocks that are not used (VPD page B2h).
func (l *LUN) Provisioning(ctx context.Context) (scsi.ProvisioningData, error) {
	return vpd(ctx, l, scsi.PageProvisioning, scsi.ParseProvisioning)
}

// RequestSense asks for what the logical unit has to tell without a command having failed, such as the progress of a format
// (SPC-4, section 6.39). NO SENSE is the usual answer.
func (l *LUN) RequestSense(ctx context.Context) (scsi.Sense, error) {
	b, err := l.fetch(ctx, scsi.RequestSense(maxSense), maxSense)
	if err != nil {
		return scsi.Sense{}, err
	}
	s, ok := scsi.ParseSense(b)
	if !ok {
		return s, &scsi.DataError{What: "REQUEST SENSE data", Why: "no sense data"}
	}
	return s, nil
}

// StartStop is START STOP UNIT.
func (l *LUN) StartStop(ctx context.Context, start bool) error {
	return l.simple(ctx, scsi.StartStop(start))
}

// SupportedCommand is one entry of REPORT SUPPORTED OPERATION CODES.
type SupportedCommand struct {
	Opcode byte
	// Action is the service action if HasAction is set.
	Action    uint16
	HasAction bool
	// Len is the CDB's length in octets.
	Len int
}

// Name is the command's name, or its operation code in hexadecimal.
func (c SupportedCommand) Name() string {
	cdb := scsi.CDB{c.Opcode}
	if c.HasAction {
		cdb[1] = byte(c.Action) & 0x1f
	}
	return scsi.OpcodeName(cdb[:])
}

// SupportedCommands asks for the commands that the logical unit knows (SPC-4, section 6.35).
func (l *LUN) SupportedCommands(ctx context.Context) ([]SupportedCommand, error) {
	const most = 16 << 10
	b, err := l.fetch(ctx, scsi.ReportSupportedOpcodes(most), most)
	if err != nil {
		return nil, err
	}
	return parseSupported(b)
}

// parseSupported reads the all commands format: a length of 4 octets and descriptors of 8, or of 20 with timeouts.
func parseSupported(b []byte) ([]SupportedCommand, error) {
	if len(b) < 4 {
		return nil, shortData("REPORT SUPPORTED OPERATION CODES data", len(b), 4)
	}
	b = b[4:min(uint64(len(b)), 4+uint64(binary.BigEndian.Uint32(b)))]
	var list []SupportedCommand
	for len(b) >= 8 {
		c := SupportedCommand{
			Opcode: b[0], Action: binary.BigEndian.Uint16(b[2:]), HasAction: b[5]&0x01 != 0,
			Len: int(binary.BigEndian.Uint16(b[6:])),
		}
		n := 8
		if b[5]&0x02 != 0 {
			n = min(8+12, len(b))
		}
		list, b = append(list, c), b[n:]
	}
	return list, nil
}
