package nbd

import "encoding/binary"

// Types of chunks, and the flag of a reply's last one (NBD protocol, "Structured reply types"). Errors have the top bit.
const (
	chunkOffsetData  = 1
	chunkBlockStatus = 5
	chunkError       = 1<<15 + 1

	chunkDone = 1 << 0
)

// maxHead is the longest head of a reply: a chunk's header and the offset of its data.
const maxHead = chunkLen + 8

// head is all of a reply that comes before a payload.
type head struct {
	b [maxHead]byte
	n int
}

func (h *head) bytes() []byte { return h.b[:h.n] }

// simple makes h a simple reply.
func (h *head) simple(e Errno, cookie uint64) {
	putSimpleReply((*[simpleReplyLen]byte)(h.b[:]), e, cookie)
	h.n = simpleReplyLen
}

// chunk makes h the header of a structured reply's only chunk, with n octets of payload:
//
//	 0       4       6      8        16       20
//	+-------+-------+------+--------+--------+
//	| magic | flags | type | cookie | length |
//	+-------+-------+------+--------+--------+
func (h *head) chunk(typ uint16, cookie uint64, n uint32) {
	b := binary.BigEndian.AppendUint32(h.b[:0], magicChunk)
	b = binary.BigEndian.AppendUint16(b, chunkDone)
	b = binary.BigEndian.AppendUint16(b, typ)
	b = binary.BigEndian.AppendUint64(b, cookie)
	binary.BigEndian.AppendUint32(b, n)
	h.n = chunkLen
}

// data is the head of n octets that were read at offset.
func (h *head) data(cookie, offset uint64, n uint32) {
	h.chunk(chunkOffsetData, cookie, 8+n)
	binary.BigEndian.PutUint64(h.b[chunkLen:], offset)
	h.n += 8
}

// failure is a whole reply that tells of an error, without words.
func (h *head) failure(cookie uint64, e Errno) {
	h.chunk(chunkError, cookie, 6)
	binary.BigEndian.PutUint32(h.b[chunkLen:], uint32(e))
	binary.BigEndian.PutUint16(h.b[chunkLen+4:], 0)
	h.n += 6
}

// putHead fills the task's head: structured where the client has to have it so, which is for what carries a payload; else simple.
func (k *task) putHead(e Errno) {
	switch structured := k.conn.agreed.structured; {
	case !structured || k.typ != CmdRead && k.typ != CmdBlockStatus:
		k.head.simple(e, k.cookie)
	case e != 0:
		k.head.failure(k.cookie, e)
	case k.typ == CmdRead:
		k.head.data(k.cookie, k.offset, k.length)
	default:
		k.head.chunk(chunkBlockStatus, k.cookie, uint32(len(k.tail)))
	}
}
