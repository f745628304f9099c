package main

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"goiwarp/rnic"
	"goiwarp/rnic/soft"
)

// fault is something wrong that a client does to an rping server, and the Terminate that it must get: layer, error type
// and code, as each server writes them. siw swaps the first octet's halves. Empty: the server is not held to it.
type fault struct {
	name      string
	siw, ours string
	crc       bool // only where CRCs are on
	do        func(r *raw) error
}

var faults = []fault{
	{"corrupted CRC", "0202", "2002", true, func(r *raw) error {
		b := r.fpdu(untagged(opSend, 0, 0, 1, buffer(64)))
		b[len(b)-1] ^= 1
		_, err := r.Write(b)
		return err
	}},
	{"wrong STag", "1100", "1100", false, func(r *raw) error { return r.send(tagged(opWrite, 0xdeadbe00, 0, []byte("text"))) }},
	{"out of bounds", "1101", "1101", false, func(r *raw) error {
		// The server Reads what the client offers, and so names a buffer of its own.
		if err := r.send(untagged(opSend, 0, 0, 1, buffer(64))); err != nil {
			return err
		}
		for {
			u, err := r.next()
			if err != nil {
				return err
			}
			if u[0]&0x80 == 0 && u[1]&15 == opRead && len(u) >= 46 {
				stag, to := binary.BigEndian.Uint32(u[18:]), binary.BigEndian.Uint64(u[22:])
				return r.send(tagged(opWrite, stag, to+1<<20, []byte("text")))
			}
		}
	}},
	{"more Reads than IRD", "2007", "", false, func(r *raw) error {
		return r.send(emptyRead(1), emptyRead(2), emptyRead(3), emptyRead(4), emptyRead(5), emptyRead(6))
	}},
	{"Sends without a receive", "2102", "1202", false, func(r *raw) error {
		var all [][]byte
		for msn := range uint32(8) {
			all = append(all, untagged(opSend, 0, 0, msn+1, buffer(64)))
		}
		return r.send(all...)
	}},
	{"Send longer than its receive", "2102", "1205", false, func(r *raw) error {
		return r.send(untagged(opSend, 0, 0, 1, make([]byte, 200)))
	}},
	{"wrong MSN", "2103", "1203", false, func(r *raw) error { return r.send(untagged(opSend, 0, 0, 7, buffer(64))) }},
	{"wrong queue", "2101", "1201", false, func(r *raw) error { return r.send(untagged(opSend, 0, 9, 1, buffer(64))) }},
	{"unknown opcode", "2006", "0206", false, func(r *raw) error { return r.send(untagged(14, 0, 0, 1, buffer(64))) }},
	{"Send with Invalidate of an unknown STag", "2009", "0109", false, func(r *raw) error {
		return r.send(untagged(opSendInv, 0xdeadbe00, 0, 1, buffer(64)))
	}},
}

// runFaults does them all to the server at addr, each on a connection of its own, and judges each answer on a line.
func (o options) runFaults(ctx context.Context, addr, server string) error {
	failed := 0
	for _, f := range faults {
		want := f.siw
		if server == "ours" {
			want = f.ours
		}
		if want == "" || f.crc && !o.crc {
			continue
		}
		got, err := o.runFault(ctx, addr, f)
		switch {
		case err != nil:
			failed++
			fmt.Printf("FAIL %s: %v\n", f.name, err)
		case !strings.HasPrefix(got, want):
			failed++
			fmt.Printf("FAIL %s: Terminate %s, want %s\n", f.name, got, want)
		default:
			fmt.Printf("ok   %s: Terminate %s\n", f.name, got)
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d faults were answered wrongly", failed)
	}
	return nil
}

func (o options) runFault(ctx context.Context, addr string, f fault) (string, error) {
	var flags byte
	if o.crc {
		flags = flagC
	}
	r, err := dial(ctx, addr, flags)
	if err != nil {
		return "", err
	}
	defer r.Close()
	// siw's responder may miss a first FPDU that comes too early, and an RFC's is silent until one came: an empty
	// Write, in good order, is first.
	if err := r.send(tagged(opWrite, 1, 0, nil)); err != nil {
		return "", err
	}
	time.Sleep(100 * time.Millisecond)
	if err := r.send(tagged(opWrite, 1, 0, nil)); err != nil {
		return "", err
	}
	if err := f.do(r); err != nil {
		return "", err
	}
	body, err := r.terminate()
	return hex.EncodeToString(body), err
}

// badFirst sends a first FPDU that is none. A responder may not answer that with an FPDU (RFC 5044, section 7.1.2): it closes.
func (o options) badFirst(ctx context.Context, addr string) error {
	r, err := dial(ctx, addr, flagC)
	if err != nil {
		return err
	}
	defer r.Close()
	b := r.fpdu(untagged(opSend, 0, 0, 1, buffer(64)))
	b[5] ^= 0xff
	if _, err := r.Write(b); err != nil {
		return err
	}
	body, err := r.terminate()
	if err == nil {
		return fmt.Errorf("answered with a Terminate: %x", body)
	}
	return nil
}

// markers asks for Markers and says what it got.
func markers(ctx context.Context, addr string, refused bool) error {
	r, err := dial(ctx, addr, flagM|flagC)
	if err != nil {
		return err
	}
	defer r.Close()
	fmt.Printf("Reply flags %#02x\n", r.flags)
	if (r.flags&flagR != 0) != refused {
		return fmt.Errorf("refused: %v, want %v", !refused, refused)
	}
	return nil
}

// provoke has our own stack Write to an STag that the peer does not know, and shows what our side makes of the answer.
func (o options) provoke(ctx context.Context, addr string) (err error) {
	dev := soft.New(soft.Config{Log: quiet})
	defer func() { err = errors.Join(err, dev.Close()) }()
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	cq, err := dev.CreateCQ(rnic.CQConfig{Depth: 16})
	if err != nil {
		return err
	}
	mr, err := pd.AllocMR(4096, rnic.LocalWrite)
	if err != nil {
		return err
	}
	link := &rnic.LinkOptions{}
	if !o.crc {
		link.CRC = rnic.Off
	}
	c, err := dev.Dial(ctx, addr, link)
	if err != nil {
		return err
	}
	ended := make(chan error, 4)
	qp, err := c.CreateQP(rnic.QPConfig{PD: pd, SendCQ: cq, RecvCQ: cq, SendDepth: 4, RecvDepth: 4, OnEvent: func(ev rnic.Event) {
		if ev.Kind == rnic.Failed || ev.Kind == rnic.Disconnected {
			ended <- ev.Err
		}
	}})
	if err != nil {
		return err
	}
	if _, err := c.Connect(ctx, rnic.ConnParams{IRD: 1, ORD: 1}); err != nil {
		return err
	}
	if err := qp.PostSend(&rnic.SendWR{Op: rnic.OpWrite, SGE: []rnic.SGE{{MR: mr, Len: 16}}, RemoteSTag: 0xdeadbe00, Flags: rnic.Signaled}); err != nil {
		return err
	}
	select {
	case err := <-ended:
		fmt.Println("told:", err)
		if err == nil || !strings.Contains(strings.ToLower(err.Error()), "stag") {
			return fmt.Errorf("the error does not say what was wrong: %w", err)
		}
		if strings.Contains(err.Error(), "\n") {
			return errors.New("the error has more than one line")
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	return qp.Close()
}
