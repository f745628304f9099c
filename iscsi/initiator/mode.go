package initiator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"goiwarp/iscsi/scsi"
)

// ModeSense asks for a mode page; control is scsi.ModeCurrent, ModeChangeable, ModeDefault or ModeSaved. With page
// scsi.ModePageAll it asks for all. MODE SENSE(10), or (6) where that is not known (SPC-4, sections 6.14 and 6.15).
func (l *LUN) ModeSense(ctx context.Context, page, subpage byte, control int) (scsi.ModeData, error) {
	const most = 4096
	cdb := scsi.ModeSense10(page, most)
	cdb[2] |= byte(control) << 6
	cdb[3] = subpage
	b, err := l.fetch(ctx, cdb, most)
	if err == nil {
		return scsi.ParseModeSense10(b)
	}
	if !errors.Is(err, scsi.CodeInvalidOpcode.Err()) {
		return scsi.ModeData{}, err
	}
	cdb = scsi.ModeSense6(page, 255)
	cdb[2] |= byte(control) << 6
	cdb[3] = subpage
	if b, err = l.fetch(ctx, cdb, 255); err != nil {
		return scsi.ModeData{}, err
	}
	return scsi.ParseModeSense6(b)
}

// ModeSelect sets one mode page, given whole with its header, as ModeData.Page has it; save asks to keep it over power cycles. It is never
// sent again of itself. MODE SELECT(10), or (6) where that is not known (SPC-4, sections 6.12 and 6.13).
func (l *LUN) ModeSelect(ctx context.Context, page []byte, save bool) error {
	if len(page) < 2 || len(page) > 247 {
		return fmt.Errorf("initiator: mode page of %d octets: want 2 to 247", len(page))
	}
	flags := byte(0x10) // PF: the standard's pages
	if save {
		flags |= 0x01
	}
	list := append(make([]byte, 8, 8+len(page)), page...)
	list[8] &^= 0x80 // PS is reserved here
	cdb := scsi.CDB{scsi.OpModeSelect10, flags}
	binary.BigEndian.PutUint16(cdb[7:], uint16(len(list)))
	err := l.give(ctx, cdb, list)
	if !errors.Is(err, scsi.CodeInvalidOpcode.Err()) {
		return err
	}
	list = list[4:] // the short header
	return l.give(ctx, scsi.CDB{scsi.OpModeSelect6, flags, 4: byte(len(list))}, list)
}

// WriteCache tells whether writes may be answered before they are on stable storage (WCE of the caching page). One without such
// a page counts as having no cache.
func (l *LUN) WriteCache(ctx context.Context) (bool, error) {
	d, err := l.ModeSense(ctx, scsi.ModePageCaching, 0, scsi.ModeCurrent)
	if errors.Is(err, scsi.KeyIllegalRequest.Err()) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	on, _ := d.WriteCache()
	return on, nil
}

// LogPage is one log page (SPC-4, section 7.3).
type LogPage struct {
	Page, Subpage byte
	Params        []LogParameter
}

// LogParameter is one parameter of a log page.
type LogParameter struct {
	Code    uint16
	Control byte
	Value   []byte
}

// Uint is the parameter's value as a counter; that of more than 8 octets is cut to the last 8.
func (p LogParameter) Uint() uint64 {
	var n uint64
	for _, b := range p.Value {
		n = n<<8 | uint64(b)
	}
	return n
}

// LogSense asks for a log page's cumulative values; page 0 lists the pages: one octet each, as a single parameter's value (SPC-4,
// section 6.9).
func (l *LUN) LogSense(ctx context.Context, page, subpage byte) (LogPage, error) {
	const most = 16 << 10
	cdb := scsi.CDB{scsi.OpLogSense, 0, 0x40 | page&0x3f, subpage}
	binary.BigEndian.PutUint16(cdb[7:], most)
	b, err := l.fetch(ctx, cdb, most)
	if err != nil {
		return LogPage{}, err
	}
	return parseLog(b)
}

// parseLog reads a log page: a header of 4 octets, then parameters of code (2), control (1), length (1) and value.
func parseLog(b []byte) (LogPage, error) {
	if len(b) < 4 {
		return LogPage{}, shortData("LOG SENSE data", len(b), 4)
	}
	p := LogPage{Page: b[0] & 0x3f}
	if b[0]&0x40 != 0 {
		p.Subpage = b[1]
	}
	b = b[4:min(len(b), 4+int(binary.BigEndian.Uint16(b[2:])))]
	if p.Page == 0 {
		p.Params = []LogParameter{{Value: b}}
		return p, nil
	}
	for len(b) >= 4 {
		n := 4 + int(b[3])
		if n > len(b) {
			break
		}
		p.Params = append(p.Params, LogParameter{Code: binary.BigEndian.Uint16(b), Control: b[2], Value: b[4:n]})
		b = b[n:]
	}
	return p, nil
}

// give runs a command that hands in a parameter list.
func (l *LUN) give(ctx context.Context, cdb scsi.CDB, list []byte) error {
	r := l.pool.get()
	defer l.pool.put(r)
	r.CDB = cdb
	r.useOut(list)
	return l.whole(ctx, r)
}

func shortData(what string, have, need int) error {
	return &scsi.DataError{What: what, Why: fmt.Sprintf("%d octets, must be at least %d", have, need)}
}
