// Package tcp is the Datamover of plain iSCSI over TCP (RFC 7143): it frames PDUs on the byte
// stream and moves a task's data in Data-In, R2T and Data-Out PDUs.
//
//	       +-----------+----------+---------+-------------------+-----+---------+
//	TCP -> | BHS (48)  | AHS      | header  | data segment      | pad | data    | -> next PDU
//	       |           | (4*n)    | digest* |                   | 0-3 | digest* |
//	       +-----------+----------+---------+-------------------+-----+---------+
//	       * CRC32C, if negotiated (RFC 7143, section 11.2)
//
// Of the Datamover Interface's primitives (RFC 5047) the control PDUs pass through unchanged. The
// others become PDUs of this transport:
//
//	PutData       Data-In, the last one with the status folded in where it can be (section 11.7.3)
//	GetData       R2T, answered by Data-Out PDUs that are placed in the buffer (section 11.8)
//	TaskBuffers   Data-In is placed in In; an R2T is answered from Out
//
// # How a connection runs
//
// One goroutine reads. It parses a header from a small buffer, finds where the data segment goes and
// reads what is not buffered yet straight to that place. It then runs the upcall. What upcalls send is queued
// and leaves in one vectored write when all that was read together has been handled.
//
// Whoever sends writes at once what the socket takes, unless someone else is writing: then that one takes it
// along. What the socket does not take is left to a second goroutine, the only one that waits for
// the peer to read.
//
// Locks are taken in this order: upcalls; then transfers or sending; then queue. Only upcalls is held while code
// of the layer above runs, and no Datamover method takes it.
//
// # Errors
//
// At ErrorRecoveryLevel 0 a PDU that breaks the rules, or its digest, ends the connection with an *Error. A target tells the
// initiator why with a Reject before it closes.
//
// From level 1 on what is lost is mended within the connection (RFC 7143, sections 7.8, 7.9 and 11.16), below the layer above:
//
//	lost                    noticed by            mended by
//	Data-Out                target                PartialDataError, another GetData: a Recovery R2T
//	command, text, ping     target                Reject; the initiator's layer above sends it again
//	Data-In, R2T            initiator             Data/R2T SNACK; the target has kept what was not acknowledged
//	response, Async, ...    initiator             Status SNACK, likewise; delivery is in the order of StatSN
//
// A header with a wrong digest ends the connection at every level: its lengths cannot be believed, and nothing else marks where the
// next PDU begins.
package tcp
