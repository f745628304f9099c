package iscsi

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSNWrapsAround(t *testing.T) { // RFC 7143, section 4.2.2
	for _, tc := range []struct {
		a, b SN
		less bool
	}{
		{0, 1, true},
		{1, 0, false},
		{5, 5, false},
		{0xffffffff, 0, true},
		{0, 0xffffffff, false},
		{0xfffffff0, 0x10, true},
		{0, 1<<31 - 1, true},
		{0, 1 << 31, false},
		{1 << 31, 0, false},
	} {
		require.Equal(t, tc.less, tc.a.Less(tc.b), "%d < %d", tc.a, tc.b)
		require.Equal(t, tc.less || tc.a == tc.b, tc.a.LessEqual(tc.b))
	}
	require.True(t, SN(3).In(3, 3))
	require.True(t, SN(1).In(0xfffffffe, 2))
	require.False(t, SN(3).In(0xfffffffe, 2))
	require.False(t, SN(7).In(7, 6), "a closed window has no number")
	require.False(t, SN(6).In(7, 6))
}

func TestDigestIsCRC32CLowOctetFirst(t *testing.T) { // RFC 7143, appendix A.4
	up := make([]byte, 32)
	for i := range up {
		up[i] = byte(i)
	}
	for want, in := range map[string][]byte{
		"aa36918a": make([]byte, 32),
		"43aba862": bytes.Repeat([]byte{0xff}, 32),
		"4e79dd46": up,
	} {
		require.Equal(t, want, hex.EncodeToString(AppendDigest(nil, Digest(0, in))))
		require.True(t, DigestOK(AppendDigest(nil, Digest(Digest(0, in[:5]), in[5:])), Digest(0, in)))
	}
}

func TestPDUSurvivesTheStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &PDU{
			AHS:  make([]byte, 4*rapid.IntRange(0, 20).Draw(t, "ahs")),
			Data: rapid.SliceOfN(rapid.Byte(), 0, 70).Draw(t, "data"),
		}
		SCSICommand(p.BHS[:]).Init()
		hd, dd := rapid.Bool().Draw(t, "hd"), rapid.Bool().Draw(t, "dd")
		b, err := AppendPDU(nil, p, hd, dd)
		require.NoError(t, err)
		require.Equal(t, FrameOf(b, hd, dd).Total(), len(b))
		q, n, err := DecodePDU(append(b, 1, 2, 3), hd, dd, 70)
		require.NoError(t, err)
		require.Equal(t, len(b), n)
		require.Equal(t, p.BHS, q.BHS)
		require.True(t, bytes.Equal(p.AHS, q.AHS) && bytes.Equal(p.Data, q.Data))
		for cut := range b {
			_, _, err := DecodePDU(b[:cut], hd, dd, 70)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, "cut at %d", cut)
		}
		// One flipped bit in what a digest covers is found by that digest.
		at, bit := rapid.IntRange(0, len(b)-1).Draw(t, "at"), byte(1)<<rapid.IntRange(0, 7).Draw(t, "bit")
		b[at] ^= bit
		_, _, err = DecodePDU(append(b, make([]byte, 1<<10)...), hd, dd, MaxDataSegment)
		f := FrameOf(b, hd, dd)
		switch {
		case hd && at >= 8 && at < f.Header():
			require.ErrorIs(t, err, ErrHeaderDigest)
		case hd && at < 8:
			require.True(t, errors.Is(err, ErrHeaderDigest) || errors.Is(err, io.ErrUnexpectedEOF))
		case dd && at >= f.Header():
			require.ErrorIs(t, err, ErrDataDigest)
		}
	})
}

func TestPDUTooLongIsRefused(t *testing.T) {
	_, err := AppendPDU(nil, &PDU{AHS: make([]byte, MaxAHS+4)}, false, false)
	require.ErrorIs(t, err, ErrTooLong)
	_, err = AppendPDU(nil, &PDU{AHS: make([]byte, 3)}, false, false)
	require.ErrorIs(t, err, ErrTooLong)
	_, err = AppendPDU(nil, &PDU{Data: make([]byte, MaxDataSegment+1)}, false, false)
	require.ErrorIs(t, err, ErrTooLong)
	b, err := AppendPDU(nil, &PDU{Data: make([]byte, 513)}, false, false)
	require.NoError(t, err)
	_, _, err = DecodePDU(b, false, false, 512)
	require.ErrorIs(t, err, ErrTooLong)
}

