package mpa

import (
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func pattern(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, uint64(n)))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestRoundTrip(t *testing.T) {
	sizes := []int{0, 1, 2, 3, 4, 5, 14, 18, 63, 64, 65, 490, 506, 507, 508, 1454, 4095, 4096, 4097, 9000, 16383, 16384, 40000, 64768, 65535}
	for _, kind := range []string{"mem", "tcp"} {
		for _, crc := range []bool{false, true} {
			for _, markers := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/crc=%t/markers=%t", kind, crc, markers), func(t *testing.T) {
					var a, b Socket
					if kind == "mem" {
						a, b = MemPipe(1000)
					} else {
						a, b = tcpPair(t)
					}
					ca, cb := direct(a, b, crc, markers, MaxULPDU)
					done := make(chan error, 1)
					go func() {
						for i, n := range sizes {
							p := pattern(n, uint64(i))
							h := min(n, 14)
							ca.Append(p[:h], [][]byte{p[h : h+(n-h)/2], nil, p[h+(n-h)/2:]})
							if i%3 == 0 {
								if err := ca.Flush(); err != nil {
									done <- err
									return
								}
							}
						}
						if err := ca.Flush(); err != nil {
							done <- err
							return
						}
						done <- ca.CloseWrite()
					}()
					for i, n := range sizes {
						f, err := cb.Next()
						require.NoError(t, err)
						require.Equal(t, n, f.Len)
						want := pattern(n, uint64(i))
						got := make([]byte, n)
						switch {
						case f.Whole:
							require.Equal(t, n, f.CopyTo(0, got))
						case i%2 == 0:
							require.NoError(t, f.Fill())
							require.Equal(t, n, f.CopyTo(0, got))
						default:
							copy(got, f.Head[:14])
							require.NoError(t, f.ReadTo(14, &SliceScatter{B: got[14:]}))
							require.Equal(t, want[:64], f.Head)
						}
						require.Equal(t, want, got)
					}
					_, err := cb.Next()
					require.Equal(t, io.EOF, err)
					require.NoError(t, <-done)
					require.Zero(t, ca.Pending())
					ca.Close()
					cb.Close()
				})
			}
		}
	}
}

func TestStartupThenTraffic(t *testing.T) {
	for _, kind := range []string{"mem", "tcp"} {
		t.Run(kind, func(t *testing.T) {
			var a, b Socket
			if kind == "mem" {
				a, b = MemPipe(1000)
			} else {
				a, b = tcpPair(t)
			}
			ca, cb := start(t, a, b, Options{}, Options{})
			cb.Append([]byte("answer"), nil)
			done, err := cb.TryFlush()
			require.NoError(t, err)
			require.False(t, done, "the responder waits for the first FPDU")
			ca.Append([]byte("hello"), nil)
			require.NoError(t, ca.Flush())
			f, err := cb.Next()
			require.NoError(t, err)
			require.Equal(t, "hello", string(f.Head))
			require.NoError(t, cb.Flush())
			f, err = ca.Next()
			require.NoError(t, err)
			require.Equal(t, "answer", string(f.Head))
		})
	}
}
