package iscsi

import (
	"encoding/binary"
	"fmt"
)

const (
	offRTT      = 20
	offRefCmdSN = 32
)

// TaskFunction is a task management function (RFC 7143, section 11.5.1; from 9 on RFC 7144, section 6.3).
type TaskFunction uint8

// Task management functions.
const (
	AbortTask        TaskFunction = 1
	AbortTaskSet     TaskFunction = 2
	ClearACA         TaskFunction = 3
	ClearTaskSet     TaskFunction = 4
	LogicalUnitReset TaskFunction = 5
	TargetWarmReset  TaskFunction = 6
	TargetColdReset  TaskFunction = 7
	TaskReassign     TaskFunction = 8
	QueryTask        TaskFunction = 9
	QueryTaskSet     TaskFunction = 10
	ITNexusReset     TaskFunction = 11
	QueryAsyncEvent  TaskFunction = 12
)

var taskFunctionNames = [...]string{
	1: "ABORT TASK", 2: "ABORT TASK SET", 3: "CLEAR ACA", 4: "CLEAR TASK SET", 5: "LOGICAL UNIT RESET",
	6: "TARGET WARM RESET", 7: "TARGET COLD RESET", 8: "TASK REASSIGN", 9: "QUERY TASK", 10: "QUERY TASK SET",
	11: "I_T NEXUS RESET", 12: "QUERY ASYNCHRONOUS EVENT",
}

func (f TaskFunction) String() string { return nameOf(taskFunctionNames[:], int(f)) }

// TaskResponse is the outcome of a task management function (RFC 7143, section 11.6.1; RFC 7144, section 6.2).
type TaskResponse uint8

// Outcomes of task management functions.
const (
	TaskComplete         TaskResponse = 0
	TaskNoTask           TaskResponse = 1
	TaskNoLUN            TaskResponse = 2
	TaskStillAllegiant   TaskResponse = 3
	TaskNoReassign       TaskResponse = 4
	TaskNotSupported     TaskResponse = 5
	TaskNotAuthorized    TaskResponse = 6
	TaskSucceeded        TaskResponse = 7 // a query found something (RFC 7144)
	TaskFunctionRejected TaskResponse = 255
)

func (r TaskResponse) String() string {
	if r == TaskFunctionRejected {
		return "function rejected"
	}
	return nameOf(taskResponseNames[:], int(r))
}

var taskResponseNames = [...]string{
	"function complete", "task does not exist", "LUN does not exist", "task still allegiant",
	"task allegiance reassignment not supported", "function not supported", "function not authorized", "function succeeded",
}

// TaskMgmtRequest is the BHS of a Task Management Function Request (RFC 7143, section 11.5).
//
//	 0        1        2                 4        5                 8
//	+--------+--------+-----------------+--------+-----------------+
//	|.I 0x02 |1 funct.|        -        | AHSLen | DataSegmentLen  |
//	+--------+--------+-----------------+--------+-----------------+
//	|                             LUN (8)                          | 8
//	+--------------------------------+-----------------------------+
//	|             ITT (4)            |   Referenced Task Tag (4)   | 16
//	+--------------------------------+-----------------------------+
//	|            CmdSN (4)           |        ExpStatSN (4)        | 24
//	+--------------------------------+-----------------------------+
//	|          RefCmdSN (4)          |        ExpDataSN (4)        | 32
type TaskMgmtRequest []byte

// Init makes h an empty TaskMgmtRequest.
func (h TaskMgmtRequest) Init() {
	clear(h[:BHSLen])
	h[0] = byte(OpTaskMgmtReq)
	h[1] = 0x80 // F is always set
	h.SetRTT(ReservedTag)
}

// Immediate is the I bit: for immediate delivery, outside of the CmdSN order (RFC 7143, section 11.2.1.1).
func (h TaskMgmtRequest) Immediate() bool { return h[0]&0x40 != 0 }

// SetImmediate sets what Immediate returns.
func (h TaskMgmtRequest) SetImmediate(on bool) { setBit(h, 0, 0x40, on) }

// Function is what to do.
func (h TaskMgmtRequest) Function() TaskFunction { return TaskFunction(h[1] & 0x7f) }

// SetFunction sets what Function returns.
func (h TaskMgmtRequest) SetFunction(v TaskFunction) { h[1] = h[1]&^0x7f | byte(v)&0x7f }

// LUN is the logical unit number, its eight octets as on the wire.
func (h TaskMgmtRequest) LUN() uint64 { return binary.BigEndian.Uint64(h[offLUN:]) }

// SetLUN sets what LUN returns.
func (h TaskMgmtRequest) SetLUN(v uint64) { binary.BigEndian.PutUint64(h[offLUN:], v) }

// ITT is the Initiator Task Tag.
func (h TaskMgmtRequest) ITT() uint32 { return binary.BigEndian.Uint32(h[offITT:]) }

// SetITT sets what ITT returns.
func (h TaskMgmtRequest) SetITT(v uint32) { binary.BigEndian.PutUint32(h[offITT:], v) }

// RTT is the Referenced Task Tag: the ITT of the task in question, ReservedTag if the function names none.
func (h TaskMgmtRequest) RTT() uint32 { return binary.BigEndian.Uint32(h[offRTT:]) }

// SetRTT sets what RTT returns.
func (h TaskMgmtRequest) SetRTT(v uint32) { binary.BigEndian.PutUint32(h[offRTT:], v) }

