package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"time"
)

// MPA's frames (RFC 5044, section 7.1; RFC 6581, section 9) and the bits of their flags.
const (
	requestKey = "MPA ID Req Frame"
	replyKey   = "MPA ID Rep Frame"
	flagM      = 0x80
	flagC      = 0x40
	flagR      = 0x20
	flagS      = 0x10
)

// raw is a connection whose octets we write ourselves.
type raw struct {
	net.Conn
	crc   bool
	flags byte // of the Reply
	data  []byte
}

// rawBound is how long a peer may take to answer.
const rawBound = 20 * time.Second

// dial connects and sends a Request. With crc false CRCs are used if the peer wants them.
func dial(ctx context.Context, addr string, flags byte) (*raw, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	r := &raw{Conn: c}
	if err := c.SetDeadline(time.Now().Add(rawBound)); err != nil {
		return nil, err
	}
	// Revision 2, four octets of private data: IRD 1, ORD 1.
	if _, err := c.Write(append([]byte(requestKey), flagS|flags, 2, 0, 4, 0, 1, 0, 1)); err != nil {
		return nil, err
	}
	var h [20]byte
	if _, err := io.ReadFull(c, h[:]); err != nil {
		return nil, fmt.Errorf("no Reply: %w", err)
	}
	if string(h[:16]) != replyKey {
		return nil, fmt.Errorf("a Reply with the key %q", h[:16])
	}
	r.flags = h[16]
	r.crc = r.flags&flagC != 0
	r.data = make([]byte, binary.BigEndian.Uint16(h[18:]))
	_, err = io.ReadFull(c, r.data)
	return r, err
}

// fpdu frames a ULPDU.
func (r *raw) fpdu(ulpdu []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(ulpdu)))
	b = append(b, ulpdu...)
	b = append(b, make([]byte, -len(b)&3)...)
	var sum uint32
	if r.crc {
		sum = crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	}
	return binary.LittleEndian.AppendUint32(b, sum)
}

// send writes ULPDUs back to back, so that they arrive together.
func (r *raw) send(ulpdus ...[]byte) error {
	var b []byte
	for _, u := range ulpdus {
		b = append(b, r.fpdu(u)...)
	}
	_, err := r.Write(b)
	return err
}

// next reads one ULPDU.
func (r *raw) next() ([]byte, error) {
	var h [2]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(h[:]))
	b := make([]byte, n+(-(n+2)&3)+4)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	return b[:n], nil
}

var errEnd = errors.New("the connection ended without a Terminate")

// terminate reads up to the peer's Terminate and returns its body.
func (r *raw) terminate() ([]byte, error) {
	for {
		u, err := r.next()
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: %w", errEnd, err)
		case len(u) >= 22 && u[0]&0x80 == 0 && u[1]&15 == opTerminate:
			return u[18:], nil
		}
	}
}

// RDMAP's opcodes.
const (
	opWrite     = 0
	opRead      = 1
	opSend      = 3
	opSendInv   = 4
	opTerminate = 7
)

// tagged is a whole tagged message in one segment.
func tagged(op byte, stag uint32, to uint64, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0xc1, 0x40 | op}, stag)
	return append(binary.BigEndian.AppendUint64(b, to), payload...)
}

// untagged is a whole untagged message in one segment.
func untagged(op byte, invalidate, qn, msn uint32, payload []byte) []byte {
	b := []byte{0x41, 0x40 | op}
	for _, v := range []uint32{invalidate, qn, msn, 0} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return append(b, payload...)
}

// emptyRead is a Read Request for nothing: no STag of it is checked.
func emptyRead(msn uint32) []byte { return untagged(opRead, 0, 1, msn, make([]byte, 28)) }

// buffer is rping's control message: where a buffer of this side is.
func buffer(n uint32) []byte {
	b := binary.BigEndian.AppendUint64(nil, 4096)
	b = binary.BigEndian.AppendUint32(b, 0x1234)
	return binary.BigEndian.AppendUint32(b, n)
}

// reply answers one Request on a listener with flags and private data, and drains what follows.
func reply(ctx context.Context, addr string, flags byte, private []byte) error {
	var l net.ListenConfig
	ln, err := l.Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer ln.Close()
	fmt.Println("ready")
	c, err := ln.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(60 * time.Second)); err != nil {
		return err
	}
	var h [20]byte
	if _, err := io.ReadFull(c, h[:]); err != nil {
		return err
	}
	if !bytes.Equal(h[:16], []byte(requestKey)) {
		return fmt.Errorf("a Request with the key %q", h[:16])
	}
	if _, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint16(h[18:]))); err != nil {
		return err
	}
	if flags != 0 {
		b := append([]byte(replyKey), flagS|flags|h[16]&flagC, 2, 0, byte(4+len(private)), 0, 1, 0, 1)
		if _, err := c.Write(append(b, private...)); err != nil {
			return err
		}
	}
	_, err = io.Copy(io.Discard, c) // a peer that says nothing more
	return err
}
