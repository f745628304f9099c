//go:build freebsd || darwin

package sock

const fionread = 0x4004667f // FIONREAD, _IOR('f', 127, int)
