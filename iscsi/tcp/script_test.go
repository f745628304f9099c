package tcp

import (
	"encoding/binary"
	"io"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"goiwarp/internal/sock"
	"goiwarp/iscsi"
)

// script is a Datamover whose peer and whose layer above a test plays, octet by octet and upcall by
// upcall, in virtual time.
type script struct {
	t      *testing.T
	d      *Datamover
	peer   *sock.MemSocket
	mu     sync.Mutex // guards events
	events []event
	onPDU  func(p *iscsi.PDU) // runs in ControlNotify

	in                       []byte // read from the Datamover and not yet looked at
	headerDigest, dataDigest bool
}

type event struct {
	rejected *iscsi.Rejection
	acked    uint32     // DataACKNotify, with itt
	pdu      *iscsi.PDU // ControlNotify: a copy
	itt      uint32     // DataCompletionNotify
	tag      uint64
	last     bool // ConnectionTerminateNotify
	err      error
}

func (s *script) ControlNotify(p *iscsi.PDU) {
	c := &iscsi.PDU{BHS: p.BHS, AHS: append([]byte(nil), p.AHS...), Data: append([]byte(nil), p.Data...)}
	p.Release()
	s.add(event{pdu: c})
	if s.onPDU != nil {
		s.onPDU(c)
	}
}

func (s *script) add(e event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

func (s *script) DataCompletionNotify(itt uint32, tag uint64, err error) {
	s.add(event{itt: itt, tag: tag, err: err})
}

func (s *script) DataACKNotify(itt, dataSN uint32) {
	s.add(event{itt: itt, acked: dataSN})
}

func (s *script) RejectNotify(r *iscsi.Rejection) {
	s.add(event{rejected: r})
}

func (s *script) ConnectionTerminateNotify(err error) {
	s.add(event{last: true, err: err})
}

// params are what a script's login has agreed on.
func params() *iscsi.Params {
	return &iscsi.Params{
		MaxBurstLength: 64 << 10, FirstBurstLength: 64 << 10, MaxOutstandingR2T: 4, DataPDUInOrder: true, DataSequenceInOrder: true,
		MaxRecvDataSegment: 32 << 10, MaxSendDataSegment: 4096,
	}
}

// play runs f with a Datamover in full feature phase whose stream holds size octets each way, and ends it.
func play(t *testing.T, target bool, size int, p *iscsi.Params, f func(s *script)) {
	playFrom(t, target, false, size, p, f)
}

// playFrom is play for a Datamover that may be a successor: enabled first, and started then.
func playFrom(t *testing.T, target, successor bool, size int, p *iscsi.Params, f func(s *script)) {
	synctest.Test(t, func(t *testing.T) {
		ours, peer := sock.MemPipe(size)
		s := &script{t: t, peer: peer, d: newOnSocket(ours, Config{Memory: 1 << 20}, target, nil)}
		defer s.close()
		if !successor {
			s.d.Start(s)
		}
		s.d.NoticeKeyValues(p)
		final := &iscsi.PDU{}
		h := iscsi.LoginResponse(final.BHS[:])
		h.Init()
		final.BHS[1] = 0x80 | 1<<2 | 3
		binary.BigEndian.PutUint32(final.BHS[24:], 10) // StatSN
		binary.BigEndian.PutUint32(final.BHS[28:], 1)  // ExpCmdSN
		binary.BigEndian.PutUint32(final.BHS[32:], 64) // MaxCmdSN
		if target {
			require.NoError(t, s.d.EnableDatamover(final))
			s.d.Start(s)
			require.Equal(t, iscsi.OpLoginRsp, s.receive().Opcode())
		} else {
			s.send(final)
			synctest.Wait()
			require.NoError(t, s.d.EnableDatamover(nil))
			s.events = nil
		}
		s.headerDigest, s.dataDigest = p.HeaderDigest, p.DataDigest
		synctest.Wait()
		f(s)
		s.close()
		require.Zero(t, s.d.Lent(), "buffers that nobody released")
	})
}

func (s *script) close() {
	_ = s.peer.Close()
	s.d.ConnectionTerminate(false)
	<-s.d.Done()
}

func (s *script) frame(p *iscsi.PDU) []byte {
	b, err := iscsi.AppendPDU(nil, p, s.headerDigest, s.dataDigest)
	require.NoError(s.t, err)
	return b
}

// send sends PDUs from the peer in one write, and waits until all goroutines wait.
func (s *script) send(ps ...*iscsi.PDU) {
	var b []byte
	for _, p := range ps {
		b = append(b, s.frame(p)...)
	}
	s.write(b)
}

func (s *script) write(b []byte) {
	for len(b) > 0 {
		n, err := s.peer.Write([][]byte{b})
		require.NoError(s.t, err)
		b = b[n:]
	}
	synctest.Wait()
}

// read reads what has arrived at the peer; false at the end of the stream.
func (s *script) read() bool {
	var room [64 << 10]byte
	into := sock.SliceScatter{B: room[:]}
	n, err := s.peer.Read(&into)
	s.in = append(s.in, room[:n]...)
	if err != nil {
		require.ErrorIs(s.t, err, io.EOF)
	}
	return err == nil
}

// receive reads one PDU at the peer.
func (s *script) receive() *iscsi.PDU {
	s.t.Helper()
	for {
		p, n, err := iscsi.DecodePDU(s.in, s.headerDigest, s.dataDigest, 1<<24)
		if err == nil {
			s.in = s.in[n:]
			return &p
		}
		require.ErrorIs(s.t, err, io.ErrUnexpectedEOF)
		require.True(s.t, s.read(), "the stream has ended")
	}
}

// silent checks that the Datamover has sent nothing more.
func (s *script) silent() {
	s.t.Helper()
	synctest.Wait()
	if s.peer.Readable() > 0 {
		s.read()
	}
	require.Empty(s.t, s.in, "octets that nobody expected")
}

// end checks that the Datamover has ended the stream without another octet.
func (s *script) end() {
	s.t.Helper()
	for s.read() {
	}
	require.Empty(s.t, s.in, "octets before the end of the stream")
}

// event takes the next upcall.
func (s *script) event() event {
	s.t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.NotEmpty(s.t, s.events, "no upcall")
	e := s.events[0]
	s.events = s.events[1:]
	return e
}

// quiet checks that there was no other upcall.
func (s *script) quiet() {
	s.t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Empty(s.t, s.events)
}

// broken checks that the connection has ended with an error of this kind, and nothing else was told.
func (s *script) broken(k Kind) *Error {
	s.t.Helper()
	_ = s.peer.CloseWrite()
	<-s.d.Done()
	e := s.event()
	require.True(s.t, e.last)
	var got *Error
	require.ErrorAs(s.t, e.err, &got)
	require.Equal(s.t, k, got.Kind, "%v", got)
	require.True(s.t, got.Remote)
	require.ErrorIs(s.t, e.err, iscsi.ErrConnection)
	s.quiet()
	return got
}

func (s *script) alloc(n int) iscsi.Buffer {
	s.t.Helper()
	b, err := s.d.Alloc(n)
	require.NoError(s.t, err)
	clear(b.Bytes())
	return b
}

// octets are n test octets.
func octets(seed, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + seed)
	}
	return b
}

