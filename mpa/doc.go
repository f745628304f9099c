// Package mpa frames DDP segments on a TCP stream: Marker PDU Aligned framing, RFC 5044, with the
// enhanced connection setup of RFC 6581. It is the lowest layer of iWARP.
//
// TCP carries a stream of octets and keeps no record boundaries; DDP sends segments and needs them
// kept. MPA adds just that: a length before each segment and a checksum behind it. A connection
// lives in two phases.
//
// # Startup
//
// The initiator sends one Request frame, the responder answers with one Reply frame ([Frame]). The
// two agree on CRCs, on Markers for each direction and, with revision 2, on how many RDMA Reads
// may be outstanding (IRD and ORD) and on who speaks first. Private data of the layers above rides
// along. See [Initiate] and [ReadRequest].
//
// # Full operation
//
// Every segment, here called a ULPDU, travels in one FPDU, whose size is a multiple of four octets:
//
//	 0               2                                    2+Length
//	+---------------+------------------------------------+---------+------------+
//	| ULPDU Length  |  ULPDU (a DDP segment)             | pad 0-3 | CRC32c (4) |
//	+---------------+------------------------------------+---------+------------+
//	|<------------------ covered by the CRC --------------------->|
//
// The CRC field is always there; it is zero and unchecked when both ends turned CRCs off. It is
// stored with its least significant octet first, as in iSCSI.
//
// A receiver that wants to find FPDUs in TCP segments that arrive out of order may ask for
// Markers: four octets that the sender puts in front of the first FPDU and then at every 512th
// octet of the stream, wherever that falls:
//
//	+-------------+-------------+
//	|  reserved 0 |   FPDUPTR   |   octets back to the ULPDU Length of the FPDU around it
//	+-------------+-------------+
//
// A Marker that falls between two FPDUs belongs to the following one and holds zero. Markers count
// in the CRC and not in the ULPDU Length.
//
// [Conn] is a connection in full operation. Its reading half hands out one FPDU at a time and can
// read a large payload straight from the socket into its destination; its writing half queues
// FPDUs and sends many of them with one vectored write, the payload from where it lies.
//
// Under a Conn lies a [Socket], a byte stream with reads and writes that do not wait: TCP, or a
// pipe in memory for tests.
package mpa
