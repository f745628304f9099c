package target

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
)

// peer is a scripted initiator on a fake.
type peer struct {
	*fake
	serve  chan error
	cmdSN  iscsi.SN
	statSN iscsi.SN
	itt    uint32
	isid   [6]byte
	tsih   uint16 // of the session that it joins
	cid    uint16
	portal PortalInfo
}

// small makes the peer take no more than 128 octets in a PDU.
func small(p *peer) { p.info.MaxSendSegment = 128 }

// connect has s serve a new fake, set up by the functions.
func connect(t testing.TB, s *Server, setup ...func(*peer)) *peer {
	p := &peer{fake: newFake(t), serve: make(chan error, 1), cmdSN: 100, itt: 1000, isid: [6]byte{0x80, 1, 2, 3, 4, 5}}
	for _, f := range setup {
		f(p)
	}
	portal := p.portal
	go func() { p.serve <- s.Serve(p.fake, portal) }()
	return p
}

// inject delivers a PDU.
func (p *peer) inject(pdu *iscsi.PDU) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.later(func(n iscsi.Notifier) { n.ControlNotify(pdu) })
}

// next is what the target sent next; ok is false if the connection ended instead.
func (p *peer) next() (s sentByTarget, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.read == len(p.sent) && !p.over {
		p.wake.Wait()
	}
	if p.read == len(p.sent) {
		return s, false
	}
	s = p.sent[p.read]
	p.read++
	return s, true
}

// pdu is the next PDU, which must be of a kind; data-in and requests for data-out before it are skipped.
func (p *peer) pdu(op iscsi.Opcode) *iscsi.PDU {
	p.t.Helper()
	for {
		s, ok := p.next()
		if !ok {
			require.Fail(p.t, "the connection ended", "waiting for %v", op)
		}
		if s.pdu == nil {
			continue
		}
		require.Equal(p.t, op, s.pdu.Opcode(), "%v", iscsi.BHS(s.pdu.BHS[:]))
		h := iscsi.BHS(s.pdu.BHS[:])
		if op != iscsi.OpNOPIn || h.ITT() != iscsi.ReservedTag {
			if op != iscsi.OpLoginRsp {
				require.Equal(p.t, p.statSN, h.StatSN(), "StatSN")
			}
			p.statSN = h.StatSN() + 1
		}
		return s.pdu
	}
}

// ended waits for the end of the connection and says why.
func (p *peer) ended() error {
	p.t.Helper()
	return <-p.serve
}

func loginText(kv ...string) []byte {
	var t iscsi.Text
	for i := 0; i < len(kv); i += 2 {
		t.Add(kv[i], kv[i+1])
	}
	return t.Append(nil)
}

// loginRequest is a Login Request that asks for full feature phase at once.
func (p *peer) loginRequest(kv ...string) *iscsi.PDU {
	pdu := &iscsi.PDU{Data: loginText(kv...)}
	h := iscsi.LoginRequest(pdu.BHS[:])
	h.Init()
	h.SetTransit(true)
	h.SetCSG(iscsi.StageOperational)
	h.SetNSG(iscsi.StageFullFeature)
	h.SetISID(p.isid)
	h.SetTSIH(p.tsih)
	h.SetCID(p.cid)
	h.SetCmdSN(p.cmdSN)
	h.SetITT(1)
	return pdu
}

// normalKeys are those of a Normal session, with others behind them.
func normalKeys(kv ...string) []string {
	return append([]string{"InitiatorName", initiatorName, "TargetName", targetName, "SessionType", "Normal"}, kv...)
}

// login logs in with keys and returns the final response.
func (p *peer) login(kv ...string) *iscsi.PDU {
	p.t.Helper()
	p.inject(p.loginRequest(kv...))
	rsp := p.pdu(iscsi.OpLoginRsp)
	require.Equal(p.t, iscsi.LoginOK, iscsi.LoginResponse(rsp.BHS[:]).Status())
	require.True(p.t, iscsi.LoginResponse(rsp.BHS[:]).Transit())
	return rsp
}

