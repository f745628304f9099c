package nbd

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// Bounds of a handshake, so that a client can neither use up memory nor talk for ever.
const (
	maxName    = 4096 // of an export, in octets (NBD protocol, "Values")
	maxOption  = maxName + 4 + 2 + 2*256
	maxOptions = 256
)

// greet is the handshake of a server, fixed newstyle (NBD protocol, "Fixed newstyle negotiation"): it ends when the client has chosen the export.
//
//	server: NBDMAGIC IHAVEOPT flags
//	client: flags
//	client: IHAVEOPT option length data   --\ until EXPORT_NAME, GO or ABORT
//	server: replies to it                 --/
func (s *Server) greet(ctx context.Context, c net.Conn) (agreement, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := c.SetDeadline(time.Now().Add(s.cfg.HandshakeTimeout)); err != nil {
		return agreement{}, fmt.Errorf("nbd: handshake: %w", err)
	}
	h := &handshake{x: s.export, rw: c, largest: uint32(s.Largest())}
	h.x.Size = s.size.Load()
	if err := h.run(); err != nil {
		return agreement{}, err
	}
	if !stop() {
		return agreement{}, context.Cause(ctx)
	}
	return h.agreement, c.SetDeadline(time.Time{})
}

// handshake is one client's.
type handshake struct {
	agreement
	x        Export
	rw       io.ReadWriter
	noZeroes bool
	largest  uint32 // what clients are told as the longest request; 0: MaxRequest
	out      []byte
	head     [optionLen]byte
}

func (h *handshake) run() error {
	b := binary.BigEndian.AppendUint64(nil, magicServer)
	b = binary.BigEndian.AppendUint64(b, magicOption)
	b = binary.BigEndian.AppendUint16(b, flagFixedNewstyle|flagNoZeroes)
	if err := h.write(b); err != nil {
		return err
	}
	if err := h.read(h.head[:4]); err != nil {
		return err
	}
	flags := binary.BigEndian.Uint32(h.head[:4])
	if flags&^(flagFixedNewstyle|flagNoZeroes) != 0 {
		return &ProtocolError{What: "handshake", Why: fmt.Sprintf("client flags %#x are not known", flags)}
	}
	h.noZeroes = flags&flagNoZeroes != 0
	for range maxOptions {
		done, err := h.option()
		if err != nil || done {
			return err
		}
	}
	return &ProtocolError{What: "handshake", Why: fmt.Sprintf("%d options, and no export chosen", maxOptions)}
}

// option reads one option and answers it. It is true when the transmission phase begins.
func (h *handshake) option() (bool, error) {
	if err := h.read(h.head[:]); err != nil {
		return false, err
	}
	if m := binary.BigEndian.Uint64(h.head[:]); m != magicOption {
		return false, &ProtocolError{What: "option", Why: fmt.Sprintf("begins with %016x", m)}
	}
	opt, n := binary.BigEndian.Uint32(h.head[8:]), binary.BigEndian.Uint32(h.head[12:])
	if n > maxOption {
		if opt == optExportName || n > 1<<20 {
			return false, &ProtocolError{What: "option", Why: fmt.Sprintf("%d octets of data", n)}
		}
		if _, err := io.CopyN(io.Discard, h.rw, int64(n)); err != nil {
			return false, fmt.Errorf("nbd: handshake: %w", err)
		}
		return false, h.reply(opt, repErrTooBig, nil)
	}
	data := make([]byte, n)
	if err := h.read(data); err != nil {
		return false, err
	}
	switch opt {
	case optExportName:
		return h.exportName(string(data))
	case optAbort:
		_ = h.reply(opt, repAck, nil) // the client may be gone already
		return false, ErrAborted
	case optList:
		return false, h.list(data)
	case optInfo, optGo:
		return h.info(opt, data)
	case optStructuredReply:
		return false, h.structuredReply(data)
	case optListMeta, optSetMeta:
		return false, h.meta(opt, data)
	}
	return false, h.reply(opt, repErrUnsup, nil)
}

// has tells whether a client means this export.
func (h *handshake) has(name string) bool { return name == "" || name == h.x.Name }

