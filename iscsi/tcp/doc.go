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
// ErrorRecoveryLevel is 0: a PDU that breaks the rules, or its digest, ends the connection with an
// *Error. A target tells the initiator why with a Reject before it closes.
package tcp
