// Package ddp is the Direct Data Placement protocol (RFC 5041): it decides where in memory the
// payload of a segment goes, and whether it may go there.
//
// DDP carries messages of up to 2^32-1 octets, cut into segments that each fit one FPDU of MPA. Two
// buffer models exist, told apart by the T bit of the first octet:
//
//	tagged    the sender names the place: an STag and a Tagged Offset (TO) that the receiver
//	          advertised before. Nothing is consumed.
//	untagged  the receiver chose the place: the next buffer of a numbered queue (QN). The message
//	          sequence number (MSN) picks the buffer, the message offset (MO) the place in it.
//
//	 ULPDU of an FPDU
//	+------------------+---------------------+------------------------------+
//	| DDP control 1    | ULP control (RDMAP) | tagged:   TO 8               | payload …
//	| T L rsvd DV      | 1 or 5 octets       | untagged: QN 4, MSN 4, MO 4  |
//	+------------------+---------------------+------------------------------+
//
// What the package offers, in the order of a segment's life:
//
//   - Tagged, Untagged: the two headers as views on octets (header.go)
//   - Outgoing: one message cut into segments (outgoing.go)
//   - Table, Domain, Region: STags, protection domains and registered memory (table.go, region.go)
//   - Inbound: the checks of RFC 5041, section 7.1, and the untagged queues (inbound.go, queue.go)
//   - Placement: the octets' way into memory, before or after the CRC check (placement.go)
//   - Error: every error of section 7.2 with its type and code (errors.go)
package ddp