func TestAHSRoundTrip(t *testing.T) {
	cdb := make([]byte, 32)
	for i := range cdb {
		cdb[i] = byte(i)
	}
	b := AppendBidiReadLen(AppendExtendedCDB(nil, cdb), 4096)
	require.Equal(t, "00110100"+"101112131415161718191a1b1c1d1e1f"+"00050200"+"00001000", hex.EncodeToString(b))
	a, err := ParseAHS(b)
	require.NoError(t, err)
	require.Equal(t, AHS{CDB: cdb[16:], BidiReadLen: 4096, HasBidi: true}, a)
	require.Empty(t, AppendExtendedCDB(nil, cdb[:16]))
	a, err = ParseAHS(AppendExtendedCDB(nil, cdb[:17])) // padded by three octets
	require.NoError(t, err)
	require.Equal(t, []byte{16}, a.CDB)
}

func TestBadAHS(t *testing.T) {
	for name, digits := range map[string]string{
		"cut":             "0011",
		"longer than PDU": "00110100",
		"empty CDB":       "00010100",
		"short length":    "0004020000000000",
		"two CDBs":        "0002010010000000" + "0002010010000000",
		"two lengths":     "0005020000001000" + "0005020000001000",
	} {
		b, err := hex.DecodeString(digits)
		require.NoError(t, err)
		_, err = ParseAHS(b)
		require.ErrorIs(t, err, ErrAHS, name)
	}
	_, err := ParseAHS(append([]byte{0x01, 0x00, 0x01, 0x00}, make([]byte, 255)...))
	require.ErrorIs(t, err, ErrAHS, "CDB beyond 260")
	unknown, err := ParseAHS([]byte{0, 1, 0x3f, 0, 0, 5, 2, 0, 0, 0, 0, 9})
	require.NoError(t, err, "a type that nobody knows is passed over")
	require.EqualValues(t, 9, unknown.BidiReadLen)
}

func TestValidateNamesTheFault(t *testing.T) {
	cmd := func(f func(SCSICommand)) *PDU {
		p := new(PDU)
		c := SCSICommand(p.BHS[:])
		c.Init()
		c.SetFinal(true)
		f(c)
		return p
	}
	raw := func(hex0 ...byte) *PDU {
		p := new(PDU)
		copy(p.BHS[:], hex0)
		return p
	}
	with := func(p *PDU, f func(*PDU)) *PDU { f(p); return p }
	for name, tc := range map[string]struct {
		p      *PDU
		from   bool // initiator
		reason RejectReason
	}{
		"target's opcode from an initiator": {raw(0x21), true, RejectProtocolError},
		"initiator's opcode from a target":  {raw(0x01), false, RejectProtocolError},
		"unknown request":                   {raw(0x1c), true, RejectNotSupported},
		"unknown response":                  {raw(0x3c), false, RejectNotSupported},
		"AHS of a ping":                     {with(raw(0x40, 0x80), func(p *PDU) { p.AHS = make([]byte, 4) }), true, RejectInvalidField},
		"ping without F":                    {raw(0x40, 0), true, RejectInvalidField},
		"ping with reserved ITT, not immediate": {with(raw(0, 0x80), func(p *PDU) {
			NOPOut(p.BHS[:]).SetITT(ReservedTag)
		}), true, RejectInvalidField},
		"command with reserved ITT":   {cmd(func(c SCSICommand) { c.SetITT(ReservedTag) }), true, RejectInvalidField},
		"command with attribute 5":    {cmd(func(c SCSICommand) { c.SetAttr(5) }), true, RejectInvalidField},
		"command without F and W":     {cmd(func(c SCSICommand) { c.SetFinal(false) }), true, RejectInvalidField},
		"immediate data of a read":    {with(cmd(func(c SCSICommand) { c.SetRead(true) }), func(p *PDU) { p.Data = []byte{1} }), true, RejectInvalidField},
		"broken AHS":                  {with(cmd(func(SCSICommand) {}), func(p *PDU) { p.AHS = []byte{0, 9, 1, 0} }), true, RejectInvalidField},
		"bidi length of a read":       {with(cmd(func(c SCSICommand) { c.SetRead(true) }), func(p *PDU) { p.AHS = AppendBidiReadLen(nil, 1) }), true, RejectInvalidField},
		"task management without F":   {raw(0x42, 0x01), true, RejectInvalidField},
		"login with T and C":          {raw(0x43, 0xc0), true, RejectProtocolError},
		"login of stage 2":            {raw(0x43, 0x08), true, RejectProtocolError},
		"login to stage 2":            {raw(0x43, 0x82), true, RejectProtocolError},
		"login backwards":             {raw(0x43, 0x84), true, RejectProtocolError},
		"text with F and C":           {raw(0x04, 0xc0), true, RejectProtocolError},
		"logout for reason 3":         {raw(0x06, 0x83), true, RejectInvalidField},
		"SNACK of type 4":             {raw(0x10, 0x84), true, RejectInvalidField},
		"DataACK without TTT":         {with(raw(0x10, 0x82), func(p *PDU) { SNACKRequest(p.BHS[:]).SetTTT(ReservedTag) }), true, RejectInvalidField},
		"Status SNACK with ITT":       {raw(0x10, 0x81), true, RejectInvalidField},
		"ping answer with both tags":  {raw(0x20, 0x80), false, RejectInvalidField},
		"over- and underflow":         {raw(0x21, 0x86), false, RejectInvalidField},
		"half a sense length":         {with(raw(0x21, 0x80), func(p *PDU) { p.Data = []byte{0} }), false, RejectInvalidField},
		"sense beyond the segment":    {with(raw(0x21, 0x80), func(p *PDU) { p.Data = []byte{0, 3, 1, 2} }), false, RejectInvalidField},
		"R2T for nothing":             {raw(0x31, 0x80), false, RejectInvalidField},
		"Data-In with S but not F":    {raw(0x25, 0x01), false, RejectInvalidField},
		"final text answer with TTT":  {raw(0x24, 0x80), false, RejectInvalidField},
		"open text answer, no TTT":    {with(raw(0x24, 0), func(p *PDU) { TextResponse(p.BHS[:]).SetTTT(ReservedTag) }), false, RejectInvalidField},
		"response with reserved ITT":  {with(raw(0x21, 0x80), func(p *PDU) { SCSIResponse(p.BHS[:]).SetITT(ReservedTag) }), false, RejectInvalidField},
		"logout answer, reserved ITT": {with(raw(0x26, 0x80), func(p *PDU) { LogoutResponse(p.BHS[:]).SetITT(ReservedTag) }), false, RejectInvalidField},
	} {
		t.Run(name, func(t *testing.T) {
			err := Validate(tc.p, tc.from)
			var pe *ProtocolError
			require.ErrorAs(t, err, &pe)
			require.Equal(t, tc.reason, pe.Reason, "%v", err)
			require.Equal(t, tc.p.Opcode(), pe.Opcode)
		})
	}
}

