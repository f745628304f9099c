// Package iscsi is the iSCSI protocol without its input and output (RFC 7143, with RFC 7144's additions and RFC
// 7145's keys): PDUs, text and keys, the login phase of both roles, and the line to what moves PDUs and data.
//
// iSCSI carries SCSI commands from an initiator to a target over a connection. Everything that crosses it is a PDU:
//
//	+-----------+-------------+-----------------+--------------------+-------------+
//	| BHS (48)  | AHS (4n)    | header digest   | data segment       | data digest |
//	| what, who |             | (4, optional)   | (+ 0-3 of padding) | (4, opt.)   |
//	+-----------+-------------+-----------------+--------------------+-------------+
//
// A connection begins with the login phase, where the sides name themselves, perhaps authenticate, and
// negotiate parameters in key=value text; then it is in full feature phase and commands flow:
//
//	Login Request, Login Response ...   TargetLogin, InitiatorLogin -> Params
//	SCSI Command   ->
//	               <-  data-in, or asks for data-out (Data-In, R2T; over RDMA: Write, Read)
//	               <-  SCSI Response
//	Logout Request, Logout Response
//
// In this package live:
//
//	BHS, SCSICommand, NOPIn ...   views of each PDU's 48 octets, one per kind
//	AHS, digests, framing         what else belongs to a PDU; what is well-formed (Validate)
//	Text, Key, Negotiator         key=value text and every key's rules
//	TargetLogin, InitiatorLogin   the login phase as event-driven machines
//	TargetInfo                    SendTargets discovery
//	Datamover                     RFC 5047's interface to what moves PDUs and data
//
// Sessions, tasks and SCSI stand in the packages above (target, initiator), connections below
// (tcp, and iser of this module). This package starts no goroutine and reads no clock.
package iscsi
