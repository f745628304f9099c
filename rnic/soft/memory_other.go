//go:build !unix

package soft

import "unsafe"

// allocMemory takes page-aligned memory from the Go heap where no mmap is at hand. The alignment
// holds because the collector does not move objects.
func allocMemory(size int) ([]byte, error) {
	page := pageSize
	mem := make([]byte, size+page)
	skip := 0
	if over := int(uintptr(unsafe.Pointer(unsafe.SliceData(mem))) % uintptr(page)); over != 0 {
		skip = page - over
	}
	return mem[skip : skip+size : skip+size], nil
}

func freeMemory([]byte) error { return nil }
