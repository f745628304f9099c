//go:build unix

package soft

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// allocMemory takes zeroed, page-aligned memory straight from the kernel: the garbage collector
// neither scans nor counts it, and O_DIRECT takes its alignment.
func allocMemory(size int) ([]byte, error) {
	page := pageSize
	mem, err := unix.Mmap(-1, 0, (size+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("soft: map %d octets: %w", size, err)
	}
	return mem[:size], nil
}

func freeMemory(mem []byte) error {
	return unix.Munmap(mem[:cap(mem)])
}
