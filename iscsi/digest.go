package iscsi

import (
	"encoding/binary"
	"hash/crc32"
)

// DigestLen is the length of a digest on the wire in octets.
const DigestLen = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Digest goes on with the CRC32C digest crc over b; it begins with 0. Header and data digests cover padding too
// (RFC 7143, section 13.1).
func Digest(crc uint32, b []byte) uint32 { return crc32.Update(crc, castagnoli, b) }

// PutDigest writes a digest as it stands on the wire, low octet first (RFC 7143, appendix A.4).
func PutDigest(b []byte, crc uint32) { binary.LittleEndian.PutUint32(b, crc) }

// AppendDigest appends a digest as it stands on the wire.
func AppendDigest(dst []byte, crc uint32) []byte { return binary.LittleEndian.AppendUint32(dst, crc) }

// DigestOK tells that wire's four octets are the digest crc.
func DigestOK(wire []byte, crc uint32) bool { return binary.LittleEndian.Uint32(wire) == crc }
