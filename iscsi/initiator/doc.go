// Package initiator is the iSCSI initiator: it logs in to a target over any Datamover, and reads and writes the target's
// logical units (RFC 7143). Whether data moves in Data-In and Data-Out PDUs or by RDMA is the Datamover's affair, which a
// program hands in as an iscsi.Dialer.
//
//	Discover ----> []iscsi.TargetInfo
//	Open --------> Disk: a LUN that outlives its sessions, by one path or several
//	Dial, Login -> Session -- LUN(n) --> LUN: ReadAt, WriteAt, Flush, Capacity ...
//	                  |                   |
//	                  |  Request (one SCSI command): queued -> sent -> answered
//	                  v                   v
//	    NOP, Text, task management     command window (CmdSN, MaxCmdSN)
//	                  |                   |
//	                  +----- iscsi.Datamover -----> target
//
// A command waits in a queue while the target's window is closed, so that no call ever blocks in another's stead. Answers are
// handled where they are read, by the Datamover's goroutine; the session has none of its own while it lives. One
// that ends takes one for as long as it needs to wait for the Datamover.
//
// Calls with a context give up when it ends: a command that is on its way is aborted with ABORT TASK first, because
// until then the target may still write to its memory. A target that does not answer that has its logical unit reset, and then loses the session.
//
// A Session's commands fail with it. A Disk logs in again, makes sure that it is the same logical unit, and sends again what may be sent again: see
// there for what that means for order.
package initiator
