package mpa

import (
	"fmt"
	"io"
	"slices"
	"testing"
	"time"
)

const benchMessage = 1 << 20

// flow is a one-way stream of messages of benchMessage octets over loopback.
type flow struct {
	send func() error // one message
	recv func() error
}

// run moves n messages and returns how long that took.
func (f flow) run(b *testing.B, n int) time.Duration {
	begin := time.Now()
	done := make(chan error, 1)
	go func() {
		for range n {
			if err := f.send(); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for range n {
		if err := f.recv(); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	return time.Since(begin)
}

// rawFlow writes and reads messages whole, with or without a CRC32c at both ends.
func rawFlow(b *testing.B, withCRC bool) flow {
	x, y := tcpConns(b)
	msg, buf := pattern(benchMessage, 1), make([]byte, benchMessage)
	return flow{
		send: func() error {
			if withCRC {
				crc(0, msg)
			}
			_, err := x.Write(msg)
			return err
		},
		recv: func() error {
			_, err := io.ReadFull(y, buf)
			if withCRC {
				crc(0, buf)
			}
			return err
		},
	}
}

// fpduFlow sends messages in FPDUs, and places them as DDP does: behind 14 octets of header, straight
// into the destination where the FPDU is in pieces.
func fpduFlow(b *testing.B, ulpdu int, withCRC bool) (flow, *Conn) {
	x, y := tcpPair(b)
	ca, cb := direct(x, y, withCRC, false, 0)
	msg, buf := pattern(benchMessage, 1), make([]byte, benchMessage)
	head, list, into := make([]byte, 14), make([][]byte, 1), &SliceScatter{}
	return flow{
		send: func() error {
			for off := 0; off < len(msg); {
				n := min(ulpdu-len(head), len(msg)-off)
				list[0] = msg[off : off+n]
				ca.Append(head, list)
				if off += n; ca.Pending() >= 512<<10 || off == len(msg) {
					if err := ca.Flush(); err != nil {
						return err
					}
				}
			}
			return nil
		},
		recv: func() error {
			for off := 0; off < len(buf); {
				f, err := cb.Next()
				if err != nil {
					return err
				}
				n := f.Len - len(head)
				if f.Whole {
					f.CopyTo(len(head), buf[off:])
				} else {
					into.B = buf[off : off+n]
					if err := f.ReadTo(len(head), into); err != nil {
						return err
					}
				}
				off += n
			}
			return nil
		},
	}, cb
}

// BenchmarkRawTCP is the same load without MPA.
func BenchmarkRawTCP(b *testing.B) {
	for _, withCRC := range []bool{false, true} {
		b.Run(fmt.Sprintf("crc=%t", withCRC), func(b *testing.B) {
			f := rawFlow(b, withCRC)
			b.SetBytes(benchMessage)
			b.ReportAllocs()
			b.ResetTimer()
			f.run(b, b.N)
		})
	}
}

var benchSizes = []int{64768, 16384, 8942, 1450}

// BenchmarkFPDU moves 1 MiB messages in FPDUs of the named ULPDU size.
func BenchmarkFPDU(b *testing.B) {
	for _, ulpdu := range benchSizes {
		for _, withCRC := range []bool{false, true} {
			b.Run(fmt.Sprintf("ulpdu=%d/crc=%t", ulpdu, withCRC), func(b *testing.B) {
				f, cb := fpduFlow(b, ulpdu, withCRC)
				b.SetBytes(benchMessage)
				b.ReportAllocs()
				b.ResetTimer()
				f.run(b, b.N)
				b.ReportMetric(float64(cb.Stats().FPDUsIn)/float64(b.N), "fpdus/op")
			})
		}
	}
}

// BenchmarkFPDUAgainstRawTCP takes turns with raw TCP (computing CRCs, too, where MPA does) and
// reports the median of the throughputs' ratios: on a machine that does other things as well, only
// what runs side by side can be compared. CRC on in Ethernet-sized FPDUs is held against raw TCP
// without any.
func BenchmarkFPDUAgainstRawTCP(b *testing.B) {
	for _, ulpdu := range benchSizes {
		for _, withCRC := range []bool{false, true} {
			b.Run(fmt.Sprintf("ulpdu=%d/crc=%t", ulpdu, withCRC), func(b *testing.B) {
				raw := rawFlow(b, withCRC && ulpdu != 1450)
				ours, _ := fpduFlow(b, ulpdu, withCRC)
				var ratios []float64
				b.ResetTimer()
				for range b.N {
					const turn = 8
					r, o := raw.run(b, turn), ours.run(b, turn)
					ratios = append(ratios, float64(r)/float64(o))
				}
				slices.Sort(ratios)
				b.ReportMetric(ratios[len(ratios)/2], "x-raw-TCP")
			})
		}
	}
}
