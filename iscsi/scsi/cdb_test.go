package scsi_test

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/assert"

	"goiwarp/iscsi/scsi"
)

func TestCDBs(t *testing.T) {
	for want, c := range map[string]scsi.CDB{
		"000000000000":                     scsi.TestUnitReady(),
		"030000001200":                     scsi.RequestSense(18),
		"120000002400":                     scsi.Inquiry(36),
		"120183010000":                     scsi.InquiryVPD(0x83, 256),
		"1a0008000400":                     scsi.ModeSense6(8, 4),
		"5a003f00000000010000":             scsi.ModeSense10(0x3f, 256),
		"151000001800":                     scsi.ModeSelect6(24),
		"160000000000":                     scsi.Reserve6(),
		"170000000000":                     scsi.Release6(),
		"1b0000000100":                     scsi.StartStop(true),
		"25000000000000000000":             scsi.ReadCapacity10(),
		"9e100000000000000000000000200000": scsi.ReadCapacity16(),
		"28080102030400000500":             scsi.Read(0x01020304, 5, scsi.FUA),
		"28 00ffffffff00ffff00":            scsi.Read(0xffffffff, 0xffff, 0),
		"88000000000100000000000000010000": scsi.Read(1<<32, 1, 0),
		"88000000000000000000000100000000": scsi.Read(0, 0x10000, 0),
		"88000000000000000007000000010000": scsi.Read16(7, 1, 0),
		"2a180000000900000100":             scsi.Write(9, 1, scsi.FUA|scsi.DPO),
		"8a000000000000000009000000010000": scsi.Write16(9, 1, 0),
		"2f020000000900000100":             scsi.Verify(9, 1, scsi.VerifyData),
		"2f060000000900000100":             scsi.Verify(9, 1, scsi.VerifySame),
		"35000000000000000000":             scsi.SynchronizeCache(0, 0),
		"34020000000100000200":             scsi.PreFetch(1, 2, true),
		"90000000000100000000000000020000": scsi.PreFetch(1<<32, 2, false),
		"93080000000000000009000000100000": scsi.WriteSame(9, 16, true),
		"93010000000000000009000000100000": scsi.WriteZeroes(9, 16, false),
		"42000000000000002800":             scsi.Unmap(2),
		"89000000000000000009000000010000": scsi.CompareAndWrite(9, 1, 0),
		"a00000000000000004000000":         scsi.ReportLUNs(1024),
		"a30c00000000000010000000":         scsi.ReportSupportedOpcodes(4096),
		"9e120000000000000009000002000000": scsi.GetLBAStatus(9, 512),
	} {
		raw, err := hex.DecodeString(strip(want))
		assert.NoError(t, err)
		assert.Equal(t, raw, c.Append(nil), want)
		assert.Equal(t, raw, c.Bytes())
	}
	list := scsi.AppendUnmap([]byte{0xee}, []scsi.Extent{{LBA: 0x0102, Blocks: 3}})
	assert.Equal(t, "ee0016001000000000"+"0000000000000102"+"0000000300000000", hex.EncodeToString(list))
}

func strip(s string) string {
	var b []byte
	for i := range len(s) {
		if s[i] != ' ' {
			b = append(b, s[i])
		}
	}
	return string(b)
}

func TestBuildingAllocatesNothing(t *testing.T) {
	var dst [16]byte
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		c := scsi.Read(1<<33, 8, scsi.FUA)
		if len(c.Append(dst[:0])) != 16 {
			t.Fatal("wrong length")
		}
	}))
}
