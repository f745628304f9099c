package main

import (
	"golang.org/x/sys/unix"
)

// openDSync makes writes pass the page cache and be acknowledged when they are durable.
const openDSync = openDirect | unix.O_DSYNC

// openDirect makes I/Os pass the page cache.
const openDirect = unix.O_DIRECT

// alignedBlock is a block that O_DIRECT takes: anonymous mappings begin on a page.
func alignedBlock() []byte {
	b, err := unix.Mmap(-1, 0, proofBlock, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	return b
}
