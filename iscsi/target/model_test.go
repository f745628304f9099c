package target

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"goiwarp/iscsi"
	"goiwarp/iscsi/store"
)

// TestDiskModel: whatever is negotiated, however a write's data is split into immediate, unsolicited and solicited
// data, and whatever lengths the initiator expects, a disk is an array of octets and every response says exactly what
// was moved.
func TestDiskModel(t *testing.T) {
	const blocks = 256
	for _, kind := range []string{"inline", "workers"} {
		t.Run(kind, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				segment := rapid.SampledFrom([]int{512, 1000, 4096, 8192, 65536}).Draw(rt, "MaxRecvDataSegmentLength")
				burst := rapid.SampledFrom([]int{512, 4096, 10000, 65536}).Draw(rt, "MaxBurstLength")
				first := min(burst, rapid.SampledFrom([]int{512, 3000, 8192}).Draw(rt, "FirstBurstLength"))
				chunk := rapid.SampledFrom([]int{4096, 8192, 1 << 20}).Draw(rt, "chunk")
				limit := rapid.SampledFrom([]int{4096, 30000, 64 << 20}).Draw(rt, "memory")
				ops := rapid.IntRange(1, 12).Draw(rt, "operations")
				synctest.Test(t, func(t *testing.T) {
					m := memory(t, blocks*512)
					var st store.Store = m
					if kind == "workers" {
						st = blocking(m)
					}
					s := newServer(t, func(c *Config) { c.Limits.Chunk = chunk }, st, memory(t, 4096))
					p := connect(t, s, func(p *peer) { p.limit = limit }).disk(
						"MaxRecvDataSegmentLength", itoa(segment), "MaxBurstLength", itoa(burst), "FirstBurstLength", itoa(first),
						"InitialR2T", "No")
					model := make([]byte, blocks*512)
					for i := range ops {
						lba := rapid.IntRange(0, blocks-1).Draw(rt, "lba")
						n := rapid.IntRange(0, blocks-lba).Draw(rt, "blocks")
						if rapid.Bool().Draw(rt, "read") {
							edtl := rapid.SampledFrom([]int{n * 512, n * 512, n*512 + 100, max(n*512-100, 0)}).Draw(rt, "expected")
							if edtl == 0 {
								continue
							}
							p.readModel(t, model[lba*512:][:n*512], lba, edtl)
							continue
						}
						if n == 0 {
							continue
						}
						data := pattern(n*512, byte(i*31))
						p.writeModel(rt, lba, data, first)
						copy(model[lba*512:], data)
					}
					got := make([]byte, len(model))
					_, err := m.ReadAt(got, 0)
					require.NoError(t, err)
					require.NoError(t, same(model, got))
					p.leave()
					require.NoError(t, s.Shutdown(context.Background()))
				})
			})
		})
	}
}

// readModel reads blocks that hold want with an expected length.
func (p *peer) readModel(t *testing.T, want []byte, lba, edtl int) {
	p.command(cmd{cdb: read10(uint32(lba), uint16(len(want)/512)), read: edtl})
	var got []byte
	for {
		x, ok := p.next()
		require.True(t, ok)
		if x.in != nil {
			require.Equal(t, len(got), x.in.Offset)
			got = append(got, x.data...)
			continue
		}
		p.check(t, x.pdu, len(want), edtl)
		break
	}
	require.NoError(t, same(want[:min(len(want), edtl)], got))
}

// writeModel writes blocks, their data split at random.
func (p *peer) writeModel(rt *rapid.T, lba int, data []byte, first int) {
	t := p.t.(*testing.T)
	most := min(first, len(data))
	immediate := rapid.IntRange(0, most).Draw(rt, "immediate")
	w := cmd{cdb: write10(uint32(lba), uint16(len(data)/512)), write: data, immediate: immediate}
	w.more = immediate < most && rapid.Bool().Draw(rt, "unsolicited")
	itt := p.command(w)
	if w.more { // up to FirstBurstLength, as it must be if the write is longer
		sn := uint32(0)
		for off := immediate; off < most; sn++ {
			n := rapid.IntRange(1, most-off).Draw(rt, "Data-Out")
			p.dataOut(itt, sn, off, data[off:off+n], off+n == most)
			off += n
		}
	}
	p.check(t, p.pdu(iscsi.OpSCSIResponse), len(data), len(data))
}

// check holds a response that must be GOOD to what was moved and expected.
func (p *peer) check(t *testing.T, pdu *iscsi.PDU, moved, expected int) {
	r := iscsi.SCSIResponse(pdu.BHS[:])
	require.Equal(t, iscsi.OpSCSIResponse, pdu.Opcode())
	require.Zero(t, r.Response())
	require.Zero(t, r.Status())
	require.Equal(t, moved > expected, r.Overflow())
	require.Equal(t, moved < expected, r.Underflow())
	require.EqualValues(t, max(moved-expected, expected-moved), r.Residual())
	p.statSN = r.StatSN() + 1
}