// disk logs in to a Normal session with small bursts, unless keys say otherwise, and clears the unit attention.
func (p *peer) disk(kv ...string) *peer {
	p.t.Helper()
	p.login(normalKeys(withKeys([]string{
		"MaxRecvDataSegmentLength", "8192", "MaxBurstLength", "16384", "FirstBurstLength", "8192",
		"InitialR2T", "Yes", "ImmediateData", "Yes", "MaxOutstandingR2T", "2",
	}, kv)...)...)
	p.settle(0, 1)
	return p
}

// withKeys replaces values of base and adds what is not there.
func withKeys(base, kv []string) []string {
	for i := 0; i < len(kv); i += 2 {
		found := false
		for j := 0; j < len(base); j += 2 {
			if base[j] == kv[i] {
				base[j+1], found = kv[i+1], true
			}
		}
		if !found {
			base = append(base, kv[i], kv[i+1])
		}
	}
	return base
}

// settle takes the unit attentions that wait at LUNs.
func (p *peer) settle(luns ...int) {
	p.t.Helper()
	for _, lun := range luns {
		for range 4 {
			p.command(cmd{lun: lun, cdb: make([]byte, 6)})
			if p.response().Status() == 0 {
				break
			}
		}
	}
}

// cmd describes a SCSI command.
type cmd struct {
	itt       uint32
	lun       int
	cdb       []byte
	read      int
	write     []byte // nil: no write
	edtl      int    // if not len(write)
	immediate int    // octets of write sent with the command
	more      bool   // F=0
	attr      iscsi.TaskAttr
	now       bool // immediate delivery
	cmdSN     *iscsi.SN
}

// request makes the PDU.
func (p *peer) request(c cmd) *iscsi.PDU {
	if c.itt == 0 {
		p.itt++
		c.itt = p.itt
	}
	pdu := &iscsi.PDU{}
	h := iscsi.SCSICommand(pdu.BHS[:])
	h.Init()
	h.SetITT(c.itt)
	h.SetFinal(!c.more)
	h.SetLUN(scsi.EncodeLUN(c.lun))
	h.SetCDB(c.cdb)
	h.SetAttr(c.attr)
	h.SetImmediate(c.now)
	if c.write != nil {
		h.SetWrite(true)
		h.SetEDTL(uint32(len(c.write)))
		pdu.Data = append([]byte(nil), c.write[:c.immediate]...)
		p.mu.Lock()
		p.out[c.itt] = c.write
		p.mu.Unlock()
	}
	if c.read > 0 {
		h.SetRead(true)
		h.SetEDTL(uint32(c.read))
	}
	if c.edtl > 0 {
		h.SetEDTL(uint32(c.edtl))
	}
	p.number(iscsi.BHS(pdu.BHS[:]), c.cmdSN)
	return pdu
}

// number gives a request its CmdSN, the next or a given one, and ExpStatSN.
func (p *peer) number(h iscsi.BHS, sn *iscsi.SN) {
	v := p.cmdSN
	if sn != nil {
		v = *sn
	} else if !h.Immediate() {
		p.cmdSN++
	}
	binary.BigEndian.PutUint32(h[24:], uint32(v))
	h.SetExpStatSN(p.statSN)
}

// command sends a SCSI Command and returns its ITT.
func (p *peer) command(c cmd) uint32 {
	pdu := p.request(c)
	p.inject(pdu)
	return iscsi.BHS(pdu.BHS[:]).ITT()
}

// response is the next PDU, a SCSI Response.
func (p *peer) response() iscsi.SCSIResponse {
	p.t.Helper()
	r := iscsi.SCSIResponse(p.pdu(iscsi.OpSCSIResponse).BHS[:])
	require.Equal(p.t, iscsi.ResponseCompleted, r.Response())
	return r
}

// dataOut sends an unsolicited Data-Out PDU.
func (p *peer) dataOut(itt, sn uint32, off int, data []byte, final bool) {
	pdu := &iscsi.PDU{Data: append([]byte(nil), data...)}
	h := iscsi.DataOutPDU(pdu.BHS[:])
	h.Init()
	h.SetITT(itt)
	h.SetTTT(iscsi.ReservedTag)
	h.SetDataSN(sn)
	h.SetOffset(uint32(off))
	h.SetFinal(final)
	h.SetExpStatSN(p.statSN)
	p.inject(pdu)
}

