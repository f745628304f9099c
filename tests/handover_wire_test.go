package tests

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/target"
	"goiwarp/iscsi/tcp"
	"goiwarp/iser"
	"goiwarp/rnic/soft"
)

// The octets of these conversations were put together by hand from RFC 7143, 7145, 5044, 6581, 5041 and 5040; no
// code of this module makes them.

const (
	wireTarget    = "iqn.2026-11.com.example:t"
	wireInitiator = "iqn.2026-11.com.example:i"
)

// line is what one end says in a conversation: I or T, and its octets.
type line struct {
	who  byte
	what []byte
}

// octets reads hexadecimal; blanks and what follows a # are for people.
func octets(lines ...string) (b []byte) {
	for _, l := range lines {
		l, _, _ = strings.Cut(l, "#")
		part, err := hex.DecodeString(strings.ReplaceAll(l, " ", ""))
		if err != nil {
			panic(err)
		}
		b = append(b, part...)
	}
	return b
}

// textPDU puts text keys behind a BHS: each ends with a zero octet, and padding makes it a multiple of four.
func textPDU(bhs []byte, keys ...string) []byte {
	var text []byte
	for _, k := range keys {
		text = append(append(text, k...), 0)
	}
	bhs[5], bhs[6], bhs[7] = byte(len(text)>>16), byte(len(text)>>8), byte(len(text))
	for len(text)%4 != 0 {
		text = append(text, 0)
	}
	return append(bhs, text...)
}

