package rawpeer

import (
	"bytes"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// wire is one TCP connection, from either end. Its methods fail the test when something else comes than the script says.
type wire struct {
	t    *testing.T
	tr   *transcript
	name string
	c    *net.TCPConn
	// hd and dd: the digests that are on.
	hd, dd bool
	// statBase is the StatSN of the first Login Response, expStatSN the next one that the target will use.
	statBase, expStatSN uint32
	// holdStatus keeps ExpStatSN where it is: statuses that come are not acknowledged.
	holdStatus bool
	// cut, if set, lets write hand the octets over in pieces of so many, each a TCP segment of its own.
	cut int
	in  []byte // octets read and not taken yet
	// lied: the other end may have closed already, and writing may fail.
	lied bool
}

func dial(t *testing.T, tr *transcript, name, addr string) *wire {
	t.Helper()
	d := net.Dialer{Timeout: patience}
	c, err := d.DialContext(t.Context(), "tcp", addr)
	require.NoError(t, err)
	w := &wire{t: t, tr: tr, name: name, c: c.(*net.TCPConn)}
	t.Cleanup(func() { c.Close() })
	return w
}

func accept(t *testing.T, tr *transcript, name string, l *net.TCPListener) *wire {
	t.Helper()
	l.SetDeadline(time.Now().Add(patience))
	c, err := l.AcceptTCP()
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return &wire{t: t, tr: tr, name: name, c: c}
}

func (w *wire) write(b []byte) {
	w.t.Helper()
	w.c.SetWriteDeadline(time.Now().Add(patience))
	step := len(b)
	if w.cut > 0 {
		step = w.cut
	}
	for len(b) > 0 {
		n := min(step, len(b))
		_, err := w.c.Write(b[:n])
		if err != nil && w.lied {
			return
		}
		require.NoError(w.t, err, "writing on %s", w.name)
		b = b[n:]
	}
}

func (w *wire) fill(n int) error {
	if len(w.in) >= n {
		return nil
	}
	w.c.SetReadDeadline(time.Now().Add(patience))
	buf := make([]byte, 64<<10)
	for len(w.in) < n {
		k, err := w.c.Read(buf)
		w.in = append(w.in, buf[:k]...)
		if err != nil && len(w.in) < n {
			return err
		}
	}
	return nil
}

func (w *wire) take(n int) []byte {
	w.t.Helper()
	err := w.fill(n)
	require.NoError(w.t, err, "waiting for %d octets on %s, have %d: % x", n, w.name, len(w.in), w.in)
	b := w.in[:n:n]
	w.in = w.in[n:]
	return b
}

// encode fills in ExpStatSN, records the PDU and gives its octets.
func (w *wire) encode(p *pdu) []byte {
	if p.op()&0x20 == 0 && w.expStatSN != 0 && p.u32(28) == 0 {
		p.set32(28, w.expStatSN)
	}
	w.tr.pdu("->", w.name, p, w.hd, w.dd, w.statBase)
	return p.encode(w.hd, w.dd)
}

// send sends PDUs, all in one TCP segment.
func (w *wire) send(ps ...*pdu) {
	w.t.Helper()
	var b []byte
	for _, p := range ps {
		b = append(b, w.encode(p)...)
	}
	w.write(b)
}

// receive reads the next PDU and keeps it for the transcript.
func (w *wire) receive() *pdu {
	w.t.Helper()
	p := w.receiveQuietly()
	w.tr.pdu("<-", w.name, p, w.hd, w.dd, w.statBase)
	return p
}

func (w *wire) receiveQuietly() *pdu {
	w.t.Helper()
	p := &pdu{}
	copy(p.bhs[:], w.take(48))
	p.ahs = w.take(4 * int(p.bhs[4]))
	if w.hd {
		require.Equal(w.t, crc32c(p.bhs[:], p.ahs), w.take(4), "header digest of %s", p.describe())
	}
	n := int(p.bhs[5])<<16 | int(p.bhs[6])<<8 | int(p.bhs[7])
	seg := w.take((n + 3) &^ 3)
	require.Equal(w.t, make([]byte, len(seg)-n), seg[n:], "padding of %s", p.describe())
	p.data = seg[:n]
	if w.dd && n > 0 {
		require.Equal(w.t, crc32c(seg), w.take(4), "data digest of %s", p.describe())
	}
	if p.op()&0x20 != 0 {
		w.numbers(p)
	}
	return p
}

// numbers follows StatSN as an initiator does (RFC 7143, section 4.2.2.2).
func (w *wire) numbers(p *pdu) {
	switch {
	case p.op() == opLoginResp && p.bhs[36] != 0, p.op() == opDataIn && p.bhs[1]&1 == 0:
		return
	case p.op() == opLoginResp && w.statBase == 0:
		w.statBase = p.statSN()
	case p.op() == opR2T, p.op() == opNopIn && p.itt() == none:
		return
	}
	if !w.holdStatus && (w.expStatSN == 0 || p.statSN() == w.expStatSN) {
		w.expStatSN = p.statSN() + 1
	}
}

// want reads the next PDU and insists on its opcode.
func (w *wire) want(op byte) *pdu {
	w.t.Helper()
	p := w.receive()
	require.Equal(w.t, opNames[op], opNames[p.op()], "on %s: % x", w.name, p.bhs)
	return p
}

// good reads a SCSI Response that ends a command with GOOD.
func (w *wire) good(itt uint32) *pdu {
	w.t.Helper()
	p := w.want(opSCSIResp)
	require.Equal(w.t, itt, p.itt())
	require.Equal(w.t, [2]byte{0, 0}, [2]byte(p.bhs[2:4]), "response and status of %08x, sense % x", itt, p.data)
	return p
}

// dataIn reads Data-In PDUs up to the command's status, in the last one of them or in a Response behind them, and returns the data.
func (w *wire) dataIn(itt uint32, edtl int) []byte {
	w.t.Helper()
	buf := make([]byte, edtl)
	for {
		p := w.receive()
		require.Equal(w.t, itt, p.itt())
		if p.op() == opSCSIResp {
			require.Equal(w.t, byte(0), p.bhs[3], "status, sense % x", p.data)
			return buf
		}
		require.Equal(w.t, byte(opDataIn), p.op())
		require.LessOrEqual(w.t, int(p.u32(40))+len(p.data), edtl)
		copy(buf[p.u32(40):], p.data)
		if p.bhs[1]&1 != 0 {
			require.Equal(w.t, byte(0), p.bhs[3], "status")
			return buf
		}
	}
}

// attention takes the unit attention that a new I_T nexus meets first: POWER ON, RESET, OR BUS DEVICE RESET OCCURRED (SPC-4, 5.14).
func (w *wire) attention(itt, cmdSN uint32) {
	w.t.Helper()
	w.send(testUnitReady(itt, cmdSN))
	p := w.want(opSCSIResp)
	require.Equal(w.t, itt, p.itt())
	require.Equal(w.t, byte(2), p.bhs[3], "status")
	require.Equal(w.t, []byte{6, 0x29}, []byte{p.data[4] & 0xf, p.data[14]}, "sense key and code of % x", p.data)
}

// ended insists that the other end closes, and that it sends nothing more before.
func (w *wire) ended() {
	w.t.Helper()
	err := w.fill(len(w.in) + 1)
	require.Error(w.t, err, "%s ought to be closed, but sent % x", w.name, w.in)
	require.Empty(w.t, w.in, "before %s was closed", w.name)
	require.True(w.t, errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET), "waiting for the end of %s: %v", w.name, err)
	w.tr.note("%s is closed by the other end", w.name)
}