// exportName is the option of old clients: it has no way to tell them of an error.
func (h *handshake) exportName(name string) (bool, error) {
	if !h.has(name) {
		return false, &ProtocolError{What: "export", Why: fmt.Sprintf("there is none with the name %q", name)}
	}
	b := binary.BigEndian.AppendUint64(nil, uint64(h.x.Size))
	b = binary.BigEndian.AppendUint16(b, uint16(h.flags()))
	if !h.noZeroes {
		b = append(b, make([]byte, 124)...)
	}
	return true, h.write(b)
}

// flags are the export's for a client that shakes hands.
func (h *handshake) flags() TransmissionFlags {
	f := h.x.Flags()
	if h.structured {
		f |= SendDF
	}
	if h.x.Prefetch {
		f |= SendCache
	}
	if h.x.fastZero() {
		f |= SendFastZero
	}
	return f
}

func (h *handshake) list(data []byte) error {
	if len(data) > 0 {
		return h.reply(optList, repErrInvalid, nil)
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(len(h.x.Name)))
	b = append(append(b, h.x.Name...), h.x.Description...)
	h.out = appendOptionReply(h.out[:0], optList, repServer, b)
	h.out = appendOptionReply(h.out, optList, repAck, nil)
	return h.write(h.out)
}

// info answers INFO and GO: length of a name, name, number of kinds of information, kinds.
func (h *handshake) info(opt uint32, data []byte) (bool, error) {
	name, kinds, ok := parseInfo(data)
	if !ok {
		return false, h.reply(opt, repErrInvalid, nil)
	}
	if !h.has(name) {
		return false, h.reply(opt, repErrUnknown, nil)
	}
	h.out = h.out[:0]
	add := func(kind uint16, data []byte) {
		b := binary.BigEndian.AppendUint16(nil, kind)
		h.out = appendOptionReply(h.out, opt, repInfo, append(b, data...))
	}
	b := binary.BigEndian.AppendUint64(nil, uint64(h.x.Size))
	add(infoExport, binary.BigEndian.AppendUint16(b, uint16(h.flags())))
	// Block sizes are told to all: a request that is not whole blocks is refused.
	b = binary.BigEndian.AppendUint32(nil, uint32(h.x.BlockSize))
	b = binary.BigEndian.AppendUint32(b, uint32(h.x.preferred()))
	add(infoBlockSize, binary.BigEndian.AppendUint32(b, h.maximum()))
	var told [infoBlockSize + 1]bool
	for ; len(kinds) >= 2; kinds = kinds[2:] {
		k := binary.BigEndian.Uint16(kinds)
		switch {
		case k > infoBlockSize || told[k]:
			continue
		case k == infoName:
			add(k, []byte(h.x.Name))
		case k == infoDescription && h.x.Description != "":
			add(k, []byte(h.x.Description))
		}
		told[k] = true
	}
	h.out = appendOptionReply(h.out, opt, repAck, nil)
	return opt == optGo, h.write(h.out)
}

// maximum is the longest request, a multiple of the block size.
func (h *handshake) maximum() uint32 {
	n := uint32(MaxRequest)
	if h.largest > 0 {
		n = h.largest
	}
	return n / uint32(h.x.BlockSize) * uint32(h.x.BlockSize)
}

// parseInfo reads the data of INFO and GO.
func parseInfo(b []byte) (name string, kinds []byte, ok bool) {
	if len(b) < 6 {
		return "", nil, false
	}
	n := binary.BigEndian.Uint32(b)
	b = b[4:]
	if n > maxName || int(n) > len(b)-2 {
		return "", nil, false
	}
	name, b = string(b[:n]), b[n:]
	if int(binary.BigEndian.Uint16(b))*2 != len(b)-2 {
		return "", nil, false
	}
	return name, b[2:], true
}

func (h *handshake) reply(opt, typ uint32, data []byte) error {
	h.out = appendOptionReply(h.out[:0], opt, typ, data)
	return h.write(h.out)
}

func (h *handshake) read(b []byte) error {
	if _, err := io.ReadFull(h.rw, b); err != nil {
		return fmt.Errorf("nbd: handshake: %w", err)
	}
	return nil
}

func (h *handshake) write(b []byte) error {
	if _, err := h.rw.Write(b); err != nil {
		return fmt.Errorf("nbd: handshake: %w", err)
	}
	return nil
}
