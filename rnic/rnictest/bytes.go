package rnictest

import "encoding/binary"

// host reads 8 octets in host order: an atomic works on memory as the host sees it.
func host(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }

func putHost(b []byte, v uint64) { binary.NativeEndian.PutUint64(b, v) }