func TestSenseDataIsCutToWhatThereIs(t *testing.T) {
	require.Nil(t, SenseData(nil))
	require.Nil(t, SenseData([]byte{0}))
	require.Nil(t, SenseData([]byte{0, 0, 1}))
	require.Equal(t, []byte{1}, SenseData([]byte{0, 9, 1}))
	require.Equal(t, []byte{0x70, 0}, SenseData(AppendSense(nil, []byte{0x70, 0})))
}

func FuzzDecodePDU(f *testing.F) {
	for _, c := range readCaptured(f, "linux-iser.txt")[:6] {
		f.Add(c.bytes, false, false)
	}
	for _, c := range readCaptured(f, "linux-bhs.txt") {
		f.Add(c.bytes, true, true)
	}
	f.Fuzz(func(t *testing.T, b []byte, hd, dd bool) {
		p, n, err := DecodePDU(b, hd, dd, 1<<16)
		if err != nil {
			return
		}
		if n > len(b) {
			t.Fatalf("%d of %d octets", n, len(b))
		}
		_ = BHS(p.BHS[:]).String()
		_ = Validate(&p, true)
		_ = Validate(&p, false)
		_ = SenseData(p.Data)
		out, err := AppendPDU(nil, &p, hd, dd)
		if err != nil {
			t.Fatal(err)
		}
		q, _, err := DecodePDU(out, hd, dd, 1<<16)
		if err != nil || q.BHS != p.BHS || !bytes.Equal(q.AHS, p.AHS) || !bytes.Equal(q.Data, p.Data) {
			t.Fatalf("not stable: %v", err)
		}
	})
}

func FuzzParseAHS(f *testing.F) {
	f.Add(AppendBidiReadLen(AppendExtendedCDB(nil, make([]byte, 32)), 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, err := ParseAHS(b); err == nil && len(a.CDB) > MaxCDBLen-CDBLen {
			t.Fatalf("CDB of %d octets more", len(a.CDB))
		}
	})
}
