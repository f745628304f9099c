package rawpeer

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// url is that of the scripted target's disk.
func url(scheme, addr string) string { return scheme + "://" + addr + "/" + targetName + "/0" }

// TestInitiatorRead has iser read over plain iSCSI.
func TestInitiatorRead(t *testing.T) {
	tr := record(t, "RFC 7143: iser reads 4096 octets over iSCSI")
	l := listen(t)
	done := client(t, "read", url("iscsi", l.Addr().String()), "--offset", "512", "--length", "4096")
	g := newTarget(t, tr, l)
	g.send(g.login())
	out := g.serveToEnd(t, done)
	sameData(t, g.disk[512:][:4096], []byte(out))
}

// TestInitiatorWrite has it write, with digests.
func TestInitiatorWrite(t *testing.T) {
	tr := record(t, "RFC 7143: iser writes 20000 octets over iSCSI, with digests")
	l := listen(t)
	data := pattern(20480, 9)
	f := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.WriteFile(f, data, 0o600))
	done := client(t, "write", url("iscsi", l.Addr().String()), f, "--offset", "1KiB", "--digests")
	g := newTarget(t, tr, l)
	g.digests = true
	g.send(g.login())
	g.hd, g.dd = true, true
	g.serveToEnd(t, done)
	sameData(t, data, g.disk[1024:][:len(data)])
}

// TestInitiatorHandover: iser logs in over TCP, and goes on in iSER on the same connection.
func TestInitiatorHandover(t *testing.T) {
	tr := record(t, "RFC 7145, 5.1: iser --handover reads")
	l := listen(t)
	done := client(t, "read", "--handover", url("iser", l.Addr().String()), "--offset", "512", "--length", "4096")
	g := newTarget(t, tr, l)
	g.rdma = true
	g.send(g.login())
	require.False(t, g.helloRequired)
	g.startMPA()
	out := g.serveToEnd(t, done)
	sameData(t, g.disk[512:][:4096], []byte(out))
}

// TestInitiatorHandoverHello is the same with Hello, and writes.
func TestInitiatorHandoverHello(t *testing.T) {
	tr := record(t, "RFC 7145, 5.1.3: iser --handover --hello writes")
	l := listen(t)
	data := pattern(20480, 10)
	f := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.WriteFile(f, data, 0o600))
	done := client(t, "write", "--handover", "--hello", url("iser", l.Addr().String()), f, "--offset", "1KiB")
	g := newTarget(t, tr, l)
	g.rdma = true
	g.send(g.login())
	require.True(t, g.helloRequired)
	g.startMPA()
	g.hello()
	g.serveToEnd(t, done)
	sameData(t, data, g.disk[1024:][:len(data)])
}

// TestInitiatorRevision1 has iser start MPA as RFC 5044 has it, for a target that does not know RFC 6581: no S bit, no private data; the Hello
// tells the depth of the Read queue (RFC 7145, section 5.1.3).
func TestInitiatorRevision1(t *testing.T) {
	tr := record(t, "RFC 5044, 7.1.1: iser --handover --hello --mpa-revision 1 writes")
	l := listen(t)
	data := pattern(8192, 12)
	f := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.WriteFile(f, data, 0o600))
	done := client(t, "write", "--handover", "--hello", "--mpa-revision", "1", url("iser", l.Addr().String()), f)
	g := newTarget(t, tr, l)
	g.rdma = true
	g.send(g.login())
	b := g.startup(mpaRequestKey)
	require.Equal(t, []byte{mpaCRC, 1, 0, 0}, b[16:])
	m := mpaFrame(mpaReplyKey, mpaCRC, 1, nil)
	tr.mpa("->", g.name, m)
	g.write(m)
	g.s = &stream{wire: g.wire}
	g.hello()
	g.serveToEnd(t, done)
	sameData(t, data, g.disk[:len(data)])
}

