// Package rdmap is the Remote Direct Memory Access Protocol (RFC 5040) with its extensions for
// atomics and immediate data (RFC 7306). It turns operations (Send, RDMA Write, RDMA Read, …) into DDP
// messages and back, and keeps their order.
//
//	   Post(ops)                                      Handler callbacks
//	      |                                                  ^
//	+-----v------------------ Stream ----------------------------------+
//	| send queue --> writer: messages, ORD, fences   reader: placement, |
//	|                  ^     Read Responses <-- IRD -- delivery, order  |
//	+------------------|------------------------------------^----------+
//	      DDP segments v                                    |
//	                mpa.Conn, writing half      mpa.Conn, reading half
//
// An RDMAP message is one DDP message; RDMAP's control octet is the one that DDP reserves:
//
//	 DDP octet 1       RV 01: RDMAP version 1
//	+--+--+----+       opcode: 0 Write, 1 Read Request, 2 Read Response, 3-6 Sends, 7 Terminate,
//	|RV|00|opco|               8-9 Immediate Data, 10 Atomic Request, 11 Atomic Response
//	+--+--+----+
//
//	operation        message(s)                           DDP model, queue
//	Send…            Send, +Invalidate, +SE, +both        untagged, QN 0
//	Immediate Data   8 octets, with or without SE         untagged, QN 0
//	RDMA Write       payload                              tagged
//	RDMA Read        28-octet Request; Response           untagged, QN 1; tagged
//	Atomics          52-octet Request; 12-octet Response  untagged, QN 1; QN 3
//	Terminate        why the stream ends                  untagged, QN 2
//
// Ordering and completion follow RFC 5040, section 5.5: operations go out and complete in the order in which
// they were posted; Sends are delivered in order, after the RDMA Writes before them were placed; an RDMA Read
// sees what came before it, and may see what came after it unless the later operation is fenced.
//
// A Stream has two goroutines: the reader (Run's caller) places, delivers and calls the Handler; the writer only
// waits for the socket when it is full. In between, whoever posts writes.
package rdmap
