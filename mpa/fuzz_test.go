package mpa

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"
)

// FuzzParseFrame: what parses is a frame that is written in the same way, but for bits that are reserved.
func FuzzParseFrame(f *testing.F) {
	for _, x := range allExchanges(f) {
		f.Add(x.request)
		f.Add(x.reply)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseFrame(b)
		if err != nil {
			if !errors.Is(err, ErrFrame) {
				t.Fatalf("%v is not a frame error", err)
			}
			return
		}
		q, err := ParseFrame(p.AppendTo(nil))
		if err != nil {
			t.Fatal(err)
		}
		if p.String() != q.String() || !bytes.Equal(p.PrivateData, q.PrivateData) {
			t.Fatalf("%v became %v", &p, &q)
		}
	})
}

// fuzzOptions spreads one octet over the options.
func fuzzOptions(bits byte) Options {
	pick := func(i int) Toggle { return Toggle(bits>>i&1) * On }
	o := Options{CRC: pick(0), Markers: pick(1), Revision: 2 - int(bits>>2&1), RequestTimeout: time.Minute, ReplyTimeout: time.Minute}
	if o.Revision == 2 {
		o.PeerToPeer = pick(3)
	}
	if bits&0x10 != 0 {
		o.CRC = Off
	}
	return o
}

// drain reads FPDUs until there is an error, and checks that it stays.
func drain(t *testing.T, c *Conn, way int) {
	for {
		f, err := c.Next()
		if err == nil {
			_, err = take(f, way)
		}
		if err == nil {
			way++
			continue
		}
		var e *Error
		if !errors.Is(err, io.EOF) && !errors.As(err, &e) {
			t.Fatalf("%v has no code", err)
		}
		if _, again := c.Next(); again != err {
			t.Fatalf("%v became %v", err, again)
		}
		return
	}
}

// FuzzResponder lets any octets play the initiator, startup and FPDUs.
func FuzzResponder(f *testing.F) {
	for _, x := range readExchanges(f, "siw-responder.txt") {
		f.Add(append(bytes.Clone(x.request), bytes.Join(x.fpdus, nil)...), byte(0x10), uint16(len(x.request)))
		f.Add(x.request, byte(0), uint16(3))
	}
	f.Fuzz(func(t *testing.T, b []byte, bits byte, split uint16) {
		peer, own := MemPipe(len(b) + 2*MaxFrameLen)
		defer peer.Close()
		defer own.Close()
		n := min(int(split), len(b))
		peer.TryWrite([][]byte{b[:n]})
		if bits&0x80 == 0 {
			peer.CloseWrite()
		} else if n < headerLen {
			return // it would wait
		} else if need, err := frameLen(b[:n], false); err == nil && need > n {
			return
		}
		r, err := ReadRequest(context.Background(), own, nil, fuzzOptions(bits))
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("%v has no code", err)
			}
			if _, err := own.TryWrite([][]byte{{1}}); err == nil {
				t.Fatal("socket is open after an error")
			}
			return
		}
		c, p, err := r.Accept(context.Background(), r.PrivateData, 8, 8)
		if err != nil {
			t.Fatal(err)
		}
		if p.IRD > UlpNegotiates || p.ORD > UlpNegotiates || p.IRD > 8 || p.ORD > 8 {
			t.Fatalf("promised too much: %v", p)
		}
		if bits&0x80 != 0 {
			peer.TryWrite([][]byte{b[n:]})
			peer.CloseWrite()
		}
		drain(t, c, int(bits))
	})
}

// FuzzInitiator lets any octets play the responder, startup and FPDUs.
func FuzzInitiator(f *testing.F) {
	for _, x := range readExchanges(f, "siw-responder.txt") {
		f.Add(append(bytes.Clone(x.reply), bytes.Join(x.fpdus, nil)...), byte(0x10))
		f.Add(x.reply, byte(8))
	}
	f.Fuzz(func(t *testing.T, b []byte, bits byte) {
		peer, own := MemPipe(len(b) + MaxFrameLen)
		defer peer.Close()
		defer own.Close()
		peer.TryWrite([][]byte{b})
		peer.CloseWrite()
		c, p, err := Initiate(context.Background(), own, fuzzOptions(bits), nil, 8, 8)
		var e *Error
		var rej *RejectError
		switch {
		case errors.As(err, &rej):
			if _, err := own.TryWrite([][]byte{{1}}); err != nil {
				t.Fatal("socket is closed after a refusal")
			}
		case errors.As(err, &e):
			if (c != nil) != (e.Code == CodeIRD || e.Code == CodeRTR) {
				t.Fatalf("%v with connection %t", err, c != nil)
			}
		case err != nil:
			t.Fatalf("%v has no code", err)
		case p.ORD > 8 || p.IRD != 8:
			t.Fatalf("%v", p)
		default:
			drain(t, c, int(bits))
		}
	})
}

// FuzzFPDU reads any octets as a stream of FPDUs, in pieces of any size, and once more in one piece: the
// same FPDUs have to come out of both.
func FuzzFPDU(f *testing.F) {
	for _, x := range allExchanges(f) {
		f.Add(bytes.Join(x.fpdus, nil), x.crc(), false, uint16(7), byte(0))
	}
	f.Add(octetsOf(f, true, true, pattern(700, 1), pattern(3, 2), pattern(6000, 3)), true, true, uint16(100), byte(1))
	f.Add(octetsOf(f, false, false, pattern(700, 1), pattern(40_000, 2), pattern(6000, 3)), false, false, uint16(1000), byte(2))
	f.Fuzz(func(t *testing.T, b []byte, withCRC, markers bool, cut uint16, way byte) {
		read := func(cut int) (all [][]byte) {
			peer, own := MemPipe(len(b))
			defer peer.Close()
			defer own.Close()
			peer.TryWrite([][]byte{b})
			peer.CloseWrite()
			c := newConn(&chopper{Socket: own, cuts: []int{cut}}, &Params{CRC: withCRC, MarkersIn: markers}, 0)
			for {
				f, err := c.Next()
				if err != nil {
					return all
				}
				u, err := take(f, int(way))
				if err != nil {
					return all
				}
				all = append(all, u)
			}
		}
		x, y := read(int(cut)+1), read(1<<20)
		if len(x) != len(y) {
			t.Fatalf("%d FPDUs in pieces, %d in one", len(x), len(y))
		}
		for i := range x {
			if !bytes.Equal(x[i], y[i]) {
				t.Fatalf("FPDU %d differs", i)
			}
		}
	})
}
