//go:build linux || darwin || freebsd

package tcp

import "golang.org/x/sys/unix"

// mapZone takes n octets from the system, page-aligned and outside the Go heap. Pages cost memory
// once they are touched.
func mapZone(n int) ([]byte, error) {
	return unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

// unmapZone gives back what mapZone took.
func unmapZone(b []byte) { _ = unix.Munmap(b) }
