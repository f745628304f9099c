package target

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/store/storetest"
)

// inBubble runs f in virtual time and shuts the server down behind it.
func inBubble(t *testing.T, change func(*Config), stores []store.Store, f func(t *testing.T, s *Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, change, stores...)
		f(t, s)
		require.NoError(t, s.Shutdown(context.Background()))
		synctest.Wait()
	})
}

// blocking makes a store say that it blocks, so that commands run on workers.
func blocking(s store.Store) *storetest.DelayStore { return storetest.Delay(s) }

// variants runs a test with commands executed on the reader's goroutine, and with workers.
func variants(t *testing.T, f func(t *testing.T, s *Server, m *store.Memory)) {
	for _, v := range []string{"inline", "workers"} {
		t.Run(v, func(t *testing.T) {
			m := memory(t, 16<<20)
			var st store.Store = m
			if v == "workers" {
				st = blocking(m)
			}
			inBubble(t, nil, []store.Store{st, memory(t, 1<<20)}, func(t *testing.T, s *Server) { f(t, s, m) })
		})
	}
}

// TestWriteSizes: what arrives in which PDUs never matters to the store, and residuals are exact
// (RFC 7143, section 11.4.5).
func TestWriteSizes(t *testing.T) {
	type step struct{ immediate, first, second int }
	for _, c := range []struct {
		name   string
		blocks int
		step
		keys []string
	}{
		{"18 blocks by R2T", 18, step{}, nil},
		{"34 blocks, 8192 immediate", 34, step{immediate: 8192}, nil},
		{"100 octets immediate", 18, step{immediate: 100}, nil},
		{"all immediate", 8, step{immediate: 4096}, nil},
		{"exactly FirstBurstLength", 16, step{immediate: 8192}, nil},
		{"over MaxBurstLength", 66, step{immediate: 512}, nil},
		{"unsolicited 2848 and 5344", 34, step{0, 2848, 5344}, []string{"InitialR2T", "No"}},
		{"unsolicited, first of 1 octet", 34, step{0, 1, 8191}, []string{"InitialR2T", "No"}},
		{"immediate and unsolicited", 34, step{100, 4000, 4092}, []string{"InitialR2T", "No"}},
		{"all unsolicited", 9, step{512, 4000, 96}, []string{"InitialR2T", "No"}},
		{"beyond the chunk", 5000, step{immediate: 8192}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			variants(t, func(t *testing.T, s *Server, m *store.Memory) {
				p := connect(t, s).disk(c.keys...)
				data := pattern(c.blocks*512, 3)
				itt := p.command(cmd{cdb: write10(8, uint16(c.blocks)), write: data, immediate: c.immediate, more: c.first > 0})
				if c.first > 0 {
					p.dataOut(itt, 0, c.immediate, data[c.immediate:][:c.first], false)
					p.dataOut(itt, 1, c.immediate+c.first, data[c.immediate+c.first:][:c.second], true)
				}
				var off, r2ts int
				off = c.immediate + c.first + c.second
				for {
					x, ok := p.next()
					require.True(t, ok)
					if x.out != nil {
						require.Equal(t, off, x.out.Offset, "in order, without holes")
						require.Equal(t, uint32(r2ts), x.out.R2TSN)
						require.LessOrEqual(t, x.out.Len, 16384, "MaxBurstLength")
						off += x.out.Len
						r2ts++
						continue
					}
					require.NotNil(t, x.pdu)
					r := iscsi.SCSIResponse(x.pdu.BHS[:])
					require.Equal(t, iscsi.OpSCSIResponse, x.pdu.Opcode())
					require.Zero(t, r.Status())
					require.False(t, r.Overflow() || r.Underflow())
					require.Zero(t, r.Residual())
					require.Zero(t, r.ExpDataSN(), "Data-In PDUs")
					p.statSN = r.StatSN() + 1
					break
				}
				require.Equal(t, len(data), off)
				got := make([]byte, len(data))
				_, err := m.ReadAt(got, 8*512)
				require.NoError(t, err)
				require.NoError(t, same(data, got))
				p.leave()
			})
		})
	}
}

