package initiator_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/tcp"
)

// liar is a target that is played octet by octet: it logs in honestly, unless told otherwise, and then answers the first command with
// whatever a test makes up.
type liar struct {
	t     *testing.T
	c     net.Conn
	login func(l *liar, req *iscsi.PDU) bool // has answered a Login Request itself
	lie   func(l *liar, c iscsi.SCSICommand) // answers a command
	out   func(l *liar, p *iscsi.PDU)        // takes a Data-Out; nil: nobody does
	set   iscsi.Settings                     // what it agrees to
	stat  iscsi.SN
	exp   iscsi.SN
}

// receive reads one PDU without digests.
func (l *liar) receive() (*iscsi.PDU, error) {
	p := new(iscsi.PDU)
	if _, err := io.ReadFull(l.c, p.BHS[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(p.BHS[4:]) & 0xffffff)
	p.Data = make([]byte, (n+3)&^3+4*int(p.BHS[4]))
	_, err := io.ReadFull(l.c, p.Data)
	p.Data = p.Data[:n]
	return p, err
}

// send sends a PDU, with the numbers that are due; used tells that it uses a StatSN up.
func (l *liar) send(p *iscsi.PDU, used bool) {
	h := iscsi.BHS(p.BHS[:])
	h.SetStatSN(l.stat)
	h.SetWindow(l.exp, l.exp+31)
	if used {
		l.stat++
	}
	l.raw(p)
}

func (l *liar) raw(p *iscsi.PDU) {
	b := append([]byte(nil), p.BHS[:]...)
	binary.BigEndian.PutUint32(b[4:], uint32(len(p.Data)))
	b = append(b, p.Data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	_, _ = l.c.Write(b) // who hangs up has heard enough
}

func (l *liar) run() {
	defer l.c.Close()
	login := iscsi.NewTargetLogin(iscsi.TargetLoginConfig{StatSN: 100, Window: 32, Settings: l.set, Identify: func(iscsi.Identity) (iscsi.Grant, error) {
		return iscsi.Grant{PortalGroup: 1}, nil
	}})
	for {
		p, err := l.receive()
		if err != nil {
			return
		}
		switch p.Opcode() {
		case iscsi.OpLoginReq:
			if l.login != nil && l.login(l, p) {
				continue
			}
			step, err := login.Step(p)
			if err != nil {
				return
			}
			if step.Ready {
				step = login.Finish(1)
				l.stat, l.exp = login.StatSN(), login.CmdSN()
			}
			l.raw(step.Response)
		case iscsi.OpSCSICommand:
			c := iscsi.SCSICommand(p.BHS[:])
			l.exp = c.CmdSN() + 1
			l.lie(l, c)
		case iscsi.OpDataOut:
			if l.out != nil {
				l.out(l, p)
			}
		default: // silence
		}
	}
}

func (l *liar) response(c iscsi.SCSICommand, change func(iscsi.SCSIResponse)) {
	p := new(iscsi.PDU)
	r := iscsi.SCSIResponse(p.BHS[:])
	r.Init()
	r.SetITT(c.ITT())
	change(r)
	l.send(p, true)
}

func (l *liar) dataIn(c iscsi.SCSICommand, n int, change func(iscsi.DataInPDU)) {
	p := &iscsi.PDU{Data: make([]byte, n)}
	d := iscsi.DataInPDU(p.BHS[:])
	d.Init()
	d.SetFinal(true)
	d.SetITT(c.ITT())
	d.SetTTT(iscsi.ReservedTag)
	change(d)
	l.send(p, d.HasStatus())
}

// lying runs f against a liar in virtual time.
func lying(t *testing.T, l *liar, f func(t *testing.T, dialer iscsi.Dialer)) {
	synctest.Test(t, func(t *testing.T) {
		n := newSimNet()
		ln, err := n.Listen(context.Background(), "a:1")
		require.NoError(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			c, err := ln.Accept()
			if err != nil {
				return
			}
			l.t, l.c = t, c
			l.run()
		}()
		f(t, simDialer{n})
		require.NoError(t, ln.Close())
		<-done
	})
}

// TestLyingTargets: each lie is a typed error and the end of the session, soon, and without memory that the target has chosen.
func TestLyingTargets(t *testing.T) {
	violation := func(k tcp.Kind) func(error) bool {
		return func(err error) bool {
			var e *tcp.Error
			return errors.As(err, &e) && e.Kind == k
		}
	}
	protocol := func(err error) bool {
		var e *iscsi.ProtocolError
		return errors.As(err, &e)
	}
	for name, tc := range map[string]struct {
		lie  func(l *liar, c iscsi.SCSICommand)
		want func(error) bool
	}{
		"residual beyond what was asked": {func(l *liar, c iscsi.SCSICommand) {
			l.response(c, func(r iscsi.SCSIResponse) { r.SetUnderflow(true); r.SetResidual(1 << 30) })
		}, protocol},
		"data beyond what was asked": {func(l *liar, c iscsi.SCSICommand) {
			l.dataIn(c, 4096, func(d iscsi.DataInPDU) { d.SetOffset(512) })
		}, violation(tcp.Overrun)},
		"data at the end of the address space": {func(l *liar, c iscsi.SCSICommand) {
			l.dataIn(c, 512, func(d iscsi.DataInPDU) { d.SetOffset(0xffffff00) })
		}, violation(tcp.Overrun)},
		"a data segment without measure": {func(l *liar, c iscsi.SCSICommand) {
			p := new(iscsi.PDU)
			d := iscsi.DataInPDU(p.BHS[:])
			d.Init()
			d.SetITT(c.ITT())
			b := append([]byte(nil), p.BHS[:]...)
			binary.BigEndian.PutUint32(b[4:], 0xffffff)
			_, _ = l.c.Write(b)
		}, func(err error) bool { return err != nil }},
		"status before data": {func(l *liar, c iscsi.SCSICommand) {
			l.response(c, func(iscsi.SCSIResponse) {})
			l.dataIn(c, 512, func(iscsi.DataInPDU) {})
		}, violation(tcp.Underrun)},
		"status with half of the data": {func(l *liar, c iscsi.SCSICommand) {
			l.dataIn(c, 256, func(d iscsi.DataInPDU) { d.SetHasStatus(true) })
		}, violation(tcp.Underrun)},
		"DataSN with a gap": {func(l *liar, c iscsi.SCSICommand) {
			l.dataIn(c, 512, func(d iscsi.DataInPDU) { d.SetDataSN(3) })
		}, violation(tcp.Sequence)},
		"StatSN going back": {func(l *liar, c iscsi.SCSICommand) {
			l.stat -= 2
			l.dataIn(c, 512, func(d iscsi.DataInPDU) { d.SetHasStatus(true) })
		}, protocol},
		"StatSN with a gap": {func(l *liar, c iscsi.SCSICommand) {
			l.stat += 7
			l.dataIn(c, 512, func(d iscsi.DataInPDU) { d.SetHasStatus(true) })
		}, protocol},
		"R2T for a read": {func(l *liar, c iscsi.SCSICommand) {
			p := new(iscsi.PDU)
			r := iscsi.R2T(p.BHS[:])
			r.Init()
			r.SetITT(c.ITT())
			r.SetTTT(1)
			r.SetDesiredLen(512)
			l.send(p, false)
		}, violation(tcp.Overrun)},
		"an initiator's PDU": {func(l *liar, _ iscsi.SCSICommand) {
			p := new(iscsi.PDU)
			iscsi.NOPOut(p.BHS[:]).Init()
			l.send(p, true)
		}, func(err error) bool { return err != nil }},
		"half a PDU": {func(l *liar, _ iscsi.SCSICommand) {
			_, _ = l.c.Write(make([]byte, 17))
		}, func(err error) bool { return errors.Is(err, initiator.ErrDeadTarget) }},
		"nothing": {func(*liar, iscsi.SCSICommand) {}, func(err error) bool { return errors.Is(err, initiator.ErrDeadTarget) }},
	} {
		t.Run(name, func(t *testing.T) {
			l := &liar{lie: tc.lie}
			lying(t, l, func(t *testing.T, dialer iscsi.Dialer) {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				s, err := initiator.Login(context.Background(), dialer, initiator.Config{Addr: "a:1", TargetName: nodeName})
				require.NoError(t, err)
				defer s.Close()
				begun := time.Now()
				cdb := scsi.Read(0, 1, 0)
				b := make([]byte, 512)
				_, err = s.LUN(0).Do(context.Background(), cdb[:], b, nil)
				require.ErrorIs(t, err, iscsi.ErrConnection)
				require.True(t, tc.want(err), "%T: %v", err, err)
				<-s.Done()
				require.LessOrEqual(t, time.Since(begun), 2*initiator.DefaultPingInterval+initiator.DefaultPingTimeout)
				require.Equal(t, make([]byte, 512), b)
				runtime.ReadMemStats(&after)
				require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
			})
		})
	}
}

// TestLyingLogins: a login without end, and keys that cannot be.
func TestLyingLogins(t *testing.T) {
	answer := func(text string, flags byte) func(l *liar, req *iscsi.PDU) bool {
		return func(l *liar, req *iscsi.PDU) bool {
			h := iscsi.LoginRequest(req.BHS[:])
			p := &iscsi.PDU{Data: []byte(text)}
			r := iscsi.LoginResponse(p.BHS[:])
			r.Init()
			p.BHS[1] = flags | req.BHS[1]&0x0c
			r.SetISID(h.ISID())
			r.SetITT(h.ITT())
			r.SetStatSN(l.stat)
			l.stat++
			iscsi.BHS(p.BHS[:]).SetWindow(1, 32)
			l.raw(p)
			return true
		}
	}
	for name, login := range map[string]func(l *liar, req *iscsi.PDU) bool{
		"without end":                answer("", 0),
		"text without end":           answer("X-com.example.a=b\x00", 0x40),
		"silent":                     func(*liar, *iscsi.PDU) bool { return true },
		"MaxBurstLength too large":   answer("MaxBurstLength=99999999999\x00", 0),
		"MaxBurstLength too small":   answer("MaxBurstLength=1\x00", 0),
		"receive segment too small":  answer("MaxRecvDataSegmentLength=1\x00", 0),
		"R2Ts out of range":          answer("MaxOutstandingR2T=0\x00", 0),
		"neither yes nor no":         answer("InitialR2T=Maybe\x00", 0),
		"recovery level 7":           answer("ErrorRecoveryLevel=7\x00", 0),
		"digest that was not asked":  answer("DataDigest=SHA512\x00", 0),
		"no key at all":              answer("nonsense", 0),
		"key of 100 octets":          answer(string(make([]byte, 100))+"=1\x00", 0),
		"a stage that does not come": answer("", 0x80|0x02),
	} {
		t.Run(name, func(t *testing.T) {
			lying(t, &liar{login: login}, func(t *testing.T, dialer iscsi.Dialer) {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				begun := time.Now()
				_, err := initiator.Login(ctx, dialer, initiator.Config{Addr: "a:1", TargetName: nodeName})
				require.Error(t, err)
				var refused *iscsi.LoginError
				require.True(t, errors.As(err, &refused) || name == "silent" && errors.Is(err, context.DeadlineExceeded), "%T: %v", err, err)
				require.LessOrEqual(t, time.Since(begun), 10*time.Second)
			})
		})
	}
}
