package iscsi

import (
	"encoding/binary"
	"fmt"
)

const (
	offAsyncEvent = 36
	offAsyncVCode = 37
	offParameter1 = 38
	offParameter2 = 40
	offParameter3 = 42
)

// AsyncEvent is what an Asynchronous Message tells (RFC 7143, section 11.9.1).
type AsyncEvent uint8

// Asynchronous events.
const (
	AsyncSense          AsyncEvent = 0 // sense data in the data segment
	AsyncLogout         AsyncEvent = 1 // log out within Parameter3 seconds
	AsyncDropConnection AsyncEvent = 2 // connection Parameter1 will be or was dropped
	AsyncDropSession    AsyncEvent = 3 // all connections will be or were dropped
	AsyncNegotiate      AsyncEvent = 4 // start a text negotiation within Parameter3 seconds
	AsyncTaskTerminated AsyncEvent = 5 // all tasks of a LUN are gone (TaskReporting=FastAbort)
	AsyncVendor         AsyncEvent = 255
)

func (e AsyncEvent) String() string { return nameOf(asyncEventNames[:], int(e)) }

var asyncEventNames = [...]string{
	"SCSI asynchronous event", "logout request", "connection drop", "session drop", "negotiation request", "task termination",
}

// AsyncMessage is the BHS of an Asynchronous Message PDU (RFC 7143, section 11.9).
//
//	 0        1        2                 4        5                 8
//	+--------+--------+-----------------+--------+-----------------+
//	|..0x32  |1       |        -        | AHSLen | DataSegmentLen  |
//	+--------+--------+-----------------+--------+-----------------+
//	|                             LUN (8)                          | 8
//	+--------------------------------+-----------------------------+
//	|           0xffffffff           |        reserved (4)         | 16
//	+--------------------------------+-----------------------------+
//	|            StatSN (4)          |        ExpCmdSN (4)         | 24
//	+--------------------------------+--------+-------+------------+
//	|           MaxCmdSN (4)         | event  | VCode | Parameter1 | 32
//	+---------------+----------------+--------+-------+------------+
//	|  Parameter2   |   Parameter3   |        reserved (4)         | 40
type AsyncMessage []byte

// Init makes h an empty AsyncMessage.
func (h AsyncMessage) Init() {
	clear(h[:BHSLen])
	h[0] = byte(OpAsync)
	h[1] = 0x80 // F is always set
	binary.BigEndian.PutUint32(h[offITT:], ReservedTag)
}

// LUN is the logical unit number, its eight octets as on the wire.
func (h AsyncMessage) LUN() uint64 { return binary.BigEndian.Uint64(h[offLUN:]) }

// SetLUN sets what LUN returns.
func (h AsyncMessage) SetLUN(v uint64) { binary.BigEndian.PutUint64(h[offLUN:], v) }

// StatSN is the number of this status.
func (h AsyncMessage) StatSN() SN { return SN(binary.BigEndian.Uint32(h[offStatSN:])) }

// SetStatSN sets what StatSN returns.
func (h AsyncMessage) SetStatSN(v SN) { binary.BigEndian.PutUint32(h[offStatSN:], uint32(v)) }

// ExpCmdSN is the next CmdSN that the target expects.
func (h AsyncMessage) ExpCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offExpCmdSN:])) }

// SetExpCmdSN sets what ExpCmdSN returns.
func (h AsyncMessage) SetExpCmdSN(v SN) { binary.BigEndian.PutUint32(h[offExpCmdSN:], uint32(v)) }

// MaxCmdSN is the last CmdSN that the target takes now.
func (h AsyncMessage) MaxCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offMaxCmdSN:])) }

// SetMaxCmdSN sets what MaxCmdSN returns.
func (h AsyncMessage) SetMaxCmdSN(v SN) { binary.BigEndian.PutUint32(h[offMaxCmdSN:], uint32(v)) }

// Event is what happened.
func (h AsyncMessage) Event() AsyncEvent { return AsyncEvent(h[offAsyncEvent]) }

// SetEvent sets what Event returns.
func (h AsyncMessage) SetEvent(v AsyncEvent) { h[offAsyncEvent] = byte(v) }

// VCode is a vendor code, with vendor events.
func (h AsyncMessage) VCode() uint8 { return h[offAsyncVCode] }

// SetVCode sets what VCode returns.
func (h AsyncMessage) SetVCode(v uint8) { h[offAsyncVCode] = v }

// Parameter1 is a connection ID, with connection drops.
func (h AsyncMessage) Parameter1() uint16 { return binary.BigEndian.Uint16(h[offParameter1:]) }

// SetParameter1 sets what Parameter1 returns.
func (h AsyncMessage) SetParameter1(v uint16) { binary.BigEndian.PutUint16(h[offParameter1:], v) }

// Parameter2 is Time2Wait in seconds, with drops.
func (h AsyncMessage) Parameter2() uint16 { return binary.BigEndian.Uint16(h[offParameter2:]) }

// SetParameter2 sets what Parameter2 returns.
func (h AsyncMessage) SetParameter2(v uint16) { binary.BigEndian.PutUint16(h[offParameter2:], v) }

// Parameter3 is Time2Retain in seconds with drops, the time left with requests.
func (h AsyncMessage) Parameter3() uint16 { return binary.BigEndian.Uint16(h[offParameter3:]) }

// SetParameter3 sets what Parameter3 returns.
func (h AsyncMessage) SetParameter3(v uint16) { binary.BigEndian.PutUint16(h[offParameter3:], v) }

// String is h on one line, for logs.
func (h AsyncMessage) String() string {
	return fmt.Sprintf("Asynchronous Message %v LUN %#x parameters %d %d %d StatSN %d ExpCmdSN %d MaxCmdSN %d",
		h.Event(), h.LUN(), h.Parameter1(), h.Parameter2(), h.Parameter3(), h.StatSN(), h.ExpCmdSN(), h.MaxCmdSN())
}
