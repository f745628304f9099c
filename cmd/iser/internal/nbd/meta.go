package nbd

import (
	"encoding/binary"
	"strings"
)

// agreement is what a handshake has settled besides the export. The zero value is that of a client that asks for nothing, as the kernel.
type agreement struct {
	structured bool // structured replies
	allocation bool // the context base:allocation
}

// structuredReply answers a client that takes structured replies.
func (h *handshake) structuredReply(data []byte) error {
	if len(data) > 0 || h.structured {
		return h.reply(optStructuredReply, repErrInvalid, nil)
	}
	h.structured = true
	return h.reply(optStructuredReply, repAck, nil)
}

// meta answers LIST_META_CONTEXT, which asks what contexts there are, and SET_META_CONTEXT, which chooses from them.
func (h *handshake) meta(opt uint32, data []byte) error {
	name, queries, ok := parseMeta(data)
	if opt == optSetMeta {
		h.allocation = false // each one undoes those before it
	}
	switch {
	case !ok || !h.structured:
		return h.reply(opt, repErrInvalid, nil)
	case !h.has(name):
		return h.reply(opt, repErrUnknown, nil)
	}
	found := opt == optListMeta && len(queries) == 0
	for _, q := range queries {
		namespace := strings.HasSuffix(q, ":") && strings.HasPrefix(contextAllocation, q)
		found = found || q == contextAllocation || opt == optListMeta && namespace
	}
	h.out = h.out[:0]
	if found {
		id := uint32(0) // in a list it means nothing
		if opt == optSetMeta {
			id, h.allocation = contextID, true
		}
		b := binary.BigEndian.AppendUint32(nil, id)
		h.out = appendOptionReply(h.out, opt, repMeta, append(b, contextAllocation...))
	}
	h.out = appendOptionReply(h.out, opt, repAck, nil)
	return h.write(h.out)
}

// parseMeta reads the data of both options: length of a name, name, number of queries, length and text of each.
func parseMeta(b []byte) (name string, queries []string, ok bool) {
	text := func() (string, bool) {
		if len(b) < 4 {
			return "", false
		}
		n := binary.BigEndian.Uint32(b)
		b = b[4:]
		if n > maxName || int(n) > len(b) {
			return "", false
		}
		s := string(b[:n])
		b = b[n:]
		return s, true
	}
	if name, ok = text(); !ok || len(b) < 4 {
		return "", nil, false
	}
	count := binary.BigEndian.Uint32(b)
	b = b[4:]
	if uint64(count)*4 > uint64(len(b)) {
		return "", nil, false
	}
	for range count {
		q, ok := text()
		if !ok {
			return "", nil, false
		}
		queries = append(queries, q)
	}
	return name, queries, len(b) == 0
}
