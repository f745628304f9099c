package scsi

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// MaxSense is the most octets of sense data that a logical unit here sends: few enough for the
// smallest receive buffers of the field (ib_iser's 128 octets).
const MaxSense = 40

// Key is a sense key (SPC-4, table 48).
type Key byte

// The sense keys.
const (
	KeyNoSense        Key = 0x0
	KeyRecoveredError Key = 0x1
	KeyNotReady       Key = 0x2
	KeyMediumError    Key = 0x3
	KeyHardwareError  Key = 0x4
	KeyIllegalRequest Key = 0x5
	KeyUnitAttention  Key = 0x6
	KeyDataProtect    Key = 0x7
	KeyBlankCheck     Key = 0x8
	KeyVendorSpecific Key = 0x9
	KeyCopyAborted    Key = 0xa
	KeyAbortedCommand Key = 0xb
	KeyVolumeOverflow Key = 0xd
	KeyMiscompare     Key = 0xe
	KeyCompleted      Key = 0xf
)

var keyNames = [16]string{
	"NO SENSE", "RECOVERED ERROR", "NOT READY", "MEDIUM ERROR", "HARDWARE ERROR", "ILLEGAL REQUEST",
	"UNIT ATTENTION", "DATA PROTECT", "BLANK CHECK", "VENDOR SPECIFIC", "COPY ABORTED", "ABORTED COMMAND",
	"RESERVED", "VOLUME OVERFLOW", "MISCOMPARE", "COMPLETED",
}

func (k Key) String() string { return keyNames[k&0xf] }

// Sense is sense data, taken apart. AppendFixed and AppendDescriptor write it, ParseSense reads it
// (SPC-4, section 4.5).
type Sense struct {
	Deferred bool // about an earlier command
	Key      Key
	Code     Code

	// Info is the INFORMATION field: for a medium error or a miscompare, where.
	Info      uint64
	InfoValid bool
	// CommandInfo is the COMMAND-SPECIFIC INFORMATION field; 0 if there is none.
	CommandInfo uint64

	// Field points to the octet at fault if FieldValid, in the CDB if InCDB, else in the parameter
	// list; Bit names its highest bit at fault if BitValid.
	FieldValid bool
	InCDB      bool
	BitValid   bool
	Bit        uint8
	Field      uint16

	// Progress is how much of an operation is done, in parts of 65536, if ProgressValid (NOT READY
	// and NO SENSE alone).
	ProgressValid bool
	Progress      uint16
}

func (s *Sense) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %v", s.Key, s.Code)
	if s.Deferred {
		b.WriteString(", deferred")
	}
	if s.InfoValid {
		fmt.Fprintf(&b, ", information %d", s.Info)
	}
	if s.ProgressValid {
		fmt.Fprintf(&b, ", %d%% done", int(s.Progress)*100/65536)
	}
	if s.FieldValid {
		where := "parameter list"
		if s.InCDB {
			where = "CDB"
		}
		fmt.Fprintf(&b, ", octet %d of the %s", s.Field, where)
		if s.BitValid {
			fmt.Fprintf(&b, " bit %d", s.Bit)
		}
	}
	return b.String()
}

// AppendFixed appends fixed format sense data, 18 octets (SPC-4, section 4.5.3):
//
//	 0       1      2      3          7       8          12     13     14    15              18
//	+-------+------+------+----------+-------+----------+------+------+-----+---------------+
//	|V 70/71|  00  | key  |   info   | 0Ah   | cmd info | ASC  | ASCQ | FRU | SKSV C/D field|
//	+-------+------+------+----------+-------+----------+------+------+-----+---------------+
//
// An Info that does not fit into 32 bits is left out and not valid.
func (s *Sense) AppendFixed(dst []byte) []byte {
	var b [18]byte
	b[0] = 0x70
	if s.Deferred {
		b[0] = 0x71
	}
	b[2] = byte(s.Key)
	if s.InfoValid && s.Info <= 0xffffffff {
		b[0] |= 0x80
		binary.BigEndian.PutUint32(b[3:], uint32(s.Info))
	}
	b[7] = byte(len(b) - 8)
	if s.CommandInfo <= 0xffffffff {
		binary.BigEndian.PutUint32(b[8:], uint32(s.CommandInfo))
	}
	b[12], b[13] = s.Code.ASC(), s.Code.ASCQ()
	s.putField(b[15:])
	return append(dst, b[:]...)
}

