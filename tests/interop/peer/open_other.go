//go:build !linux

package main

import "os"

const (
	openDSync  = os.O_SYNC
	openDirect = 0
)

func alignedBlock() []byte { return make([]byte, proofBlock) }