// fpdu frames a ULPDU: length, the ULPDU, padding, CRC32c (RFC 5044, section 4).
func fpdu(ulpdu []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(ulpdu)))
	b = append(b, ulpdu...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// send is an RDMAP Send with the message sequence number n, whole in one untagged DDP segment.
func send(n uint32, msg ...[]byte) []byte {
	u := octets("41 43", "00000000 # reserved for the ULP", "00000000 # queue 0")
	u = binary.BigEndian.AppendUint32(u, n)
	u = append(u, 0, 0, 0, 0) // message offset
	for _, m := range msg {
		u = append(u, m...)
	}
	return fpdu(u)
}

var (
	loginRequest = func(stages string) []byte {
		return octets("43 "+stages+" 00 00 00 000000", // immediate Login Request, versions 0 to 0
			"80 123456 0001 0000", // ISID of the random kind, TSIH 0
			"00000000 0000 0000",  // ITT 0, CID 0
			"00000001 00000000",   // CmdSN 1, ExpStatSN 0
			"00000000 00000000 00000000 00000000")
	}
	loginResponse = func(maxCmdSN string) []byte {
		return octets("23 87 00 00 00 000000", // Login Response, T, from operational to full feature
			"80 123456 0001 0001", // the ISID, TSIH 1
			"00000000 00000000",   // ITT 0
			"00000000 00000001",   // StatSN 0, ExpCmdSN 1
			maxCmdSN+" 0000 0000", // status: success
			"00000000 00000000")
	}
	mpaRequest = octets("4d504120494420526571204672616d65", // MPA ID Req Frame
		"50 02 0004 # CRC, enhanced; revision 2; 4 octets of private data, which are",
		"0004 0001  # IRD 4, ORD 1")
	mpaReply = octets("4d504120494420526570204672616d65", // MPA ID Rep Frame
		"50 02 0004", "0001 0004 # IRD 1, ORD 4")
	hello      = octets("20 aa 0004", strings.Repeat("00", 24)) // versions 10 to 10, iSER-IRD 4
	helloReply = octets("30 aa 0004", strings.Repeat("00", 24)) // version 10 of at most 10, iSER-ORD 4
	noSTags    = octets("10 000000", strings.Repeat("00", 24))  // a control PDU's iSER header
	nopOut     = octets("40 80 0000 00 000004 0000000000000000", "00000001 ffffffff # ITT, TTT",
		"00000001 00000001 # CmdSN, ExpStatSN", strings.Repeat("00", 16), "70696e67 # ping")
	nopIn = octets("20 80 0000 00 000004 0000000000000000", "00000001 ffffffff # ITT, TTT",
		"00000001 00000001 00000080 # StatSN, ExpCmdSN, MaxCmdSN", strings.Repeat("00", 12), "70696e67 # ping")
	logout = func(expStatSN string) []byte {
		return octets("46 80 0000 00 000000 0000000000000000", "00000002 00000000 # ITT, CID",
			"00000001 "+expStatSN, strings.Repeat("00", 16))
	}
	logoutResponse = func(statSN string) []byte {
		return octets("26 80 0000 00 000000 0000000000000000", "00000002 00000000",
			statSN+" 00000001 00000080", "00000000 00020014 00000000 # Time2Wait 2 and Time2Retain 20, the defaults")
	}
)

// toTarget is a conversation in which the initiator is scripted.
func toTarget(withHello bool) []line {
	keys := []string{
		"InitiatorName=" + wireInitiator, "TargetName=" + wireTarget, "SessionType=Normal", "RDMAExtensions=Yes",
		"InitiatorRecvDataSegmentLength=8192", "TargetRecvDataSegmentLength=4096", "MaxOutstandingUnexpectedPDUs=4",
		"InitialR2T=Yes", "ImmediateData=Yes",
	}
	if withHello {
		keys = append(keys, "iSERHelloRequired=Yes")
	}
	talk := []line{
		{'I', textPDU(loginRequest("87"), keys...)},
		{'T', textPDU(loginResponse("00000080"), "TargetPortalGroupTag=1", "RDMAExtensions=Yes", "InitiatorRecvDataSegmentLength=8192",
			"TargetRecvDataSegmentLength=4096", "InitialR2T=Yes", "ImmediateData=Yes", "MaxOutstandingUnexpectedPDUs=8")},
		{'I', mpaRequest},
		{'T', mpaReply},
	}
	n := uint32(1)
	if withHello {
		talk = append(talk, line{'I', send(n, hello)}, line{'T', send(n, helloReply)})
		n++
	}
	return append(talk,
		line{'I', send(n, noSTags, nopOut)}, line{'T', send(n, noSTags, nopIn)},
		line{'I', send(n+1, noSTags, logout("00000002"))}, line{'T', send(n+1, noSTags, logoutResponse("00000002"))})
}

// toInitiator is a conversation in which the target is scripted.
func toInitiator(withHello bool) []line {
	keys := []string{
		"InitiatorName=" + wireInitiator, "TargetName=" + wireTarget, "SessionType=Normal",
		"RDMAExtensions=Yes", "HeaderDigest=None", "DataDigest=None", "MaxConnections=1", "InitialR2T=Yes", "ImmediateData=Yes",
		"MaxRecvDataSegmentLength=262144", "MaxBurstLength=1048576", "FirstBurstLength=65536", "DefaultTime2Wait=2", "DefaultTime2Retain=0",
		"MaxOutstandingR2T=8", "DataPDUInOrder=Yes", "DataSequenceInOrder=Yes", "ErrorRecoveryLevel=0",
		"TargetRecvDataSegmentLength=8192", "InitiatorRecvDataSegmentLength=8192", "MaxOutstandingUnexpectedPDUs=8",
	}
	if withHello {
		keys = append(keys, "iSERHelloRequired=Yes")
	}
	request := append([]byte(nil), mpaRequest...)
	copy(request[20:], octets("0020 0001")) // IRD 32, ORD 1
	reply := append([]byte(nil), mpaReply...)
	copy(reply[20:], octets("0001 0004"))
	talk := []line{
		{'I', textPDU(loginRequest("87"), keys...)},
		{'T', textPDU(loginResponse("00000080"), "TargetPortalGroupTag=1", "RDMAExtensions=Yes", "HeaderDigest=None", "DataDigest=None",
			"MaxConnections=1", "InitialR2T=Yes", "ImmediateData=Yes", "MaxBurstLength=1048576", "FirstBurstLength=65536",
			"DefaultTime2Wait=2", "DefaultTime2Retain=0", "MaxOutstandingR2T=8", "DataPDUInOrder=Yes", "DataSequenceInOrder=Yes",
			"ErrorRecoveryLevel=0", "TargetRecvDataSegmentLength=8192", "InitiatorRecvDataSegmentLength=8192")},
		{'I', request},
		{'T', reply},
	}
	if withHello {
		m := append([]byte(nil), hello...)
		m[3] = 0x20 // iSER-IRD is the IRD
		talk = append(talk, line{'I', send(1, m)}, line{'T', send(1, helloReply)})
	}
	return talk
}

// play is the scripted end: it says its lines, the cut-th octet of them all first in a write of its own, and compares what it
// hears. With eager it says its second line together with the first, before the answer to that.
func play(t *testing.T, conn net.Conn, talk []line, who byte, cut int, eager bool) {
	if eager {
		var mine, others []line
		for _, l := range talk[:4] {
			if l.who == who {
				mine = append(mine, l)
			} else {
				others = append(others, l)
			}
		}
		joined := line{who, append(append([]byte(nil), mine[0].what...), mine[1].what...)}
		head := append([]line{joined}, others...)
		if who == 'T' {
			head = []line{others[0], joined, others[1]}
		}
		talk = append(head, talk[4:]...)
	}
	at := 0
	for _, l := range talk {
		if l.who != who {
			got := make([]byte, len(l.what))
			n, err := io.ReadFull(conn, got)
			require.Equal(t, hex.Dump(l.what), hex.Dump(got[:n]), "%v", err)
			continue
		}
		if k := cut - at; k > 0 && k < len(l.what) {
			_, err := conn.Write(l.what[:k])
			require.NoError(t, err)
			synctest.Wait() // the other end has taken it
			_, err = conn.Write(l.what[k:])
			require.NoError(t, err)
		} else {
			_, err := conn.Write(l.what)
			require.NoError(t, err)
		}
		at += len(l.what)
	}
}

// said is how many octets who says.
func said(talk []line, who byte) (n int) {
	for _, l := range talk {
		if l.who == who {
			n += len(l.what)
		}
	}
	return n
}

// wire is a memory network with a domain at its end.
type wire struct {
	net *soft.MemNetwork
	dom *iser.Domain
	end func()
}

func newWire(t *testing.T, cfg iser.DomainConfig) *wire {
	w := &wire{net: soft.NewMemNetwork(soft.MemConfig{})}
	dev := soft.New(soft.Config{Network: w.net})
	var err error
	w.dom, err = iser.NewDomain(dev, cfg)
	require.NoError(t, err)
	w.end = func() {
		require.NoError(t, w.dom.Close(), "everything was given back: %+v", w.dom.Stats())
		require.Zero(t, w.dom.Stats().CreditsGiven)
		require.NoError(t, dev.Close())
	}
	return w
}

func (w *wire) config() iser.HandoverConfig {
	return iser.HandoverConfig{Config: iser.Config{Domain: w.dom}}
}

// pipe is a connection of the network.
func (w *wire) pipe(t *testing.T) (dialled, accepted net.Conn) {
	ln, err := w.net.Listen(context.Background(), "t:1")
	require.NoError(t, err)
	defer ln.Close()
	dialled, err = w.net.Dial(context.Background(), "t:1")
	require.NoError(t, err)
	accepted, err = ln.Accept()
	require.NoError(t, err)
	return dialled, accepted
}

// serveWire serves one connection; the result is Serve's.
func (w *wire) serve(t *testing.T, conn net.Conn) (s *target.Server, result chan error) {
	m, err := store.NewMemory(1 << 20)
	require.NoError(t, err)
	lu, err := scsi.NewLU(m, scsi.LUConfig{})
	require.NoError(t, err)
	dev := scsi.NewDevice(scsi.Port{})
	require.NoError(t, dev.Add(0, lu))
	s, err = target.New(target.Config{Targets: []target.Target{{Name: wireTarget, Device: dev}}})
	require.NoError(t, err)
	cfg := w.config()
	cfg.Plain = func(c net.Conn) iscsi.Datamover { return tcp.NewTarget(c, tcp.Config{}, nil) }
	h, err := iser.NewTargetHandover(conn, nil, cfg)
	require.NoError(t, err)
	result = make(chan error, 1)
	go func() { result <- s.Serve(h, target.PortalInfo{}) }()
	return s, result
}

// dialed is an iscsi.Dialer of one connection that is there already.
type dialed struct {
	conn net.Conn
	cfg  iser.HandoverConfig
}

func (d dialed) Dial(context.Context, string) (iscsi.Datamover, error) {
	return iser.NewInitiatorHandover(d.conn, d.cfg)
}

func wireConfig() initiator.Config {
	return initiator.Config{
		Addr: "t:1", TargetName: wireTarget, InitiatorName: wireInitiator, ISID: [6]byte{0x80, 0x12, 0x34, 0x56, 0, 1},
		PingInterval: -1,
	}
}

// cuts are the places at which a conversation's octets are cut: every one, or a few.
func cuts(n int) []int {
	step := 1
	if testing.Short() {
		step = 17
	}
	var all []int
	for k := 0; k <= n; k += step {
		all = append(all, k)
	}
	return all
}

// TestTargetHandsOver: a scripted initiator's octets, cut at each place, and with the MPA Request in one write with the end of the
// login, get the same answers (RFC 7145, sections 5.1.2 and 5.1.3; RFC 5044, section 7.1.3).
func TestTargetHandsOver(t *testing.T) {
	for name, withHello := range map[string]bool{"with Hello": true, "without Hello": false} {
		for mode, eager := range map[string]bool{"": false, ", eager": true} {
			t.Run(name+mode, func(t *testing.T) {
				talk := toTarget(withHello)
				for _, cut := range cuts(said(talk, 'I')) {
					synctest.Test(t, func(t *testing.T) {
						w := newWire(t, iser.DomainConfig{})
						a, b := w.pipe(t)
						s, result := w.serve(t, b)
						play(t, a, talk, 'I', cut, eager)
						_, err := io.Copy(io.Discard, a) // after a logout the target closes first (section 5.2)
						require.NoError(t, err)
						require.NoError(t, a.Close())
						require.NoError(t, <-result)
						require.NoError(t, s.Shutdown(context.Background()))
						w.end()
					})
				}
			})
		}
	}
}

// TestInitiatorTakesOver: likewise for a scripted target; eager, its MPA Reply comes right behind its Login Response.
func TestInitiatorTakesOver(t *testing.T) {
	for name, withHello := range map[string]bool{"with Hello": true, "without Hello": false} {
		for mode, eager := range map[string]bool{"": false, ", eager": true} {
			t.Run(name+mode, func(t *testing.T) {
				talk := toInitiator(withHello)
				for _, cut := range cuts(said(talk, 'T')) {
					synctest.Test(t, func(t *testing.T) {
						w := newWire(t, iser.DomainConfig{})
						a, b := w.pipe(t)
						heard := make(chan struct{})
						go func() {
							defer close(heard)
							play(t, b, talk, 'T', cut, eager)
						}()
						cfg := wireConfig()
						cfg.Settings.ISERHelloRequired = withHello
						s, err := initiator.Login(t.Context(), dialed{a, w.config()}, cfg)
						require.NoError(t, err)
						require.True(t, s.Params().RDMAExtensions)
						require.True(t, s.Info().RDMA)
						<-heard
						s.Close()
						require.NoError(t, b.Close())
						w.end()
					})
				}
			})
		}
	}
}

// until plays a conversation up to and without line n.
func until(talk []line, n int) []line { return talk[:n] }

// TestTargetIsLeft: an initiator that stops, closes, or says something else at each stage of the handover costs no resources
// and no waiting without end.
func TestTargetIsLeft(t *testing.T) {
	talk := toTarget(true)
	junk := []byte(strings.Repeat("GET / HTTP/1.1\r\n", 8))
	for n, stage := range map[int]string{0: "login", 2: "MPA Request", 4: "Hello"} {
		for how, leave := range map[string]func(net.Conn){
			"silent": func(net.Conn) {},
			"closed": func(c net.Conn) { _ = c.Close() },
			"junk":   func(c net.Conn) { _, _ = c.Write(junk) },
			"half":   func(c net.Conn) { _, _ = c.Write(talk[n].what[:len(talk[n].what)/2]); _ = c.Close() },
		} {
			t.Run(stage+" "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWire(t, iser.DomainConfig{})
					a, b := w.pipe(t)
					s, result := w.serve(t, b)
					play(t, a, until(talk, n), 'I', 0, false)
					begin := time.Now()
					leave(a)
					err := <-result
					require.Less(t, time.Since(begin), 20*time.Second)
					var he *iser.HandoverError
					switch {
					case how == "silent" && n == 0:
						require.ErrorIs(t, err, target.ErrLoginTimeout)
					case how == "silent" && n == 2:
						require.ErrorAs(t, err, &he)
						require.Equal(t, iser.PhaseMPA, he.Phase)
					case how == "silent":
						require.ErrorIs(t, err, iser.ErrHelloTimeout)
					case n == 2:
						require.ErrorAs(t, err, &he, "%v", err)
					}
					_ = a.Close()
					require.NoError(t, s.Shutdown(context.Background()))
					w.end()
				})
			})
		}
	}
}

