package scsi_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/store/storetest"
)

// spacious is a store in memory that says what space it has.
type spacious struct {
	store.Store
	used, available atomic.Int64
}

func (s *spacious) Discard(off, n int64) error { return s.Store.(store.Discarder).Discard(off, n) }

func (s *spacious) Space() (used, available int64, err error) {
	return s.used.Load(), s.available.Load(), nil
}

func newSpacious(t *testing.T, used, available int64) *spacious {
	s := &spacious{Store: memory(t, 64<<20)}
	s.used.Store(used)
	s.available.Store(available)
	return s
}

// logPage is a log page's parameters by their codes.
func (r *rig) logPage(page byte) map[uint16][]byte {
	r.t.Helper()
	a := r.do(scsi.CDB{scsi.OpLogSense, 2: 0x40 | page, 7: 2}, nil, 512)
	a.good(r.t)
	require.Equal(r.t, 0x80|page, a.in[0])
	require.EqualValues(r.t, len(a.in)-4, binary.BigEndian.Uint16(a.in[2:]))
	found := map[uint16][]byte{}
	for p := a.in[4:]; len(p) > 0; p = p[4+int(p[3]):] {
		found[binary.BigEndian.Uint16(p)] = p[4 : 4+int(p[3])]
	}
	return found
}

func TestProvisioningLog(t *testing.T) { // SBC-3, sections 4.7.3.8 and 6.3.4
	for _, block := range []int{512, 4096} {
		s := newSpacious(t, 5<<20+1, 7<<20+1)
		r := newRig(t, s, scsi.LUConfig{BlockSize: block})
		set := int64(block) << r.vpd(scsi.PageProvisioning)[4]
		assert.EqualValues(t, 1<<20, set, "the threshold exponent")
		assert.Equal(t, map[uint16][]byte{
			1: {0, 0, 0, 7, 2, 0, 0, 0}, // available, shared with others
			2: {0, 0, 0, 6, 1, 0, 0, 0}, // used, of this unit
		}, r.logPage(scsi.LogPageProvisioning))
		a := r.do(scsi.CDB{scsi.OpLogSense, 2: 0x40, 8: 64}, nil, 64)
		assert.Contains(t, a.in[4:], byte(scsi.LogPageProvisioning))
	}
	for _, r := range []*rig{
		memoryRig(t, 1<<20, scsi.LUConfig{}),
		newRig(t, newSpacious(t, 0, 0), scsi.LUConfig{Provisioning: scsi.ProvisionFull}),
	} {
		assert.Zero(t, r.vpd(scsi.PageProvisioning)[4])
		r.do(scsi.CDB{scsi.OpLogSense, 2: 0x40 | scsi.LogPageProvisioning, 8: 64}, nil, 64).pointsTo(t, 2)
		r.do(scsi.CDB{scsi.OpModeSense10, 2: scsi.ModePageExceptions, 3: 0x02, 8: 64}, nil, 64).pointsTo(t, 3)
	}
	_, err := scsi.NewLU(memory(t, 1<<20), scsi.LUConfig{SpaceThreshold: 1})
	require.ErrorContains(t, err, "threshold")
	_, err = scsi.NewLU(newSpacious(t, 0, 0), scsi.LUConfig{SpaceThreshold: -1})
	require.ErrorContains(t, err, "threshold")
}

// Operator and initiators are told once when the threshold is reached, and again after there was space.
func TestSpaceThreshold(t *testing.T) { // SBC-3, section 4.7.3.8
	synctest.Test(t, func(t *testing.T) {
		s := newSpacious(t, 0, 20<<20)
		var log bytes.Buffer
		r := newRig(t, s, scsi.LUConfig{SpaceThreshold: 8 << 20, Log: slog.New(slog.NewTextHandler(&log, nil))})
		other := r.newNexus("b")
		tur := scsi.TestUnitReady()
		both := func(reached bool) {
			t.Helper()
			time.Sleep(2 * time.Second)
			for _, n := range []*scsi.Nexus{r.nexus, other} {
				a := r.as(n, tur[:], nil, 0)
				if reached {
					a.fails(t, scsi.KeyUnitAttention, scsi.CodeThresholdReached)
				} else {
					a.good(t)
				}
			}
		}
		both(false)
		s.available.Store(8 << 20)
		both(true)
		both(false)
		s.available.Store(8<<20 + 1) // hardly above
		both(false)
		s.available.Store(1 << 20)
		both(false)
		s.available.Store(10 << 20)
		both(false)
		s.available.Store(0)
		both(true)
		assert.Equal(t, 2, bytes.Count(log.Bytes(), []byte("runs out")))

		a := r.do(scsi.CDB{scsi.OpModeSense10, 1: 0x08, 2: scsi.ModePageExceptions, 3: 0x02, 8: 64}, nil, 64)
		a.good(t)
		page := a.in[8:]
		assert.Equal(t, append([]byte{0x5c, 0x02, 0, 20}, make([]byte, 12)...), page[:16])
		assert.Equal(t, []byte{0x80, 0x01, 0, 0, 0, 0, 0, 8}, page[16:], "soft, available resources, falling, 8 sets of 1 MiB")
		// All pages with subpages have it, and it can be sent back as it is.
		all := r.do(scsi.CDB{scsi.OpModeSense10, 1: 0x08, 2: scsi.ModePageAll, 3: 0xff, 8: 255}, nil, 255)
		all.good(t)
		assert.True(t, bytes.HasSuffix(all.in, page))
		assert.False(t, bytes.HasSuffix(r.do(scsi.CDB{scsi.OpModeSense10, 1: 0x08, 2: scsi.ModePageAll, 8: 255}, nil, 255).in, page), "no subpages")
		list := append(make([]byte, 8), page...)
		selectPage := scsi.CDB{scsi.OpModeSelect10, 0x10, 8: byte(len(list))}
		r.do(selectPage, list, 0).good(t)
		list[8+23] = 9
		r.do(selectPage, list, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInParameters, "the operator sets it")
		list[8+3] = 19
		r.do(selectPage, list, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInParameters)
		list[8+3] = 21
		r.do(selectPage, list, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeParameterListLength)
		r.do(scsi.CDB{scsi.OpModeSelect10, 0x10, 8: 8 + 3}, list[:8+3], 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeParameterListLength)
		list[8+1] = 3
		r.do(selectPage, list, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInParameters)
	})
}

