package iscsi

import "fmt"

// RecoveryNotifier is the iSCSI layer of a target as a Datamover sees it that recovers within the connection
// (ErrorRecoveryLevel > 0; RFC 7143, sections 7.8 and 11.16). A Notifier that is none has its connection ended by what RejectNotify
// would tell.
type RecoveryNotifier interface {
	Notifier
	// RejectNotify asks for a Reject PDU: the Datamover has discarded a PDU of the initiator's.
	RejectNotify(r *Rejection)
}

// Rejection is a PDU that a Datamover has discarded.
type Rejection struct {
	BHS    [BHSLen]byte // of the discarded PDU
	Reason RejectReason
	// DataSN is the next DataSN or R2TSN of the task, for a Data/R2T SNACK that asks for what cannot be (RFC 7143, section 11.17.2).
	DataSN uint32
	// Unrecoverable tells that data-in of the task was asked for again that is not kept any more. A task without status
	// ends with CHECK CONDITION, "SNACK rejected" (section 7.8).
	Unrecoverable bool
	Detail        string
}

// PartialDataError is how a DataOut ends at ErrorRecoveryLevel > 0 when Data-Out PDUs of it were lost: the first Got octets are in
// place, and the rest may be fetched by another GetData, which is a Recovery R2T on the wire (RFC 7143, section 11.8).
type PartialDataError struct{ Got int }

func (e *PartialDataError) Error() string {
	return fmt.Sprintf("iscsi: data-out lost behind the first %d octets", e.Got)
}

// Renumberer is a target's Datamover that sends data-in again in segments of another length when an R-Data SNACK asks for it, so that
// DataSN counts otherwise than PutData had it (RFC 7143, section 11.16.3).
type Renumberer interface {
	// Renumbered tells how a task's data-in was numbered when the connection ended; ok is false if as PutData numbered it, or if the
	// initiator has acknowledged it. It may be called once Done is closed, for a TASK REASSIGN whose ExpDataSN counts so (section 11.5.6).
	Renumbered(itt uint32) (l DataLayout, ok bool)
}

// DataLayout is the numbering of a task's data-in from the first DataSN on that the initiator has not acknowledged.
type DataLayout struct {
	First   uint32   // that DataSN
	Skip    uint32   // octets before it
	Offsets []uint32 // Buffer Offset of each Data-In from First on
	End     uint32   // octets of data-in in all
}
