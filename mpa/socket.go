package mpa

import "goiwarp/internal/sock"

// Socket is the byte stream under MPA, and Scatter lends memory to its Read. NewSocket makes one
// of a net.Conn; MemPipe makes a pair in memory.
type (
	Socket  = sock.Socket
	Scatter = sock.Scatter
)

// MemSocket is one end of a pair made by MemPipe.
type MemSocket = sock.MemSocket

// SliceScatter is a Scatter into one slice.
type SliceScatter = sock.SliceScatter

// Constructors of Sockets.
var (
	NewSocket     = sock.NewSocket
	NewTCPSocket  = sock.NewTCPSocket
	NewConnSocket = sock.NewConnSocket
	MemPipe       = sock.MemPipe
)
