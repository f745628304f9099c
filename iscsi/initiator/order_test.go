package initiator_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/tcp"
)

// What the disorderly target moves: sequences of orderBurst octets (MaxBurstLength), each in PDUs of orderPDU.
const (
	orderLen   = 64 << 10
	orderBurst = 8 << 10
	orderPDU   = 2 << 10
)

// step is a part of a command's data.
type step struct{ off, n int }

// disorder cuts a command's data into sequences, and these into PDUs, shuffled where that was agreed: within sequences by pdus, sequences among each other
// by sequences.
func disorder(r *rand.Rand, pdus, sequences bool) [][]step {
	var all [][]step
	for off := 0; off < orderLen; off += orderBurst {
		var one []step
		for at := off; at < off+orderBurst; at += orderPDU {
			one = append(one, step{at, orderPDU})
		}
		if pdus {
			r.Shuffle(len(one), func(i, j int) { one[i], one[j] = one[j], one[i] })
		}
		all = append(all, one)
	}
	if sequences {
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	return all
}

// disorderly is a target that sends Data-In, and asks for Data-Out, in an order of its own.
type disorderly struct {
	contents []byte   // what is read
	order    [][]step // of Data-In, and of R2Ts: one a sequence
	taken    []byte   // what was written
	command  iscsi.SCSICommand
	asked    int            // R2Ts sent
	open     map[uint32]int // by TTT: the sequence that it asks for
	sns      map[uint32]uint32
	got      map[uint32]int
	broken   error
}

const (
	orderR2Ts = 3 // MaxOutstandingR2T
	orderTTT  = 0x100
)

func (d *disorderly) answer(l *liar, c iscsi.SCSICommand) {
	if c.Write() {
		d.command = slices.Clone(c)
		d.ask(l)
		return
	}
	sn := uint32(0)
	for _, sequence := range d.order {
		for i, s := range sequence {
			p := &iscsi.PDU{Data: d.contents[s.off : s.off+s.n]}
			h := iscsi.DataInPDU(p.BHS[:])
			h.Init()
			h.SetITT(c.ITT())
			h.SetTTT(iscsi.ReservedTag)
			h.SetOffset(uint32(s.off))
			h.SetDataSN(sn)
			h.SetFinal(i == len(sequence)-1)
			l.send(p, false)
			sn++
		}
	}
	l.response(c, func(r iscsi.SCSIResponse) { r.SetExpDataSN(sn) })
}

// ask sends as many R2Ts as may be outstanding.
func (d *disorderly) ask(l *liar) {
	for len(d.open) < orderR2Ts && d.asked < len(d.order) {
		p := new(iscsi.PDU)
		r := iscsi.R2T(p.BHS[:])
		r.Init()
		r.SetITT(d.command.ITT())
		r.SetTTT(orderTTT + uint32(d.asked))
		r.SetR2TSN(uint32(d.asked))
		first := slices.MinFunc(d.order[d.asked], func(a, b step) int { return a.off - b.off })
		r.SetOffset(uint32(first.off))
		r.SetDesiredLen(orderBurst)
		l.send(p, false)
		d.open[r.TTT()] = first.off
		d.asked++
	}
}

func (d *disorderly) take(l *liar, p *iscsi.PDU) {
	h := iscsi.DataOutPDU(p.BHS[:])
	begin, known := d.open[h.TTT()]
	off, end := int(h.Offset()), int(h.Offset())+len(p.Data)
	switch {
	case !known || off < begin || end > begin+orderBurst:
		d.broken = fmt.Errorf("Data-Out of %d octets at %d with TTT %#x, which asks for what begins at %d (%t)", len(p.Data), off, h.TTT(), begin, known)
	case h.DataSN() != d.sns[h.TTT()]:
		d.broken = fmt.Errorf("DataSN %d with TTT %#x, expected %d", h.DataSN(), h.TTT(), d.sns[h.TTT()])
	case h.Final() != (d.got[h.TTT()]+len(p.Data) == orderBurst):
		d.broken = fmt.Errorf("F is %t after %d octets of TTT %#x", h.Final(), d.got[h.TTT()]+len(p.Data), h.TTT())
	}
	copy(d.taken[min(off, orderLen):], p.Data)
	d.sns[h.TTT()]++
	d.got[h.TTT()] += len(p.Data)
	if !h.Final() {
		return
	}
	delete(d.open, h.TTT())
	if d.ask(l); len(d.open) == 0 {
		l.response(d.command, func(iscsi.SCSIResponse) {})
	}
}

// TestDataInAnyOrder: a target that has agreed to no order sends sequences, and PDUs within them, as they come to its mind, and asks for a
// write's data likewise, several R2Ts at once. All octets arrive where they belong (RFC 7143, sections 13.18 and 13.19).
func TestDataInAnyOrder(t *testing.T) {
	for _, o := range []struct{ pdus, sequences bool }{{true, true}, {true, false}, {false, true}, {false, false}} {
		t.Run(fmt.Sprintf("pdus=%t,sequences=%t", o.pdus, o.sequences), func(t *testing.T) {
			for seed := range uint64(8) {
				r := rand.New(rand.NewPCG(seed, 1))
				set := iscsi.Settings{
					AnyPDUOrder: o.pdus, AnySequenceOrder: o.sequences, MaxBurstLength: orderBurst, MaxOutstandingR2T: orderR2Ts,
					NoImmediateData: true, MaxRecvDataSegment: orderPDU,
				}
				d := newDisorderly(r, o.pdus, o.sequences)
				lying(t, &liar{lie: d.answer, out: d.take, set: set}, func(t *testing.T, dialer iscsi.Dialer) {
					s, err := initiator.Login(context.Background(), dialer, initiator.Config{Addr: "a:1", TargetName: nodeName, Settings: set})
					require.NoError(t, err)
					defer s.Close()
					require.Equal(t, !o.pdus, s.Params().DataPDUInOrder)
					require.Equal(t, !o.sequences, s.Params().DataSequenceInOrder)
					read, write := scsi.Read(0, orderLen/512, 0), scsi.Write(0, orderLen/512, 0)
					b := make([]byte, orderLen)
					_, err = s.LUN(0).Do(context.Background(), read[:], b, nil)
					require.NoError(t, err)
					require.True(t, bytes.Equal(d.contents, b), "seed %d", seed)
					_, err = s.LUN(0).Do(context.Background(), write[:], nil, d.contents)
					require.NoError(t, err)
					require.NoError(t, d.broken)
					require.True(t, bytes.Equal(d.contents, d.taken), "seed %d", seed)
				})
			}
		})
	}
}

func newDisorderly(r *rand.Rand, pdus, sequences bool) *disorderly {
	d := &disorderly{
		contents: make([]byte, orderLen), taken: make([]byte, orderLen), order: disorder(r, pdus, sequences),
		open: map[uint32]int{}, sns: map[uint32]uint32{}, got: map[uint32]int{},
	}
	for i := range d.contents {
		d.contents[i] = byte(r.Uint32())
	}
	return d
}

// TestOrderThatWasAgreedIsKept: where one side wants order there is order, and a target that breaks it loses the session.
func TestOrderThatWasAgreedIsKept(t *testing.T) {
	offer := iscsi.Settings{AnyPDUOrder: true, AnySequenceOrder: true, MaxBurstLength: orderBurst, NoImmediateData: true, MaxOutstandingR2T: orderR2Ts}
	agree := offer
	agree.AnyPDUOrder, agree.AnySequenceOrder, agree.MaxRecvDataSegment = false, false, orderPDU
	for name, cdb := range map[string]scsi.CDB{"read": scsi.Read(0, orderLen/512, 0), "write": scsi.Write(0, orderLen/512, 0)} {
		t.Run(name, func(t *testing.T) {
			d := newDisorderly(rand.New(rand.NewPCG(1, 1)), true, true)
			d.order[0], d.order[1] = d.order[1], d.order[0]
			lying(t, &liar{lie: d.answer, out: d.take, set: agree}, func(t *testing.T, dialer iscsi.Dialer) {
				s, err := initiator.Login(context.Background(), dialer, initiator.Config{Addr: "a:1", TargetName: nodeName, Settings: offer})
				require.NoError(t, err)
				defer s.Close()
				require.True(t, s.Params().DataPDUInOrder && s.Params().DataSequenceInOrder)
				in, out := make([]byte, orderLen), []byte(nil)
				if name == "write" {
					in, out = nil, d.contents
				}
				_, err = s.LUN(0).Do(context.Background(), cdb[:], in, out)
				var e *tcp.Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, tcp.Sequence, e.Kind)
				require.ErrorIs(t, err, iscsi.ErrConnection)
				<-s.Done()
			})
		})
	}
}
