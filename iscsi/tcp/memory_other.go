//go:build !linux && !darwin && !freebsd

package tcp

import "unsafe"

// mapZone takes n page-aligned octets from the Go heap.
func mapZone(n int) ([]byte, error) {
	b := make([]byte, n+page)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (page - 1)
	return b[skip : skip+n : skip+n], nil
}

// unmapZone leaves the memory to the garbage collector.
func unmapZone([]byte) {}