// TestInitiatorInvalidated has a target that invalidates by the Send itself, which iWARP always can (RFC 7145, section 7.3.2).
func TestInitiatorInvalidated(t *testing.T) {
	tr := record(t, "RFC 7145, 7.3.2: responses by Send with Invalidate")
	l := listen(t)
	done := client(t, "read", "--handover", url("iser", l.Addr().String()), "--offset", "512", "--length", "4096")
	g := newTarget(t, tr, l)
	g.rdma, g.invalidates = true, true
	g.send(g.login())
	g.startMPA()
	out := g.serveToEnd(t, done)
	sameData(t, g.disk[512:][:4096], []byte(out))
}

// TestInitiatorHandoverOctets has the target write all that it writes in TCP segments of one octet.
func TestInitiatorHandoverOctets(t *testing.T) {
	tr := record(t, "RFC 7145, 5.1: iser --handover against a target that sends single octets")
	l := listen(t)
	done := client(t, "read", "--handover", "--hello", url("iser", l.Addr().String()), "--length", "512")
	g := newTarget(t, tr, l)
	g.rdma = true
	g.cut = 1
	g.send(g.login())
	g.startMPA()
	g.hello()
	out := g.serveToEnd(t, done)
	sameData(t, g.disk[:512], []byte(out))
}

// TestInitiatorHandoverSplits cuts the final Login Response, the MPA Reply and the HelloReply at each of many places.
func TestInitiatorHandoverSplits(t *testing.T) {
	l := listen(t)
	halves := func(g *target, b []byte, cut int) {
		k := max(0, min(cut, len(b)))
		g.write(b[:k])
		g.write(b[k:])
	}
	run := func(tr *transcript, cut int) int {
		done := client(t, "read", "--handover", "--hello", url("iser", l.Addr().String()), "--length", "512")
		g := newTarget(t, tr, l)
		defer g.c.Close()
		g.rdma = true
		a := g.encode(g.login())
		halves(g, a, cut)
		b := accepting(t, g.startup(mpaRequestKey))
		tr.mpa("->", g.name, b)
		halves(g, b, cut-len(a))
		g.s = &stream{wire: g.wire}
		require.Equal(t, byte(2), g.s.next().payload[0]>>4)
		c := g.s.frame(g.s.message(iserHelloReply(false, 1)))
		halves(g, c, cut-len(a)-len(b))
		g.serve()
		g.c.CloseWrite()
		out, log, err := done()
		require.NoError(t, err, "cut at %d: %s", cut, log)
		sameData(t, g.disk[:512], []byte(out))
		return len(a) + len(b) + len(c)
	}
	tr := record(t, "RFC 7145, 5.1: final Login Response, MPA Reply and HelloReply cut at many places; the transcript is that of the first cut, all others are the same")
	end := run(tr, 1)
	for cut := 9; cut < end; cut += 9 {
		run(&transcript{numbered: map[string]map[uint64]uint64{}}, cut)
	}
}

// failure insists that iser ends with one line and status 1.
func failure(t *testing.T, tr *transcript, done func() (string, string, error)) {
	t.Helper()
	out, log, err := done()
	require.Error(t, err, "iser has to fail; it said %q", out)
	require.ErrorContains(t, err, "exit status 1", "%s", log)
	require.Empty(t, out, "data that cannot be trusted")
	require.Equal(t, 1, bytes.Count([]byte(log), []byte("\n")), "one line that says what is wrong: %q", log)
	t.Log(log)
}

// lied is a target that lies once: everything behind is refused.
func lied(t *testing.T, title string, args []string, script func(g *target)) {
	t.Helper()
	tr := record(t, title)
	l := listen(t)
	scheme := "iscsi"
	for _, a := range args {
		if a == "--handover" {
			scheme = "iser"
		}
	}
	done := client(t, append([]string{"read", url(scheme, l.Addr().String()), "--length", "1024", "--timeout", "20s", "--replacement-timeout", "1s"}, args...)...)
	g := newTarget(t, tr, l)
	l.Close()
	g.rdma = scheme == "iser"
	script(g)
	failure(t, tr, done)
}

var handover, withHello = []string{"--handover"}, []string{"--handover", "--hello"}

