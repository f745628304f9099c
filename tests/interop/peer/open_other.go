//go:build !linux

package main

import "os"

const openDSync = os.O_SYNC

func alignedBlock() []byte { return make([]byte, proofBlock) }
