package scsi_test

import (
	"encoding/binary"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
)

// anchoring is a store in memory that remembers one anchored range.
type anchoring struct {
	store.Store
	off, n int64
	err    error
}

func (a *anchoring) Info() store.Info {
	info := a.Store.Info()
	info.Anchors = true
	return info
}

func (a *anchoring) Discard(off, n int64) error { return a.Store.(store.Discarder).Discard(off, n) }

func (a *anchoring) Anchor(off, n int64) error {
	if a.err != nil {
		return a.err
	}
	a.off, a.n = off, n
	return a.Discard(off, n)
}

func (a *anchoring) Provisioned(off, most int64) (store.Provision, int64, error) {
	mapped, n, err := a.Store.(store.Mapper).Extent(off, most)
	switch {
	case err != nil || mapped:
		return store.Mapped, n, err
	case off < a.off:
		return store.Deallocated, min(n, a.off-off), nil
	case off < a.off+a.n:
		return store.Anchored, min(n, a.off+a.n-off), nil
	}
	return store.Deallocated, n, nil
}

func TestAnchor(t *testing.T) { // SBC-3, sections 4.7.3.3, 5.28 and 5.43
	s := &anchoring{Store: memory(t, 16<<20)}
	r := newRig(t, s, scsi.LUConfig{})
	assert.EqualValues(t, 0xe6, r.vpd(scsi.PageProvisioning)[5], "LBPU, LBPWS, LBPWS10, LBPRZ, ANC_SUP")
	for _, c := range []struct{ op, bit byte }{{scsi.OpUnmap, 0x01}, {scsi.OpWriteSame10, 0x18}, {scsi.OpWriteSame16, 0x19}} {
		q := scsi.ReportSupportedOpcodes(64)
		q[2], q[3] = 1, c.op
		a := r.do(q, nil, 64)
		a.good(t)
		assert.Equal(t, c.bit, a.in[5]&0x1f, "%02x", c.op)
	}
	status := func(lba uint64) (byte, uint32) {
		a := r.do(scsi.GetLBAStatus(lba, 24), nil, 24)
		a.good(t)
		return a.in[8+12], binary.BigEndian.Uint32(a.in[8+8:])
	}
	is := func(lba uint64, state byte, blocks uint32) {
		t.Helper()
		s, n := status(lba)
		assert.Equal(t, []any{state, blocks}, []any{s, n}, lba)
	}
	list := scsi.AppendUnmap(nil, []scsi.Extent{{LBA: 1024, Blocks: 2048}})
	unmap := scsi.Unmap(1)
	unmap[1] = 0x01 // ANCHOR
	r.do(scsi.Write(1024, 1024, 0), pattern(1024*512, 1), 0).good(t)
	r.do(unmap, list, 0).good(t)
	is(0, 1, 1024)
	is(1024, 2, 2048)
	is(3072, 1, 32768-3072)
	assert.Equal(t, make([]byte, 1024*512), r.read(1024, 1024))

	same := scsi.WriteSame(4096, 512, true)
	same[1] |= 0x10
	r.do(same, make([]byte, 512), 0).good(t)
	is(4096, 2, 512)
	r.do(same, pattern(512, 1), 0).good(t, "data that unmapped blocks do not have is written")
	state, _ := status(4096)
	assert.Zero(t, state)
	same[1] &^= 0x08
	r.do(same, make([]byte, 512), 0).pointsTo(t, 1, "ANCHOR without UNMAP")

	s.err = syscall.ENOSPC
	r.do(unmap, list, 0).fails(t, scsi.KeyDataProtect, scsi.CodeSpaceAllocationFailed)
	full := newRig(t, s, scsi.LUConfig{Provisioning: scsi.ProvisionFull})
	same = scsi.WriteSame(0, 1, true)
	same[1] |= 0x10
	full.do(same, make([]byte, 512), 0).pointsTo(t, 1, "not thin")
	require.Zero(t, full.vpd(scsi.PageProvisioning)[5])
}