// tmf sends an immediate Task Management Function Request and returns its ITT.
func (p *peer) tmf(fn iscsi.TaskFunction, lun int, rtt uint32, ref iscsi.SN) uint32 {
	p.itt++
	pdu := &iscsi.PDU{}
	h := iscsi.TaskMgmtRequest(pdu.BHS[:])
	h.Init()
	h.SetImmediate(true)
	h.SetFunction(fn)
	h.SetLUN(scsi.EncodeLUN(lun))
	h.SetITT(p.itt)
	h.SetRTT(rtt)
	h.SetRefCmdSN(ref)
	p.number(iscsi.BHS(pdu.BHS[:]), nil)
	p.inject(pdu)
	return p.itt
}

// managed is the next PDU, a Task Management Function Response.
func (p *peer) managed() iscsi.TaskResponse {
	p.t.Helper()
	return iscsi.TaskMgmtResponse(p.pdu(iscsi.OpTaskMgmtRsp).BHS[:]).Response()
}

// nop sends a NOP-Out ping.
func (p *peer) nop(itt uint32, data []byte) {
	pdu := &iscsi.PDU{Data: data}
	h := iscsi.NOPOut(pdu.BHS[:])
	h.Init()
	h.SetImmediate(true)
	h.SetITT(itt)
	p.number(iscsi.BHS(pdu.BHS[:]), nil)
	p.inject(pdu)
}

// logoutRequest sends a Logout Request.
func (p *peer) logoutRequest(reason iscsi.LogoutReason, cid uint16) {
	p.itt++
	pdu := &iscsi.PDU{}
	h := iscsi.LogoutRequest(pdu.BHS[:])
	h.Init()
	h.SetReason(reason)
	h.SetITT(p.itt)
	h.SetCID(cid)
	p.number(iscsi.BHS(pdu.BHS[:]), nil)
	p.inject(pdu)
}

// leave logs out and waits for the end.
func (p *peer) leave() {
	p.t.Helper()
	p.logoutRequest(iscsi.LogoutSession, 0)
	rsp := p.pdu(iscsi.OpLogoutRsp)
	require.Equal(p.t, iscsi.LogoutOK, iscsi.LogoutResponse(rsp.BHS[:]).Response())
	require.NoError(p.t, p.ended())
	p.noLeak()
}

// noLeak checks that every buffer came back.
func (p *peer) noLeak() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Zero(p.t, p.lent, "buffers still lent")
	require.Zero(p.t, p.used)
}

// CDBs.
func read10(lba uint32, blocks uint16) []byte {
	b := make([]byte, 10)
	b[0] = 0x28
	binary.BigEndian.PutUint32(b[2:], lba)
	binary.BigEndian.PutUint16(b[7:], blocks)
	return b
}

func write10(lba uint32, blocks uint16) []byte {
	b := read10(lba, blocks)
	b[0] = 0x2a
	return b
}

// newServer makes a server with one target whose LUNs 0, 1, ... have the stores.
func newServer(t testing.TB, change func(*Config), stores ...store.Store) *Server {
	t.Helper()
	d := scsi.NewDevice(scsi.Port{Name: targetName + ",t,0x0007", Relative: 7, Protocol: 5})
	for i, s := range stores {
		lu, err := scsi.NewLU(s, scsi.LUConfig{Identity: fmt.Sprint(targetName, i)})
		require.NoError(t, err)
		require.NoError(t, d.Add(i, lu))
	}
	cfg := Config{Targets: []Target{{Name: targetName, Alias: "a disk", PortalGroup: 7, Device: d}}}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	require.NoError(t, err)
	return s
}

func memory(t testing.TB, size int64) *store.Memory {
	t.Helper()
	m, err := store.NewMemory(size)
	require.NoError(t, err)
	return m
}

// pattern fills n octets that tell where they are.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i>>9)*7 + byte(i) + seed
	}
	return b
}

// same tells where two pieces of data part.
func same(want, got []byte) error {
	if len(want) != len(got) {
		return fmt.Errorf("%d octets, want %d", len(got), len(want))
	}
	for i := range want {
		if want[i] != got[i] {
			return fmt.Errorf("octet %d is %#02x, want %#02x", i, got[i], want[i])
		}
	}
	return nil
}

func itoa(n int) string { return strconv.Itoa(n) }