// TestInitiatorIsLeft: the same for a target.
func TestInitiatorIsLeft(t *testing.T) {
	talk := toInitiator(true)
	for n, stage := range map[int]string{1: "login", 3: "MPA Reply", 5: "HelloReply"} {
		for how, leave := range map[string]func(net.Conn){
			"silent": func(net.Conn) {},
			"closed": func(c net.Conn) { _ = c.Close() },
			"junk":   func(c net.Conn) { _, _ = c.Write([]byte(strings.Repeat("220 ready\r\n", 16))) },
		} {
			t.Run(stage+" "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWire(t, iser.DomainConfig{})
					a, b := w.pipe(t)
					go func() {
						play(t, b, until(talk, n), 'T', 0, false)
						leave(b)
					}()
					cfg := wireConfig()
					cfg.Settings.ISERHelloRequired = true
					ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
					defer cancel()
					_, err := initiator.Login(ctx, dialed{a, w.config()}, cfg)
					require.Error(t, err)
					var he *iser.HandoverError
					switch {
					case n == 1 && how == "silent":
						require.ErrorIs(t, err, context.DeadlineExceeded)
					case n == 3:
						require.ErrorAs(t, err, &he)
						require.Equal(t, iser.PhaseMPA, he.Phase)
					case n == 5 && how == "silent":
						require.ErrorIs(t, err, iser.ErrHelloTimeout)
					}
					_ = b.Close()
					w.end()
				})
			})
		}
	}
}