// TestLyingStartup plays targets that break the order of the startup, or its frames.
func TestLyingStartup(t *testing.T) {
	t.Run("Declines", func(t *testing.T) {
		lied(t, "RFC 7145, 5.1: the target answers RDMAExtensions=No, and iser insists", handover, func(g *target) {
			g.rdma = false
			g.send(g.login())
			g.bye()
		})
	})
	for name, b := range map[string][]byte{
		"Rejects":   mpaFrame(mpaReplyKey, mpaCRC|mpaReject|mpaEnhanced, 2, []byte{0, 0, 0, 1}),
		"Request":   mpaFrame(mpaRequestKey, mpaCRC|mpaEnhanced, 2, []byte{0, 0, 0, 1}),
		"Revision0": mpaFrame(mpaReplyKey, mpaCRC, 0, nil),
		"Revision9": mpaFrame(mpaReplyKey, mpaCRC, 9, nil),
		"Private":   mpaFrame(mpaReplyKey, mpaCRC|mpaEnhanced, 2, make([]byte, 513)),
		"iSCSI":     (&pdu{bhs: [48]byte{opNopIn, 0x80}}).encode(false, false),
	} {
		t.Run(name, func(t *testing.T) {
			lied(t, "RFC 5044, 7.1.1: no MPA Reply that accepts: "+name, handover, func(g *target) {
				g.send(g.login())
				g.startup(mpaRequestKey)
				g.tr.note("%d octets are sent", len(b))
				g.tr.hex(0, b[:min(len(b), 64)])
				g.write(b)
				g.ended()
			})
		})
	}
	t.Run("Unenhanced", func(t *testing.T) {
		lied(t, "RFC 6581, 10: an enhanced Request is answered with an unenhanced Reply", handover, func(g *target) {
			g.send(g.login())
			g.startup(mpaRequestKey)
			b := mpaFrame(mpaReplyKey, mpaCRC, 1, nil)
			g.tr.mpa("->", g.name, b)
			g.write(b)
			g.ended()
		})
	})
	t.Run("TooManyReads", func(t *testing.T) {
		lied(t, "RFC 6581, 9.1: the Reply's ORD exceeds the Request's IRD, IRD 0 and ORD 16383-1", handover, func(g *target) {
			g.send(g.login())
			g.startup(mpaRequestKey)
			b := mpaFrame(mpaReplyKey, mpaCRC|mpaEnhanced, 2, []byte{0, 0, 0x3f, 0xfe})
			g.tr.mpa("->", g.name, b)
			g.write(b)
			g.bye()
		})
	})
	t.Run("Leaves", func(t *testing.T) {
		lied(t, "RFC 7145, 5.1: the target closes behind its final Login Response", handover, func(g *target) {
			g.send(g.login())
			g.startup(mpaRequestKey)
			g.close()
		})
	})
	t.Run("HelloReplyRejects", func(t *testing.T) {
		lied(t, "RFC 7145, 10.1.3.2: HelloReply with REJ", withHello, func(g *target) {
			g.send(g.login())
			g.startMPA()
			g.s.next()
			g.write(g.s.frame(g.s.message(iserHelloReply(true, 0))))
			g.bye()
		})
	})
	t.Run("HelloReplyVersion", func(t *testing.T) {
		lied(t, "RFC 7145, 9.4: HelloReply of version 11", withHello, func(g *target) {
			g.send(g.login())
			g.startMPA()
			g.s.next()
			h := iserHelloReply(false, 1)
			h[1] = 11<<4 | 11
			g.write(g.s.frame(g.s.message(h)))
			g.bye()
		})
	})
	t.Run("NoHelloReply", func(t *testing.T) {
		lied(t, "RFC 7145, 5.1.3: a NOP-In instead of the HelloReply", withHello, func(g *target) {
			g.send(g.login())
			g.startMPA()
			g.s.next()
			p := &pdu{}
			p.bhs[0], p.bhs[1] = opNopIn, 0x80
			p.set32(16, none)
			p.set32(20, 0x41)
			g.respond(g.number(p, false), nil)
			g.bye()
		})
	})
}

