package iscsi

import "errors"

// Errors that Datamovers and sessions wrap.
var (
	// ErrConnection: the connection is down or going down.
	ErrConnection = errors.New("iscsi: connection lost")
	// ErrNoMemory: the connection's share of buffer memory is used up for now.
	ErrNoMemory = errors.New("iscsi: out of data buffers")
)