const testLUN = 0x0005_0000_0000_0000

// dataOutPDU answers the R2T with this TTT.
func dataOutPDU(itt, ttt, sn uint32, off int, data []byte, final bool) *iscsi.PDU {
	p := &iscsi.PDU{Data: data}
	h := iscsi.DataOutPDU(p.BHS[:])
	h.Init()
	h.SetFinal(final)
	h.SetLUN(testLUN)
	h.SetITT(itt)
	h.SetTTT(ttt)
	h.SetDataSN(sn)
	h.SetOffset(uint32(off))
	return p
}

func dataInPDU(itt, sn uint32, off int, data []byte, final bool) *iscsi.PDU {
	p := &iscsi.PDU{Data: data}
	h := iscsi.DataInPDU(p.BHS[:])
	h.Init()
	h.SetFinal(final)
	h.SetITT(itt)
	h.SetDataSN(sn)
	h.SetOffset(uint32(off))
	return p
}

func r2tPDU(itt, ttt, sn uint32, off, n int) *iscsi.PDU {
	p := &iscsi.PDU{}
	h := iscsi.R2T(p.BHS[:])
	h.Init()
	h.SetLUN(testLUN)
	h.SetITT(itt)
	h.SetTTT(ttt)
	h.SetR2TSN(sn)
	h.SetOffset(uint32(off))
	h.SetDesiredLen(uint32(n))
	return p
}

func commandPDU(itt uint32, flags byte) *iscsi.PDU {
	p := &iscsi.PDU{}
	h := iscsi.SCSICommand(p.BHS[:])
	h.Init()
	p.BHS[1] = 0x80 | flags
	binary.BigEndian.PutUint32(p.BHS[16:], itt)
	return p
}

func responsePDU(itt, statSN, expDataSN uint32) *iscsi.PDU {
	p := &iscsi.PDU{}
	h := iscsi.SCSIResponse(p.BHS[:])
	h.Init()
	h.SetITT(itt)
	h.SetStatSN(iscsi.SN(statSN))
	h.SetExpCmdSN(7)
	h.SetMaxCmdSN(70)
	h.SetExpDataSN(expDataSN)
	return p
}

func nopOutPDU(itt uint32, data []byte) *iscsi.PDU {
	p := &iscsi.PDU{Data: data}
	iscsi.NOPOut(p.BHS[:]).Init()
	p.BHS[0] |= 0x40
	binary.BigEndian.PutUint32(p.BHS[16:], itt)
	return p
}

func nopInPDU(itt uint32) *iscsi.PDU {
	p := &iscsi.PDU{}
	iscsi.NOPIn(p.BHS[:]).Init()
	binary.BigEndian.PutUint32(p.BHS[16:], itt)
	return p
}

// heap is a buffer of the layer above.
type heap struct{ b []byte }

func (h *heap) Bytes() []byte { return h.b }
func (h *heap) Release()      { panic("not the Datamover's to release") }
