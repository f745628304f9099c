// Package target is the iSCSI target (RFC 7143): it takes connections that a Datamover carries, logs
// initiators in, numbers and orders their commands, and runs them on SCSI devices.
//
// It is written once against iscsi.Datamover, so it serves iSCSI over TCP and iSER alike and contains
// nothing of either:
//
//	                Server: targets, sessions by TSIH and by (initiator, ISID, target, portal group)
//	                   |
//	 ControlNotify   conn: login --> full feature phase --> logout      (one per Datamover)
//	---------------->  |      CmdSN window, StatSN, NOP, Text, Reject, Async
//	                   v
//	                 task: one SCSI command, from its PDU to its SCSI Response
//	                   |
//	  admitted by the logical unit (task attributes, barriers, fences)
//	  has memory -> has its data-out (immediate, unsolicited, GetData) -> executes -> PutData, response
//	                   |
//	                 unit: a logical unit's task set and its few workers --> scsi.Device --> store
//
// # Who may do what
//
// An Access, a target's and one for discovery, says who is let in: the first of its rules that fits the initiator's name and address
// names the users of whom it has to be one (CHAP), and the logical units that it sees, under which numbers. What is not let in does not see
// the target in SendTargets; what is masked is absent. The lists are replaced as a whole while the server serves:
//
//	Login Request --> rule --> redirected? drained? --> CHAP --> session registered --> rule once more --> full feature phase
//	                   |            |                     |                              |
//	                  0202      0101, 0301          0201, address slowed down           0202
//
// # Who runs what
//
// The goroutine that calls the Datamover's upcalls never waits. A command whose data is there and that
// will not wait for its store executes right there, and its answer leaves with the upcall's flush.
// Everything that may wait (file I/O, a transfer larger than a chunk) runs on one of its logical
// unit's workers, so that a store that stalls holds up its own logical unit and nobody else.
//
// # Memory
//
// Command data lies in buffers that the Datamover lends, bounded per connection there. A command acquires
// what it needs, at most one chunk, before it asks for data and before it occupies a worker, and lives on that
// until it ends: who waits for memory holds none, and who holds some never waits for more. The wait
// is in order of arrival.
//
// # Ends of tasks
//
// An aborted task sends nothing any more from the moment it is aborted. What it may still be writing in
// its store cannot be called back, so later commands that touch the medium of that logical unit are
// held until it has come to an end: no old write lands after a newer one. A session that ends is
// forgotten when the last of its tasks has left the store, and a login that reinstates it
// (same initiator, ISID, target and portal group; RFC 7143, section 6.3.5) gets its final response after that.
//
// # Sessions of several connections, and recovery
//
// What the connections of a session have in common (numbering, tasks, counters) is one value under one lock, so that a command's
// turn, its abort and its change of connection are each one step. A login with a TSIH adds a connection, or takes the place of
// the one with the same CID. Lost PDUs are the Datamover's to mend (ErrorRecoveryLevel 1); this package rejects what the
// Datamover has discarded and asks for data-out again. With level 2 a connection that is lost leaves its tasks to TASK REASSIGN: see
// recover.go. At level 0 none of this costs a command anything.
//
// # Locks
//
// A session's mutex, which is that of all its connections, comes first; Server's or a unit's is the inner one. A login that joins a
// session takes the session's while it holds its own; nobody else holds two. The Datamover may be called with any of them held.
package target