// TestReadSequences: no Data-In above the peer's segment length, numbers and offsets without holes, F at MaxBurstLength
// and at the end, the status right behind the last data.
func TestReadSequences(t *testing.T) {
	for _, c := range []struct {
		name   string
		blocks int
		edtl   int
		keys   []string
	}{
		{"one block", 1, 512, nil},
		{"one segment", 16, 8192, nil},
		{"one burst", 32, 16384, nil},
		{"over a burst", 67, 67 * 512, nil},
		{"beyond the chunk", 5000, 5000 * 512, nil},
		{"overflow", 16, 700, nil},
		{"underflow", 2, 4096, nil},
		{"segments of 512", 67, 67 * 512, []string{"MaxRecvDataSegmentLength", "512"}},
		{"segments of 1000", 19, 19 * 512, []string{"MaxRecvDataSegmentLength", "1000"}},
		{"burst smaller than a segment", 67, 67 * 512, []string{"MaxRecvDataSegmentLength", "65536", "MaxBurstLength", "4096", "FirstBurstLength", "512"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			variants(t, func(t *testing.T, s *Server, m *store.Memory) {
				want := pattern(c.blocks*512, 5)
				_, err := m.WriteAt(want, 512)
				require.NoError(t, err)
				p := connect(t, s).disk(c.keys...)
				p.command(cmd{cdb: read10(1, uint16(c.blocks)), read: c.edtl})
				var got []byte
				var burst int
				var last iscsi.DataIn
				for sn := uint32(0); ; sn++ {
					x, ok := p.next()
					require.True(t, ok)
					if x.in != nil {
						require.Equal(t, sn, x.in.DataSN)
						require.Equal(t, len(got), x.in.Offset)
						require.LessOrEqual(t, x.in.Len, p.params.MaxSendDataSegment)
						got = append(got, x.data...)
						burst += x.in.Len
						require.LessOrEqual(t, burst, p.params.MaxBurstLength)
						if x.in.Final {
							burst = 0
						}
						last = *x.in
						continue
					}
					r := iscsi.SCSIResponse(x.pdu.BHS[:])
					require.Zero(t, r.Status())
					require.Equal(t, sn, r.ExpDataSN())
					moved := c.blocks * 512
					require.Equal(t, moved > c.edtl, r.Overflow())
					require.Equal(t, moved < c.edtl, r.Underflow())
					require.Equal(t, uint32(max(moved-c.edtl, c.edtl-moved)), r.Residual())
					p.statSN = r.StatSN() + 1
					break
				}
				require.True(t, last.Final && last.More, "the last data carries F and waits for its status")
				require.NoError(t, same(want[:min(len(want), c.edtl)], got))
				p.leave()
			})
		})
	}
}

// TestReadCapacityResidual: READ CAPACITY(10) with an expected length of 32 returns 8 octets and says so.
func TestReadCapacityResidual(t *testing.T) {
	variants(t, func(t *testing.T, s *Server, _ *store.Memory) {
		p := connect(t, s).disk()
		p.command(cmd{cdb: []byte{0x25, 9: 0}, read: 32})
		x, _ := p.next()
		require.Len(t, x.data, 8)
		r := p.response()
		require.True(t, r.Underflow())
		require.EqualValues(t, 24, r.Residual())
		p.leave()
	})
}

// TestUnsolicitedFaults: data that was not agreed on ends the command with the sense of RFC 7143, section
// 11.4.7.2, after the last of it, and writes nothing.
func TestUnsolicitedFaults(t *testing.T) {
	for _, c := range []struct {
		name    string
		keys    []string
		send    func(p *peer)
		qualify byte // ASCQ behind ASC 0Ch
	}{
		{"immediate data not agreed", []string{"ImmediateData", "No"}, func(p *peer) {
			p.command(cmd{cdb: write10(0, 1), write: pattern(512, 1), immediate: 512})
		}, 0x0c},
		{"unsolicited data not agreed", []string{"InitialR2T", "Yes"}, func(p *peer) {
			itt := p.command(cmd{cdb: write10(0, 1), write: pattern(512, 1), more: true})
			p.dataOut(itt, 0, 0, pattern(512, 1), true)
		}, 0x0c},
		{"more than FirstBurstLength", []string{"InitialR2T", "No"}, func(p *peer) {
			d := pattern(12288, 1)
			itt := p.command(cmd{cdb: write10(0, 24), write: d, more: true})
			p.dataOut(itt, 0, 0, d[:8192], false)
			p.dataOut(itt, 1, 8192, d[8192:], true)
		}, 0x0d},
		{"less than FirstBurstLength", []string{"InitialR2T", "No"}, func(p *peer) {
			d := pattern(12288, 1)
			itt := p.command(cmd{cdb: write10(0, 24), write: d, more: true})
			p.dataOut(itt, 0, 0, d[:4096], true)
		}, 0x0d},
		{"immediate data beyond the expected length", nil, func(p *peer) {
			p.command(cmd{cdb: write10(0, 1), write: pattern(1024, 1), immediate: 1024, edtl: 512})
		}, 0x0d},
		{"solicited data wrong", nil, func(p *peer) {
			p.badGets = true
			p.command(cmd{cdb: write10(0, 16), write: pattern(8192, 1)})
		}, 0x0d},
	} {
		t.Run(c.name, func(t *testing.T) {
			variants(t, func(t *testing.T, s *Server, m *store.Memory) {
				p := connect(t, s).disk(c.keys...)
				c.send(p)
				rsp := p.pdu(iscsi.OpSCSIResponse)
				require.EqualValues(t, 2, iscsi.SCSIResponse(rsp.BHS[:]).Status())
				sense := iscsi.SenseData(rsp.Data)
				require.Equal(t, []byte{0x0b, 0x0c, c.qualify}, []byte{sense[2] & 0xf, sense[12], sense[13]})
				got := make([]byte, 12288)
				_, _ = m.ReadAt(got, 0)
				require.Equal(t, make([]byte, 12288), got)
				p.leave()
			})
		})
	}
}

