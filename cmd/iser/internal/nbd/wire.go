package nbd

import (
	"encoding/binary"
	"fmt"
)

// Magic numbers of the handshake and of the transmission phase (NBD protocol, "Protocol phases").
const (
	magicServer      = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption      = 0x49484156454f5054 // "IHAVEOPT"
	magicOptionReply = 0x0003e889045565a9
	magicRequest     = 0x25609513
	magicSimpleReply = 0x67446698
	magicChunk       = 0x668e33ef
)

// Handshake flags: the server's, and the client's answer (NBD protocol, "Handshake flags", "Client flags").
const (
	flagFixedNewstyle = 1 << 0
	flagNoZeroes      = 1 << 1
)

// TransmissionFlags tell a client what an export can do (NBD protocol, "Transmission flags"). The kernel takes the same ones.
type TransmissionFlags uint16

// The transmission flags that are in use here.
const (
	HasFlags        TransmissionFlags = 1 << 0
	ReadOnly        TransmissionFlags = 1 << 1
	SendFlush       TransmissionFlags = 1 << 2
	SendFUA         TransmissionFlags = 1 << 3
	Rotational      TransmissionFlags = 1 << 4
	SendTrim        TransmissionFlags = 1 << 5
	SendWriteZeroes TransmissionFlags = 1 << 6
	SendDF          TransmissionFlags = 1 << 7
	CanMultiConn    TransmissionFlags = 1 << 8
	SendCache       TransmissionFlags = 1 << 10
	SendFastZero    TransmissionFlags = 1 << 11
)

// Options of the handshake (NBD protocol, "Option types").
const (
	optExportName      = 1
	optAbort           = 2
	optList            = 3
	optInfo            = 6
	optGo              = 7
	optStructuredReply = 8
	optListMeta        = 9
	optSetMeta         = 10
)

// Replies to options (NBD protocol, "Option reply types"). Errors have the top bit.
const (
	repAck        = 1
	repServer     = 2
	repInfo       = 3
	repMeta       = 4
	repErrUnsup   = 1<<31 + 1
	repErrInvalid = 1<<31 + 3
	repErrUnknown = 1<<31 + 6
	repErrTooBig  = 1<<31 + 9
)

// Kinds of information in answers to optInfo and optGo.
const (
	infoExport      = 0
	infoName        = 1
	infoDescription = 2
	infoBlockSize   = 3
)

// Command is a request's type (NBD protocol, "Request types").
type Command uint16

// The commands that are served.
const (
	CmdRead        Command = 0
	CmdWrite       Command = 1
	CmdDisconnect  Command = 2
	CmdFlush       Command = 3
	CmdTrim        Command = 4
	CmdCache       Command = 5
	CmdWriteZeroes Command = 6
	CmdBlockStatus Command = 7
)

func (c Command) String() string {
	switch c {
	case CmdRead:
		return "read"
	case CmdWrite:
		return "write"
	case CmdDisconnect:
		return "disconnect"
	case CmdFlush:
		return "flush"
	case CmdTrim:
		return "trim"
	case CmdCache:
		return "cache"
	case CmdWriteZeroes:
		return "write zeroes"
	case CmdBlockStatus:
		return "block status"
	}
	return fmt.Sprintf("command %d", uint16(c))
}

// Command flags (NBD protocol, "Command flags").
const (
	cmdFlagFUA      = 1 << 0
	cmdFlagNoHole   = 1 << 1
	cmdFlagDF       = 1 << 2 // a read is answered by one chunk
	cmdFlagReqOne   = 1 << 3 // one extent is enough
	cmdFlagFastZero = 1 << 4 // fail rather than write zeroes out
)

// Errno is an error as a reply carries it (NBD protocol, "Error values"). 0 is success.
type Errno uint32

// The errors that are sent.
const (
	errnoPerm     Errno = 1
	errnoIO       Errno = 5
	errnoInval    Errno = 22
	errnoNoSpace  Errno = 28
	errnoNotSup   Errno = 95
	errnoShutdown Errno = 108
)

// Lengths of headers in octets.
const (
	requestLen     = 28
	simpleReplyLen = 16
	chunkLen       = 20
	optionLen      = 16
	optionReplyLen = 20
)

// MaxRequest is the most octets that a read or a write may have. A client that was told no maximum may send as many (NBD protocol, "Block
// size constraints").
const MaxRequest = 32 << 20

// request is a request's header, without its payload:
//
//	 0       4       6      8          16         24       28
//	+-------+-------+------+----------+----------+--------+
//	| magic | flags | type |  cookie  |  offset  | length |
//	+-------+-------+------+----------+----------+--------+
type request struct {
	flags  uint16
	typ    Command
	cookie uint64
	offset uint64
	length uint32
}

// parseRequest reads a header of requestLen octets.
func parseRequest(b []byte) (request, error) {
	if m := binary.BigEndian.Uint32(b); m != magicRequest {
		return request{}, &ProtocolError{What: "request", Why: fmt.Sprintf("begins with %08x", m)}
	}
	return request{
		flags: binary.BigEndian.Uint16(b[4:]), typ: Command(binary.BigEndian.Uint16(b[6:])), cookie: binary.BigEndian.Uint64(b[8:]),
		offset: binary.BigEndian.Uint64(b[16:]), length: binary.BigEndian.Uint32(b[24:]),
	}, nil
}

// changes tells whether the request is to change the disk.
func (r *request) changes() bool {
	return r.typ == CmdWrite || r.typ == CmdTrim || r.typ == CmdWriteZeroes
}

// payload is how many octets follow the header.
func (r *request) payload() uint32 {
	if r.typ == CmdWrite {
		return r.length
	}
	return 0
}

// moves is how many octets the disk moves for it.
func (r *request) moves() int {
	if r.typ == CmdRead || r.typ == CmdWrite {
		return int(r.length)
	}
	return 0
}

// putSimpleReply fills a reply's header: magic, error, cookie.
func putSimpleReply(b *[simpleReplyLen]byte, e Errno, cookie uint64) {
	binary.BigEndian.PutUint32(b[0:], magicSimpleReply)
	binary.BigEndian.PutUint32(b[4:], uint32(e))
	binary.BigEndian.PutUint64(b[8:], cookie)
}

// appendOptionReply appends a reply to an option: magic, option, type, length, data.
func appendOptionReply(b []byte, option, typ uint32, data []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, magicOptionReply)
	b = binary.BigEndian.AppendUint32(b, option)
	b = binary.BigEndian.AppendUint32(b, typ)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}
