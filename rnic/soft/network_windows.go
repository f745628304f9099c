package soft

import "syscall"

// setBuffers sets the socket buffers that are not 0, in octets.
func setBuffers(fd uintptr, read, write int) error {
	for _, b := range [...]struct{ option, size int }{{syscall.SO_RCVBUF, read}, {syscall.SO_SNDBUF, write}} {
		if b.size <= 0 {
			continue
		}
		if err := syscall.SetsockoptInt(syscall.Handle(fd), syscall.SOL_SOCKET, b.option, b.size); err != nil {
			return err
		}
	}
	return nil
}