// failsCRC expects the end of a command whose data did not come whole: ABORTED COMMAND, PROTOCOL SERVICE CRC ERROR.
func (p *peer) failsCRC(t *testing.T) {
	t.Helper()
	rsp := p.pdu(iscsi.OpSCSIResponse)
	require.EqualValues(t, 2, iscsi.SCSIResponse(rsp.BHS[:]).Status())
	sense := iscsi.SenseData(rsp.Data)
	require.Equal(t, []byte{0x0b, 0x47, 0x05}, []byte{sense[2] & 0xf, sense[12], sense[13]})
}

// TestUnsolicitedOutOfSequence: a DataSN that does not follow ends the command, once its last data has come, with CHECK
// CONDITION (RFC 7143, sections 7.8 and 7.9). Nothing of it is written, and the connection goes on.
func TestUnsolicitedOutOfSequence(t *testing.T) {
	for name, sn := range map[string]uint32{"skipped": 2, "repeated": 0, "-1": 0xffffffff} {
		for _, last := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				variants(t, func(t *testing.T, s *Server, m *store.Memory) {
					p := connect(t, s).disk("InitialR2T", "No", "FirstBurstLength", "1536")
					d := pattern(1536, 1)
					itt := p.command(cmd{cdb: write10(0, 3), write: d, more: true})
					p.dataOut(itt, 0, 0, d[:512], false)
					p.dataOut(itt, sn, 512, d[512:1024], last)
					if !last {
						p.dataOut(itt, sn+1, 1024, d[1024:], true)
					}
					p.failsCRC(t)
					got := make([]byte, len(d))
					_, _ = m.ReadAt(got, 0)
					require.Equal(t, make([]byte, len(d)), got)
					p.leave()
				})
			})
		}
	}
}

// TestUnsolicitedOutOfOrder: an offset that does not follow, although the DataSN does, ends the connection with a Reject.
func TestUnsolicitedOutOfOrder(t *testing.T) {
	variants(t, func(t *testing.T, s *Server, m *store.Memory) {
		p := connect(t, s).disk("InitialR2T", "No")
		d := pattern(8192, 1)
		itt := p.command(cmd{cdb: write10(0, 16), write: d, more: true})
		p.dataOut(itt, 0, 0, d[:512], false)
		p.dataOut(itt, 1, 1024, d[1024:], false)
		rsp := p.pdu(iscsi.OpReject)
		require.Equal(t, iscsi.RejectProtocolError, iscsi.Reject(rsp.BHS[:]).Reason())
		require.ErrorIs(t, p.ended(), ErrProtocol)
		p.noLeak()
		got := make([]byte, len(d))
		_, _ = m.ReadAt(got, 0)
		require.Equal(t, make([]byte, len(d)), got)
	})
}

// TestUnsolicitedFirstDataSN: numbers begin at 0, and the one before it is none (RFC 7143, section 11.7.5).
func TestUnsolicitedFirstDataSN(t *testing.T) {
	for _, sn := range []uint32{1, 27, 0xffffffff} {
		variants(t, func(t *testing.T, s *Server, m *store.Memory) {
			p := connect(t, s).disk("InitialR2T", "No")
			d := pattern(512, 1)
			itt := p.command(cmd{cdb: write10(100, 1), write: d, more: true})
			p.dataOut(itt, sn, 0, d, true)
			p.failsCRC(t)
			got := make([]byte, 512)
			_, _ = m.ReadAt(got, 100*512)
			require.Equal(t, make([]byte, 512), got)
			p.leave()
		})
	}
}

// TestDataAcrossPieces: a device server that asks for data-out across the pieces that it lies in gets it, and
// a command that moves data both ways says so for both (RFC 7143, section 11.4.6).
func TestDataAcrossPieces(t *testing.T) {
	inBubble(t, nil, []store.Store{memory(t, 1<<20)}, func(t *testing.T, s *Server) {
		p := connect(t, s)
		p.login(normalKeys("MaxBurstLength", "512", "FirstBurstLength", "512")...)
		p.settle(0)
		const n = 12 // blocks: compared with 6144 octets, then written with as many
		cdb := make([]byte, 16)
		cdb[0], cdb[13] = 0x89, n // COMPARE AND WRITE
		data := append(make([]byte, n*512), pattern(n*512, 9)...)
		p.command(cmd{cdb: cdb, write: data})
		require.Zero(t, p.response().Status())
		p.command(cmd{cdb: read10(0, n), read: n * 512})
		require.Zero(t, p.response().Status())
		var got []byte
		for _, x := range p.sent {
			if x.in != nil {
				got = append(got, x.data...)
			}
		}
		require.NoError(t, same(data[n*512:], got))

		bidi := p.request(cmd{cdb: read10(0, 1), write: make([]byte, 1024), immediate: 0})
		iscsi.SCSICommand(bidi.BHS[:]).SetRead(true)
		bidi.AHS = iscsi.AppendBidiReadLen(nil, 700)
		p.inject(bidi)
		r := p.response()
		require.True(t, r.BidiUnderflow() && r.Underflow())
		require.EqualValues(t, 188, r.BidiResidual())
		require.EqualValues(t, 1024, r.Residual())
		p.leave()
	})
}
