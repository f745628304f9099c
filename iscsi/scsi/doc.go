// Package scsi is the SCSI half of a disk: the device server that a target runs for each logical
// unit, and what an initiator needs to speak to one.
//
// The device server executes commands of SPC-4 and SBC-3 over a store.Store:
//
//	 LUN  +----------+  LU   +---------------------+        +-------------+
//	----->|  Device  |------>|  LU: opcode table,  |------->| store.Store |
//	 CDB  | LUN -> LU|       |  checks, handlers   |        +-------------+
//	      +----------+       +---------------------+
//	           |                        |
//	         Nexus: unit attentions   Transfer: the command's data, moved by the transport
//
// A command descriptor block (CDB) is 6 to 16 octets. Its first octet is the operation code, which
// also gives the length; the last one is CONTROL. READ(10), as an example (SBC-3, section 5.11):
//
//	 0       1        2                         6       7             9
//	+-------+--------+-------------------------+-------+-------------+---------+
//	|  28h  |PROT FUA|  logical block address  | group |  transfer   | CONTROL |
//	|       |DPO RARC|                         |       |  length     |         |
//	+-------+--------+-------------------------+-------+-------------+---------+
//
// Every operation that a logical unit knows is one row in a table: its usage mask, what it asks to
// move (Plan), and the handler. REPORT SUPPORTED OPERATION CODES reads the same table.
//
// An answer is a status octet and, with CHECK CONDITION, sense data: a key (what kind of trouble),
// an additional sense code with its qualifier (which one), and pointers to the field or the block
// at fault.
//
// For initiators there are the CDB builders (Read, Write, Inquiry ...), parsers of parameter data
// and sense, and Error.
//
// The package knows no transport: the target that uses it carries CDBs, data and answers.
package scsi