// CmdSN is the number of this command; of an immediate one, the number of the next non-immediate.
func (h TaskMgmtRequest) CmdSN() SN { return SN(binary.BigEndian.Uint32(h[offCmdSN:])) }

// SetCmdSN sets what CmdSN returns.
func (h TaskMgmtRequest) SetCmdSN(v SN) { binary.BigEndian.PutUint32(h[offCmdSN:], uint32(v)) }

// ExpStatSN acknowledges every status before it.
func (h TaskMgmtRequest) ExpStatSN() SN { return SN(binary.BigEndian.Uint32(h[offExpStatSN:])) }

// SetExpStatSN sets what ExpStatSN returns.
func (h TaskMgmtRequest) SetExpStatSN(v SN) { binary.BigEndian.PutUint32(h[offExpStatSN:], uint32(v)) }

// RefCmdSN is the CmdSN of the task in question.
func (h TaskMgmtRequest) RefCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offRefCmdSN:])) }

// SetRefCmdSN sets what RefCmdSN returns.
func (h TaskMgmtRequest) SetRefCmdSN(v SN) { binary.BigEndian.PutUint32(h[offRefCmdSN:], uint32(v)) }

// ExpDataSN is, for TASK REASSIGN, the next DataSN expected.
func (h TaskMgmtRequest) ExpDataSN() uint32 { return binary.BigEndian.Uint32(h[offExpDataSN:]) }

// SetExpDataSN sets what ExpDataSN returns.
func (h TaskMgmtRequest) SetExpDataSN(v uint32) { binary.BigEndian.PutUint32(h[offExpDataSN:], v) }

// String is h on one line, for logs.
func (h TaskMgmtRequest) String() string {
	return fmt.Sprintf("Task Management Request %v ITT %#x LUN %#x RTT %#x RefCmdSN %d CmdSN %d ExpStatSN %d",
		h.Function(), h.ITT(), h.LUN(), h.RTT(), h.RefCmdSN(), h.CmdSN(), h.ExpStatSN())
}

// TaskMgmtResponse is the BHS of a Task Management Function Response (RFC 7143, section 11.6).
//
//	 0        1        2        3        4        5                 8
//	+--------+--------+--------+--------+--------+-----------------+
//	|..0x22  |1       |response|   -    | AHSLen | DataSegmentLen  |
//	+--------+--------+--------+--------+--------+-----------------+
//	| additional information (3)|            reserved              | 8
//	+---------------------------+----+-----------------------------+
//	|             ITT (4)            |        reserved (4)         | 16
//	+--------------------------------+-----------------------------+
//	|            StatSN (4)          |        ExpCmdSN (4)         | 24
//	+--------------------------------+-----------------------------+
//	|           MaxCmdSN (4)         |        reserved (12)        | 32
type TaskMgmtResponse []byte

// Init makes h an empty TaskMgmtResponse.
func (h TaskMgmtResponse) Init() {
	clear(h[:BHSLen])
	h[0] = byte(OpTaskMgmtRsp)
	h[1] = 0x80 // F is always set
}

// Response is the outcome.
func (h TaskMgmtResponse) Response() TaskResponse { return TaskResponse(h[2]) }

// SetResponse sets what Response returns.
func (h TaskMgmtResponse) SetResponse(v TaskResponse) { h[2] = byte(v) }

// AdditionalInfo is the answer to a query, three octets in place (RFC 7144, section 6.2).
func (h TaskMgmtResponse) AdditionalInfo() []byte { return h[8:11] }

// ITT is the Initiator Task Tag.
func (h TaskMgmtResponse) ITT() uint32 { return binary.BigEndian.Uint32(h[offITT:]) }

// SetITT sets what ITT returns.
func (h TaskMgmtResponse) SetITT(v uint32) { binary.BigEndian.PutUint32(h[offITT:], v) }

// StatSN is the number of this status.
func (h TaskMgmtResponse) StatSN() SN { return SN(binary.BigEndian.Uint32(h[offStatSN:])) }

// SetStatSN sets what StatSN returns.
func (h TaskMgmtResponse) SetStatSN(v SN) { binary.BigEndian.PutUint32(h[offStatSN:], uint32(v)) }

// ExpCmdSN is the next CmdSN that the target expects.
func (h TaskMgmtResponse) ExpCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offExpCmdSN:])) }

// SetExpCmdSN sets what ExpCmdSN returns.
func (h TaskMgmtResponse) SetExpCmdSN(v SN) { binary.BigEndian.PutUint32(h[offExpCmdSN:], uint32(v)) }

// MaxCmdSN is the last CmdSN that the target takes now.
func (h TaskMgmtResponse) MaxCmdSN() SN { return SN(binary.BigEndian.Uint32(h[offMaxCmdSN:])) }

// SetMaxCmdSN sets what MaxCmdSN returns.
func (h TaskMgmtResponse) SetMaxCmdSN(v SN) { binary.BigEndian.PutUint32(h[offMaxCmdSN:], uint32(v)) }

// String is h on one line, for logs.
func (h TaskMgmtResponse) String() string {
	return fmt.Sprintf("Task Management Response %v ITT %#x StatSN %d ExpCmdSN %d MaxCmdSN %d",
		h.Response(), h.ITT(), h.StatSN(), h.ExpCmdSN(), h.MaxCmdSN())
}
