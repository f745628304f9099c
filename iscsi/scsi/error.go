package scsi

import "fmt"

// Error is a command's end other than GOOD, as an initiator sees it. errors.As finds it; errors.Is
// compares with another *Error whose Code, or if that is 0 whose Key, or if that is 0, too, whose
// Status is the same.
type Error struct {
	// Op is the command's name, such as "READ(10)"; it may be empty.
	Op     string
	Status Status
	// Sense is meaningful if HasSense is set.
	Sense    Sense
	HasSense bool
	// Residual is how many octets fewer than expected were moved; with Overflow how many more there would have been.
	Residual int
	Overflow bool
}

// NewError makes the error of a status and its sense data; nil for GOOD and CONDITION MET. cdb
// names the command and may be nil.
func NewError(cdb []byte, status Status, sense []byte) error {
	if status == StatusGood || status == StatusConditionMet {
		return nil
	}
	e := &Error{Status: status}
	if len(cdb) > 0 {
		e.Op = OpcodeName(cdb)
	}
	if status == StatusCheckCondition {
		e.Sense, e.HasSense = ParseSense(sense)
	}
	return e
}

func (e *Error) Error() string {
	s := "scsi: "
	if e.Op != "" {
		s += e.Op + ": "
	}
	if e.HasSense {
		return s + e.Sense.String()
	}
	if e.Status == StatusCheckCondition {
		return s + "CHECK CONDITION without sense data"
	}
	return s + e.Status.String()
}

// Is tells whether e is of target's kind.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	switch {
	case !ok:
		return false
	case t.Sense.Code != 0:
		return e.HasSense && e.Sense.Code == t.Sense.Code
	case t.Sense.Key != 0:
		return e.HasSense && e.Sense.Key == t.Sense.Key
	}
	return e.Status == t.Status
}

// UnitAttention tells that the command was not run because the logical unit had something to tell
// first; it can be sent again.
func (e *Error) UnitAttention() bool { return e.HasSense && e.Sense.Key == KeyUnitAttention }

// Temporary tells that the same command may succeed later.
func (e *Error) Temporary() bool {
	switch e.Status {
	case StatusBusy, StatusTaskSetFull, StatusTaskAborted:
		return true
	}
	return e.UnitAttention() || e.HasSense && e.Sense.Key == KeyNotReady && e.Sense.Code == CodeBecomingReady
}

// Err makes an Error to compare with: errors.Is(err, scsi.KeyMediumError.Err()).
func (k Key) Err() *Error {
	return &Error{Status: StatusCheckCondition, Sense: Sense{Key: k}, HasSense: true}
}

// Err makes an Error to compare with: errors.Is(err, scsi.CodeLBAOutOfRange.Err()).
func (c Code) Err() *Error {
	return &Error{Status: StatusCheckCondition, Sense: Sense{Code: c}, HasSense: true}
}

// DataError is parameter data that cannot be what it should be.
type DataError struct {
	What string // which data
	Why  string
}

func (e *DataError) Error() string { return fmt.Sprintf("scsi: %s: %s", e.What, e.Why) }

func short(what string, have, need int) error {
	return &DataError{what, fmt.Sprintf("%d octets, must be at least %d", have, need)}
}