// AppendDescriptor appends descriptor format sense data, 8 octets and the descriptors that are
// needed, at most 40 (SPC-4, section 4.5.2):
//
//	 0       1      2      3      4             7      8
//	+-------+------+------+------+-------------+------+------------------
//	| 72/73 | key  | ASC  | ASCQ |  00 00 00   | len  | descriptors ...
//	+-------+------+------+------+-------------+------+------------------
func (s *Sense) AppendDescriptor(dst []byte) []byte {
	at := len(dst)
	code := byte(0x72)
	if s.Deferred {
		code = 0x73
	}
	dst = append(dst, code, byte(s.Key), s.Code.ASC(), s.Code.ASCQ(), 0, 0, 0, 0)
	if s.InfoValid {
		dst = append(dst, 0x00, 0x0a, 0x80, 0)
		dst = binary.BigEndian.AppendUint64(dst, s.Info)
	}
	if s.CommandInfo != 0 {
		dst = append(dst, 0x01, 0x0a, 0, 0)
		dst = binary.BigEndian.AppendUint64(dst, s.CommandInfo)
	}
	if s.FieldValid || s.ProgressValid {
		var f [3]byte
		s.putField(f[:])
		dst = append(dst, 0x02, 0x06, 0, 0, f[0], f[1], f[2], 0)
	}
	dst[at+7] = byte(len(dst) - at - 8)
	return dst
}

// putField writes the three sense key specific octets: a field pointer, or how far an operation is
// (SPC-4, section 4.5.2.4).
func (s *Sense) putField(b []byte) {
	if s.ProgressValid {
		b[0] = 0x80
		binary.BigEndian.PutUint16(b[1:], s.Progress)
		return
	}
	if !s.FieldValid {
		return
	}
	b[0] = 0x80
	if s.InCDB {
		b[0] |= 0x40
	}
	if s.BitValid {
		b[0] |= 0x08 | s.Bit&7
	}
	binary.BigEndian.PutUint16(b[1:], s.Field)
}

func (s *Sense) parseField(b []byte) {
	if b[0]&0x80 == 0 {
		return
	}
	switch s.Key {
	case KeyNotReady, KeyNoSense:
		s.ProgressValid, s.Progress = true, binary.BigEndian.Uint16(b[1:])
		return
	case KeyIllegalRequest, KeyCopyAborted:
	default:
		return
	}
	s.FieldValid = true
	s.InCDB = b[0]&0x40 != 0
	if s.BitValid = b[0]&0x08 != 0; s.BitValid {
		s.Bit = b[0] & 7
	}
	s.Field = binary.BigEndian.Uint16(b[1:])
}

// ParseSense reads fixed or descriptor format sense data. Data that was cut short gives what it
// has; ok is false if not even the key is there or the format is unknown.
func ParseSense(b []byte) (s Sense, ok bool) {
	if len(b) == 0 {
		return s, false
	}
	switch b[0] & 0x7f {
	case 0x70, 0x71:
		return parseFixed(b)
	case 0x72, 0x73:
		return parseDescriptor(b)
	}
	return s, false
}

func parseFixed(b []byte) (s Sense, ok bool) {
	if len(b) < 3 {
		return s, false
	}
	s.Deferred = b[0]&0x7f == 0x71
	s.Key = Key(b[2] & 0xf)
	if len(b) >= 7 && b[0]&0x80 != 0 {
		s.Info, s.InfoValid = uint64(binary.BigEndian.Uint32(b[3:])), true
	}
	if len(b) < 8 {
		return s, true
	}
	b = b[:min(len(b), 8+int(b[7]))]
	if len(b) >= 12 {
		s.CommandInfo = uint64(binary.BigEndian.Uint32(b[8:]))
	}
	if len(b) >= 14 {
		s.Code = MakeCode(b[12], b[13])
	}
	if len(b) >= 18 {
		s.parseField(b[15:])
	}
	return s, true
}

func parseDescriptor(b []byte) (s Sense, ok bool) {
	if len(b) < 4 {
		return s, false
	}
	s.Deferred = b[0]&0x7f == 0x73
	s.Key = Key(b[1] & 0xf)
	s.Code = MakeCode(b[2], b[3])
	if len(b) < 8 {
		return s, true
	}
	for d := b[8:min(len(b), 8+int(b[7]))]; len(d) >= 2; {
		n := 2 + int(d[1])
		if n > len(d) {
			break
		}
		switch {
		case d[0] == 0 && n >= 12:
			s.InfoValid = d[2]&0x80 != 0
			s.Info = binary.BigEndian.Uint64(d[4:])
		case d[0] == 1 && n >= 12:
			s.CommandInfo = binary.BigEndian.Uint64(d[4:])
		case d[0] == 2 && n >= 8:
			s.parseField(d[4:])
		}
		d = d[n:]
	}
	return s, true
}
