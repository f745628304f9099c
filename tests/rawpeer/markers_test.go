package rawpeer

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// markers is one direction of a stream with Markers: at the first octet of full operation and at each 512th behind it, four octets that point
// back to where their FPDU begins (RFC 5044, section 4.3). A nil one has none.
type markers struct {
	at   int // octets of the stream that have passed
	seen int
}

const markerInterval = 512

// wanted are the Markers that a startup frame's sender asks for in what it receives (RFC 5044, section 7.1.1).
func wanted(flags byte) *markers {
	if flags&mpaMarkers == 0 {
		return nil
	}
	return &markers{}
}

// due tells whether the next octet is a Marker's, and what it points back by: to the ULPDU Length field, which began at the octet begin of the
// stream. Ahead of that field it is 0.
func (m *markers) due(begun bool, begin int) (pointer int, due bool) {
	if m == nil || m.at%markerInterval != 0 {
		return 0, false
	}
	if begun {
		pointer = m.at - begin
	}
	return pointer, true
}

func (m *markers) pass(n int) {
	if m != nil {
		m.at += n
	}
}

func (m *markers) note(w *wire, dir string, pointer int) {
	fmt.Fprintf(&w.tr.b, "    %s Marker at octet %d of the stream, FPDUPTR=%d\n", dir, m.at, pointer)
	m.seen++
}

// fpdu frames a ULPDU: Markers where they are due, and a CRC over all of it.
func (m *markers) fpdu(w *wire, ulpdu []byte) []byte {
	body := binary.BigEndian.AppendUint16(nil, uint16(len(ulpdu)))
	body = append(body, ulpdu...)
	for len(body)%4 != 0 {
		body = append(body, 0)
	}
	var b []byte
	begin := 0
	mark := func(begun bool) {
		if pointer, due := m.due(begun, begin); due {
			m.note(w, "->", pointer)
			b = binary.BigEndian.AppendUint16(append(b, 0, 0), uint16(pointer))
			m.pass(4)
		}
	}
	for at := 0; at < len(body); at += 4 {
		mark(at > 0)
		if at == 0 && m != nil {
			begin = m.at
		}
		b = append(b, body[at:at+4]...)
		m.pass(4)
	}
	mark(true)
	m.pass(4)
	return append(b, crc32c(b)...)
}

// take reads an FPDU: its ULPDU, all octets that the CRC covers, and the CRC.
func (m *markers) take(w *wire) (ulpdu, covered, sum []byte) {
	w.t.Helper()
	begin := 0
	unmark := func(begun bool) {
		if pointer, due := m.due(begun, begin); due {
			b := w.take(4)
			require.Equal(w.t, []int{0, pointer}, []int{int(binary.BigEndian.Uint16(b)), int(binary.BigEndian.Uint16(b[2:]))}, "Marker at octet %d", m.at)
			m.note(w, "<-", pointer)
			covered = append(covered, b...)
			m.pass(4)
		}
	}
	length := 4
	var body []byte
	for at := 0; at < length; at += 4 {
		unmark(at > 0)
		if at == 0 && m != nil {
			begin = m.at
		}
		b := w.take(4)
		covered, body = append(covered, b...), append(body, b...)
		m.pass(4)
		if at == 0 {
			length = (2 + int(binary.BigEndian.Uint16(b)) + 3) &^ 3
		}
	}
	unmark(true)
	sum = w.take(4)
	m.pass(4)
	return body[2:][:binary.BigEndian.Uint16(body)], covered, sum
}

// TestMarkerExamples holds this peer's own framing against the two examples of RFC 5044, section 4.4 (figures 5 and 6).
func TestMarkerExamples(t *testing.T) {
	w := &wire{t: t, tr: &transcript{}}
	send := func(msn uint32) []byte {
		g := &segment{op: rdmaSend, last: true, msn: msn, payload: make([]byte, 24)}
		return g.encode()
	}
	m := &markers{}
	b := m.fpdu(w, send(1))
	require.Len(t, b, 52)
	require.Equal(t, []byte{0, 0, 0, 0, 0, 0x2a, 0x41, 0x43}, b[:8])
	require.Equal(t, []byte{0x52, 0x23, 0x99, 0x83}, b[48:])
	m.at = 492
	b = m.fpdu(w, send(2))
	require.Equal(t, []byte{0, 0, 0, 0x14}, b[20:24], "the Marker at octet 512")
	require.Equal(t, []byte{0x84, 0x92, 0x58, 0x98}, b[len(b)-4:])
	w.in, m.at = b, 492
	u, covered, sum := m.take(w)
	require.Equal(t, send(2), u)
	require.Equal(t, crc32c(covered), sum)
	require.Equal(t, 492+len(b), m.at)
}

// TestHandoverMarkers asks the target for Markers (RFC 5044, section 4.3: it MUST send them), with and without RFC 6581's startup.
func TestHandoverMarkers(t *testing.T) {
	for name, start := range map[string]func(w *wire) *stream{
		"Revision1": func(w *wire) *stream { return w.request(mpaCRC|mpaMarkers, 1, nil) },
		"Revision2": func(w *wire) *stream { return w.request(mpaCRC|mpaMarkers|mpaEnhanced, 2, []byte{0, 4, 0, 0}) },
	} {
		t.Run(name, func(t *testing.T) {
			tr := record(t, "RFC 5044, 4.3: the initiator requires Markers behind a login in the byte stream, MPA "+name)
			a := dial(t, tr, "A", serve(t))
			a.offered()
			s := start(a)
			require.NotNil(t, s.back)
			s.disk(pattern(4096, 39))
			require.Greater(t, s.back.seen, 4096/markerInterval)
			a.ended()
		})
	}
}

// TestInitiatorMarkers is a target that requires Markers of iser.
func TestInitiatorMarkers(t *testing.T) {
	tr := record(t, "RFC 5044, 4.3: the target requires Markers; iser --handover writes")
	l := listen(t)
	data := pattern(20480, 13)
	f := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.WriteFile(f, data, 0o600))
	done := client(t, "write", "--handover", url("iser", l.Addr().String()), f)
	g := newTarget(t, tr, l)
	g.rdma = true
	g.send(g.login())
	m := accepting(t, g.startup(mpaRequestKey))
	m[16] |= mpaMarkers
	tr.mpa("->", g.name, m)
	g.write(m)
	g.s = &stream{wire: g.wire, back: wanted(m[16])}
	g.serve()
	require.Greater(t, g.s.back.seen, len(data)/markerInterval)
	g.c.CloseWrite()
	_, log, err := done()
	require.NoError(t, err, log)
	sameData(t, data, g.disk[:len(data)])
}
