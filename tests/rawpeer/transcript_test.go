package rawpeer

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the transcripts in testdata anew")

// shownData is how many octets of a data segment a transcript shows; the rest is there as a checksum.
const shownData = 64

// transcript keeps what passed, in words and octets.
type transcript struct {
	b bytes.Buffer
	// numbered are the values that the other end chose freely, by kind, in the order of their appearance.
	numbered map[string]map[uint64]uint64
	// sn, if set, blanks ExpCmdSN and MaxCmdSN: commands run at the same time and their order of completion is free.
	blankSN bool
	// kept, if set, is all that is compared: see rest.
	kept []byte
}

// record starts the transcript of a scenario; at the end of the test it is compared with the one on file.
func record(t *testing.T, title string) *transcript {
	tr := &transcript{numbered: map[string]map[uint64]uint64{}}
	fmt.Fprintf(&tr.b, "%s\n", title)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("what passed:\n%s", tr.b.String())
			return
		}
		got := tr.b.Bytes()
		if tr.kept != nil {
			got = tr.kept
		}
		name := filepath.Join("testdata", strings.NewReplacer("Test", "", "/", "-").Replace(t.Name())+".txt")
		if *update {
			require.NoError(t, os.WriteFile(name, got, 0o644))
			return
		}
		want, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), "what passed is not what %s has", name)
	})
	return tr
}

// note writes what the script does besides sending and receiving.
func (tr *transcript) note(format string, args ...any) {
	fmt.Fprintf(&tr.b, "\n# "+format+"\n", args...)
}

// rest ends what is kept of the transcript, where what follows depends on which end is faster.
func (tr *transcript) rest(why string) {
	tr.note("%s", why)
	tr.kept = append([]byte(nil), tr.b.Bytes()...)
}

// number is the place of v among the values of its kind, from 1; what has a meaning by itself (0, FFFFFFFFh) stays.
func (tr *transcript) number(kind string, v uint64) uint64 {
	if v == 0 || v == none {
		return v
	}
	m := tr.numbered[kind]
	if m == nil {
		m = map[uint64]uint64{}
		tr.numbered[kind] = m
	}
	if _, ok := m[v]; !ok {
		m[v] = uint64(len(m) + 1)
	}
	return m[v]
}

func (tr *transcript) hex(at int, b []byte) {
	for i := 0; i < len(b); i += 16 {
		fmt.Fprintf(&tr.b, "    %04x  % x\n", at+i, b[i:min(i+16, len(b))])
	}
}

func (tr *transcript) payload(what string, b []byte) {
	if len(b) == 0 {
		return
	}
	fmt.Fprintf(&tr.b, "    %s, %d octets, CRC32c %08x\n", what, len(b), crc32.Checksum(b, castagnoli))
	tr.hex(0, b[:min(len(b), shownData)])
	if len(b) > shownData {
		fmt.Fprintf(&tr.b, "    ...\n")
	}
}

// digests says which digests a PDU had, and whether they were made wrong.
func digests(p *pdu, hd, dd bool) string {
	var s string
	word := func(name string, bad bool) {
		if bad {
			s += " " + name + "-Digest=wrong"
		} else {
			s += " " + name + "-Digest=ok"
		}
	}
	if hd {
		word("Header", p.damage&damageHeader != 0)
	}
	if dd && len(p.data) > 0 {
		word("Data", p.damage&damageData != 0)
	}
	return s
}

// pdu writes a PDU: the fields of its header, the header with the free numbers replaced, its data. statBase is the StatSN that the
// connection's target began with.
func (tr *transcript) pdu(dir, conn string, p *pdu, hd, dd bool, statBase uint32) {
	q := *p
	fromTarget := q.op()&0x20 != 0
	switch {
	case fromTarget && (q.op() != opDataIn || q.bhs[1]&1 != 0):
		q.set32(24, q.u32(24)-statBase+1)
	case !fromTarget && q.u32(28) != 0:
		q.set32(28, q.u32(28)-statBase+1)
	}
	switch q.op() {
	case opDataIn, opR2T, opDataOut, opNopIn, opNopOut, opTextReq, opTextResp:
		q.set32(20, uint32(tr.number("TTT", uint64(q.u32(20)))))
	case opSNACK:
		if q.bhs[1]&0xf == snackDataACK {
			q.set32(20, uint32(tr.number("TTT", uint64(q.u32(20)))))
			q.set32(40, q.u32(40))
		}
		if q.bhs[1]&0xf == snackStatus && q.u32(40) != 0 {
			q.set32(40, q.u32(40)-statBase+1)
		}
	case opLoginReq, opLoginResp:
		binary.BigEndian.PutUint16(q.bhs[14:], uint16(tr.number("TSIH", uint64(q.u16(14)))))
		if dir == "->" && !fromTarget || dir == "<-" && fromTarget {
			break
		}
		copy(q.bhs[8:14], make([]byte, 6)) // an ISID that the program chose
	}
	if fromTarget && tr.blankSN {
		q.set32(28, 0)
		q.set32(32, 0)
		if q.op() == opSCSIResp || q.op() == opR2T || q.op() == opDataIn {
			q.set32(24, 0)
		}
	}
	data := q.data
	if q.op() == opReject && len(data) >= 48 { // the header of a PDU of ours, with numbers that the target chose in it
		h := &pdu{}
		copy(h.bhs[:], data)
		if h.op() == opDataOut {
			h.set32(20, uint32(tr.number("TTT", uint64(h.u32(20)))))
		}
		if h.op() == opSNACK && h.bhs[1]&0xf == snackStatus && h.u32(40) != 0 {
			h.set32(40, h.u32(40)-statBase+1)
		}
		if h.u32(28) != 0 {
			h.set32(28, h.u32(28)-statBase+1)
		}
		data = append(append([]byte(nil), h.bhs[:]...), data[48:]...)
	}
	fmt.Fprintf(&tr.b, "\n%s %s %s%s\n", dir, conn, q.describe(), digests(p, hd, dd))
	tr.hex(0, q.bhs[:])
	switch q.op() {
	case opLoginReq, opLoginResp, opTextReq, opTextResp:
		for pair := range strings.SplitSeq(string(data), "\x00") {
			if pair != "" {
				fmt.Fprintf(&tr.b, "    %s\n", pair)
			}
		}
	default:
		tr.payload("data", data)
	}
}
