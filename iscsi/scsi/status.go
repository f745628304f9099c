package scsi

import "fmt"

// Status is the status octet that ends a command (SAM-5, section 5.3).
type Status byte

// The statuses.
const (
	StatusGood                Status = 0x00
	StatusCheckCondition      Status = 0x02
	StatusConditionMet        Status = 0x04
	StatusBusy                Status = 0x08
	StatusReservationConflict Status = 0x18
	StatusTaskSetFull         Status = 0x28
	StatusACAActive           Status = 0x30
	StatusTaskAborted         Status = 0x40
)

func (s Status) String() string {
	switch s {
	case StatusGood:
		return "GOOD"
	case StatusCheckCondition:
		return "CHECK CONDITION"
	case StatusConditionMet:
		return "CONDITION MET"
	case StatusBusy:
		return "BUSY"
	case StatusReservationConflict:
		return "RESERVATION CONFLICT"
	case StatusTaskSetFull:
		return "TASK SET FULL"
	case StatusACAActive:
		return "ACA ACTIVE"
	case StatusTaskAborted:
		return "TASK ABORTED"
	}
	return fmt.Sprintf("status %#02x", byte(s))
}

// Result is a command's end, as the target sends it.
type Result struct {
	Status Status
	// In and Out are the octets that the command moves by its own reckoning: they may be more than
	// what the initiator expected (the transport then dropped the rest, or the command did without
	// it). Residual compares the two. After a failure they are what was moved before it.
	In, Out int64
	// Err is set if the command ended without an answer: its context was cancelled (an abort), or
	// its Transfer failed. The caller drops the rest of the result.
	Err error

	sense    [MaxSense]byte
	senseLen uint8
}

// Sense is the sense data, empty unless Status is CHECK CONDITION. It lies within r.
func (r *Result) Sense() []byte { return r.sense[:r.senseLen] }

// SetSense ends the command with CHECK CONDITION and s, in descriptor format if asked, else in
// fixed format.
func (r *Result) SetSense(s *Sense, descriptor bool) {
	r.Status = StatusCheckCondition
	if descriptor {
		r.senseLen = uint8(len(s.AppendDescriptor(r.sense[:0])))
		return
	}
	r.senseLen = uint8(len(s.AppendFixed(r.sense[:0])))
}

// Check is a result with CHECK CONDITION and fixed sense data, for what the transport itself
// refuses.
func Check(key Key, code Code) Result {
	var r Result
	r.SetSense(&Sense{Key: key, Code: code}, false)
	return r
}

// Residual compares what a command moves by its own reckoning (Result.In or Out) with what the
// initiator expected. At most one of over and under is not 0; both are in octets (RFC 7143, section
// 11.4.5 names them so).
func Residual(moves, expected int64) (over, under int64) {
	if moves > expected {
		return moves - expected, 0
	}
	return 0, expected - moves
}

// Plan is what a CDB asks to move, found without executing it.
type Plan struct {
	// DataIn and DataOut are octets. For commands with an allocation length DataIn is that length,
	// an upper bound; Result.In is what there was.
	DataIn, DataOut int64
	// Blocks tells that executing may wait for the store, so that it must not run on a goroutine
	// that reads a connection.
	Blocks bool
	// Limited tells that the logical unit's Limiter has to let the command pass.
	Limited bool
}
