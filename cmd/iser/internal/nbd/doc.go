// Package nbd is the server's side of the NBD protocol (the Network Block Device project's doc/proto.md): the fixed newstyle handshake and
// the transmission phase, with simple and structured replies and the metadata context base:allocation, over a logical unit of iscsi/initiator.
//
//	 client: the kernel, qemu, nbdcopy, …
//	    | requests            ^ replies, in any order
//	+---v---------------------|----+
//	| reader               writer  |  Transmit, one a connection
//	|   |   pool of pieces    ^    |
//	+---|---------------------|----+
//	    v Submit         Done |
//	  initiator.Disk, shared by all connections
//
// The payload of a write is read from the socket into the memory that the command is sent from, and that of a read is written to the socket
// from where the target has placed it. Reads, writes and flushes allocate nothing once a connection has its memory.
//
// Order. As the protocol has it there is none among requests that are under way at once. A flush covers the writes that were answered before
// it was sent, on whatever connection: CAN_MULTI_CONN holds. Writes that overlap one under way wait for its end (initiator.Disk), so that
// a client that lost its connection and sends a request again on another one cannot be overtaken by the first.
package nbd