func TestErrorCounters(t *testing.T) { // SPC-4, sections 7.3.8 and 7.3.15
	fail := storetest.Fail(memory(t, 4<<20), nil)
	r := newRig(t, fail, scsi.LUConfig{})
	is := func(page byte, corrected, octets, uncorrected uint64) {
		t.Helper()
		number := func(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }
		assert.Equal(t, map[uint16][]byte{3: number(corrected), 5: number(octets), 6: number(uncorrected)}, r.logPage(page))
	}
	r.do(scsi.Write(0, 8, 0), pattern(4096, 1), 0).good(t)
	r.read(0, 4)
	r.do(scsi.Verify(0, 2, scsi.VerifyMedium), nil, 0).good(t)
	broken := errors.New("broken")
	fail.Next(storetest.Read, broken) // and good when repeated
	r.read(0, 1)
	fail.Set(func(storetest.Op) error { return syscall.EIO })
	r.do(scsi.Read(5, 2, 0), nil, 1024).fails(t, scsi.KeyMediumError, scsi.CodeUnrecoveredRead)
	r.do(scsi.Verify(5, 2, scsi.VerifyMedium), nil, 0).fails(t, scsi.KeyMediumError, scsi.CodeUnrecoveredRead)
	r.do(scsi.Write(5, 1, 0), pattern(512, 1), 0).fails(t, scsi.KeyMediumError, scsi.CodeWriteError)
	fail.Set(nil)
	fail.Always(storetest.Write, syscall.EAGAIN)
	assert.Equal(t, scsi.StatusBusy, r.do(scsi.Write(5, 1, 0), pattern(512, 1), 0).Status)
	is(scsi.LogPageReadErrors, 1, 5*512, 1)
	is(scsi.LogPageVerifyErrors, 0, 2*512, 1)
	is(scsi.LogPageWriteErrors, 0, 4096, 1)
	assert.Equal(t, map[uint16][]byte{0: {0, 0, 0, 0, 0, 0, 0, 1}}, r.logPage(scsi.LogPageOtherErrors))
}

func TestSelfTest(t *testing.T) { // SPC-4, section 6.42
	fail := storetest.Fail(storetest.Forget(memory(t, 4<<20)), nil)
	r := newRig(t, fail, scsi.LUConfig{})
	self := scsi.CDB{scsi.OpSendDiagnostic, 0x04}
	r.do(self, nil, 0).good(t)
	r.do(scsi.CDB{scsi.OpSendDiagnostic}, nil, 0).good(t, "nothing is asked for")
	r.do(scsi.CDB{scsi.OpSendDiagnostic, 0x20}, nil, 0).pointsTo(t, 1, "a self-test in the background")
	r.do(scsi.CDB{scsi.OpSendDiagnostic, 0x10, 4: 8}, make([]byte, 8), 0).pointsTo(t, 3, "a page")
	fail.Set(func(op storetest.Op) error {
		if op.Kind == storetest.Read && op.Off == 4<<20-512 {
			return syscall.EIO
		}
		return nil
	})
	r.do(self, nil, 0).fails(t, scsi.KeyHardwareError, scsi.CodeSelfTestFailed)
	fail.Set(nil)
	r.do(self, nil, 0).good(t)
	fail.Always(storetest.Flush, syscall.EIO)
	r.do(scsi.SynchronizeCache(0, 0), nil, 0)
	r.do(self, nil, 0).fails(t, scsi.KeyHardwareError, scsi.CodeSelfTestFailed)
}
