package soft_test

import "golang.org/x/sys/unix"

// setMSS bounds a socket's segments before it connects. The timestamp option takes 12 octets of them.
func setMSS(fd uintptr, mss int) error {
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, mss+12)
}
