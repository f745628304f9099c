package mpa

import (
	"encoding/binary"
	"hash/crc32"
)

// Sizes within an FPDU, in octets.
const (
	lengthLen  = 2 // ULPDU Length
	crcLen     = 4
	markerLen  = 4
	markerStep = 512                    // from one Marker's first octet to the next one's
	markerGap  = markerStep - markerLen // octets between two Markers
)

// maxFPDU is what the largest FPDU takes in the stream, Markers included: one before it and one for
// every markerGap octets of it.
const maxFPDU = lengthLen + MaxULPDU + 3 + crcLen + markerLen*(2+(lengthLen+MaxULPDU+3+crcLen)/markerGap)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// crc continues a CRC32c over b.
func crc(sum uint32, b []byte) uint32 { return crc32.Update(sum, castagnoli, b) }

// padLen is the number of pad octets behind a ULPDU of n octets: the FPDU is a multiple of four.
func padLen(n int) int { return -(n + lengthLen) & 3 }

// fpduLen is the size of the FPDU around a ULPDU of n octets, without Markers.
func fpduLen(n int) int { return lengthLen + n + padLen(n) + crcLen }

// innerMarkers is how many Markers fall inside an FPDU of size octets whose ULPDU Length lies at
// offset pos of the stream. A Marker right before the ULPDU Length is not one of them and neither
// is one right behind the CRC, which belongs to the next FPDU.
func innerMarkers(pos uint64, size int) int {
	first := untilMarker(pos)
	if size <= first {
		return 0
	}
	return 1 + (size-first-1)/markerGap
}

// untilMarker is the distance from pos to the next Marker behind it: 1 to 512.
func untilMarker(pos uint64) int { return markerStep - int(pos%markerStep) }

// putMarker writes the Marker for an FPDU whose ULPDU Length lies back octets before it.
func putMarker(b []byte, back int) {
	binary.BigEndian.PutUint16(b, 0)
	binary.BigEndian.PutUint16(b[2:], uint16(back)&^3)
}

// markerPtr is a Marker's FPDUPTR. Receivers take its two low bits for zero.
func markerPtr(b []byte) int { return int(binary.BigEndian.Uint16(b[2:]) &^ 3) }

// mulpdu is the largest ULPDU whose FPDU fits a TCP segment of emss octets, with the worst number of
// Markers (RFC 5044, section 4.5).
func mulpdu(emss int, markers bool) int {
	n := emss - (lengthLen + crcLen + emss%4)
	if markers {
		n -= markerLen * ((emss + markerStep - 1) / markerStep)
	}
	return min(max(n, MinMULPDU), MaxMULPDU)
}