// TestNoResourcesRefusesTheLogin: what iSER needs is allocated before the final Login Response, and its lack is status 0302 (RFC
// 7145, section 10.1.3.1); an initiator that asks for no RDMA is served all the same.
func TestNoResourcesRefusesTheLogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t, iser.DomainConfig{ReceiveMemory: 512 << 10})
		a, b := w.pipe(t)
		s, result := w.serve(t, b)
		_, err := a.Write(toTarget(false)[0].what)
		require.NoError(t, err)
		got := make([]byte, 48)
		_, err = io.ReadFull(a, got)
		require.NoError(t, err)
		require.Equal(t, octets("23"), got[:1])
		require.Equal(t, octets("0302"), got[36:38], "out of resources")
		_, err = io.Copy(io.Discard, a)
		require.NoError(t, err)
		require.NoError(t, a.Close())
		require.Error(t, <-result)

		a, b = w.pipe(t)
		plain, err := iser.NewTargetHandover(b, nil, iser.HandoverConfig{
			Config: iser.Config{Domain: w.dom},
			Plain:  func(c net.Conn) iscsi.Datamover { return tcp.NewTarget(c, tcp.Config{}, nil) },
		})
		require.NoError(t, err)
		go func() { result <- s.Serve(plain, target.PortalInfo{}) }()
		_, err = a.Write(textPDU(loginRequest("87"), "InitiatorName="+wireInitiator, "TargetName="+wireTarget))
		require.NoError(t, err)
		_, err = io.ReadFull(a, got)
		require.NoError(t, err)
		require.Equal(t, octets("0000"), got[36:38])
		require.NoError(t, a.Close())
		require.NoError(t, <-result)
		require.NoError(t, s.Shutdown(context.Background()))
		w.end()
	})
}