// quiet insists that nothing was sent in answer to what was to be ignored: a ping is answered first.
func (w *wire) quiet(itt, cmdSN uint32) *pdu {
	w.t.Helper()
	w.send(nopOut(itt, cmdSN, "still there?"))
	p := w.want(opNopIn)
	require.Equal(w.t, itt, p.itt())
	require.Equal(w.t, "still there?", string(p.data))
	return p
}

// close ends the connection without a word.
func (w *wire) close() {
	w.tr.note("%s is closed without logout", w.name)
	w.c.Close()
}

// login is what a script asks for in a login that leads straight to full feature phase.
type login struct {
	isid      [6]byte
	tsih, cid uint16
	cmdSN     uint32
	keys      []string
}

// names are the keys that every leading login of a normal session begins with (RFC 7143, section 6.3).
func names(more ...string) []string {
	return append([]string{"InitiatorName=" + initiatorName, "TargetName=" + targetName, "SessionType=Normal"}, more...)
}

// login logs in from the operational stage on, answers nothing but with the wish to go on, and returns what was agreed, and the TSIH.
func (w *wire) login(l login) (map[string]string, uint16) {
	w.t.Helper()
	w.send(loginRequest(l.isid, l.tsih, l.cid, 1, 3, true, l.cmdSN, l.keys...))
	agreed := map[string]string{}
	for {
		p := w.want(opLoginResp)
		require.Equal(w.t, [2]byte{0, 0}, [2]byte(p.bhs[36:38]), "login status")
		for k, v := range keys(p.data) {
			agreed[k] = v
		}
		if p.bhs[1]&0x80 != 0 {
			return agreed, p.u16(14)
		}
		w.send(loginRequest(l.isid, l.tsih, l.cid, 1, 3, true, l.cmdSN))
	}
}

// refused plays a login that has to fail with a status.
func (w *wire) refused(l login, class, detail byte) {
	w.t.Helper()
	w.send(loginRequest(l.isid, l.tsih, l.cid, 1, 3, true, l.cmdSN, l.keys...))
	p := w.want(opLoginResp)
	require.Equal(w.t, [2]byte{class, detail}, [2]byte(p.bhs[36:38]), "login status")
	w.ended()
}

// pattern is n octets that tell where they belong.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)*7 + byte(i>>8)*13 + seed
	}
	return b
}

var firstISID = [6]byte{0x80, 0x12, 0x34, 0x56, 0x00, 0x01}

func sameData(t *testing.T, want, got []byte) {
	t.Helper()
	require.True(t, bytes.Equal(want, got), "data differs: want % x…, got % x…", want[:min(32, len(want))], got[:min(32, len(got))])
}