// bye reads whatever the initiator says on its way out, until it closes.
func (w *wire) bye() {
	w.t.Helper()
	for w.fill(len(w.in)+1) == nil {
	}
	w.in = nil
	w.c.Close()
	w.tr.note("%s is closed by the other end", w.name)
}

// TestInitiatorFallsBack: with --handover=fallback, RDMAExtensions=No leads to plain iSCSI on the same connection (RFC 7145, section 5.1).
func TestInitiatorFallsBack(t *testing.T) {
	tr := record(t, "RFC 7145, 5.1: the target answers RDMAExtensions=No, iser --handover=fallback goes on in iSCSI")
	l := listen(t)
	done := client(t, "read", "--handover=fallback", url("iser", l.Addr().String()), "--length", "512")
	g := newTarget(t, tr, l)
	g.send(g.login())
	out := g.serveToEnd(t, done)
	sameData(t, g.disk[:512], []byte(out))
}

// TestCoalescedReply sends the MPA Reply together with the final Login Response, before there was a Request. A responder may not (RFC 5044,
// section 7.1.2 (2)). An initiator may close, or go on, for the octets are in order; it must neither stand still nor take the Reply for iSCSI.
func TestCoalescedReply(t *testing.T) {
	tr := record(t, "RFC 5044, 7.1.2 (2), violated: final Login Response and MPA Reply in one TCP segment")
	l := listen(t)
	done := client(t, "read", "--handover", url("iser", l.Addr().String()), "--length", "512", "--timeout", "20s", "--replacement-timeout", "1s")
	g := newTarget(t, tr, l)
	g.rdma = true
	b := g.encode(g.login())
	m := mpaFrame(mpaReplyKey, mpaCRC|mpaEnhanced, 2, []byte{0, 0, 0, 1})
	tr.mpa("->", g.name, m)
	g.write(append(b, m...))
	tr.rest("iser goes on, or ends with one line")
	g.goesOnOrEnds(l, done, func() bool {
		if g.fill(20) != nil {
			return false
		}
		g.startup(mpaRequestKey)
		g.s = &stream{wire: g.wire}
		return true
	})
}

// TestResponderTooEarly sends an FPDU in one TCP segment with the MPA Reply, before the initiator's first one; a responder may not
// (RFC 5044, section 7.1.2 (4)).
func TestResponderTooEarly(t *testing.T) {
	tr := record(t, "RFC 5044, 7.1.2 (4), violated: MPA Reply and HelloReply in one TCP segment, before the Hello")
	l := listen(t)
	done := client(t, "read", "--handover", "--hello", url("iser", l.Addr().String()), "--length", "512", "--timeout", "20s", "--replacement-timeout", "1s")
	g := newTarget(t, tr, l)
	g.rdma = true
	g.send(g.login())
	m := accepting(t, g.startup(mpaRequestKey))
	tr.mpa("->", g.name, m)
	g.s = &stream{wire: g.wire}
	g.write(append(m, g.s.frame(g.s.message(iserHelloReply(false, 1)))...))
	tr.rest("iser goes on, or ends with one line")
	g.goesOnOrEnds(l, done, func() bool {
		return g.fill(1) == nil && g.s.next().payload[0]>>4 == 2 && g.fill(1) == nil
	})
}

// goesOnOrEnds is for an order that is forbidden, but that the other end need not notice: it serves the initiator to its end, or until
// the initiator gives up, and insists that it either has the right data or said in one line what is wrong.
func (g *target) goesOnOrEnds(l *net.TCPListener, done func() (string, string, error), start func() bool) {
	g.t.Helper()
	l.Close()
	if start() && g.fill(1) == nil && g.in[0]|g.in[1] != 0 && !g.terminated() {
		g.serve()
		g.c.CloseWrite()
		out, log, err := done()
		require.NoError(g.t, err, log)
		sameData(g.t, g.disk[:512], []byte(out))
		return
	}
	g.c.Close()
	failure(g.t, g.tr, done)
}

// terminated tells whether the next FPDU, of which the first octet has come, is a Terminate, or never comes.
func (g *target) terminated() bool {
	return g.fill(4) != nil || g.in[3]&0xf == rdmaTerminate
}
