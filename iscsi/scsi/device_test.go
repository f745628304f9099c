package scsi_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
)

func TestDecodeLUN(t *testing.T) {
	for lun, want := range map[uint64]int{
		0:                  0,
		0x0005000000000000: 5,
		0x00ff000000000000: 255,
		0x4005000000000000: 5,
		0x4100000000000000: 256,
		0x7fff000000000000: scsi.MaxLUN,
		0x0100000000000000: -1, // bus 1
		0x8000000000000000: -1, // logical unit addressing
		0xc101000000000000: -1, // REPORT LUNS well known logical unit
		0x0000000100000000: -1, // a second level
		0x0000000000000001: -1,
	} {
		got, ok := scsi.DecodeLUN(lun)
		assert.Equal(t, want >= 0, ok, "%016x", lun)
		if ok {
			assert.Equal(t, want, got, "%016x", lun)
		}
	}
	for n := range scsi.MaxLUN + 1 {
		got, ok := scsi.DecodeLUN(scsi.EncodeLUN(n))
		if !ok || got != n {
			t.Fatalf("LUN %d comes back as %d", n, got)
		}
	}
}

// What a LUN answers that is not there.
func TestAbsentLUN(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	for _, lun := range []uint64{scsi.EncodeLUN(1), scsi.EncodeLUN(300), 0xc101 << 48, 1} {
		at := func(c scsi.CDB, edtl int64) answer { return r.at(r.nexus, lun, c[:], nil, edtl) }
		a := at(scsi.Inquiry(96), 96)
		a.good(t)
		d, err := scsi.ParseInquiry(a.in)
		require.NoError(t, err)
		assert.EqualValues(t, 0x7f, a.in[0])
		assert.EqualValues(t, 3, d.Qualifier)
		at(scsi.InquiryVPD(0x83, 96), 96).pointsTo(t, 1)
		a = at(scsi.RequestSense(18), 18)
		a.good(t)
		s, ok := scsi.ParseSense(a.in)
		require.True(t, ok)
		assert.Equal(t, scsi.CodeLUNotSupported, s.Code)
		for _, c := range []scsi.CDB{scsi.TestUnitReady(), scsi.Read(0, 1, 0), scsi.Write(0, 1, 0), scsi.ReadCapacity16(), {0xff}} {
			at(c, 512).fails(t, scsi.KeyIllegalRequest, scsi.CodeLUNotSupported, c[0])
		}
		a = at(scsi.ReportLUNs(64), 64)
		a.good(t)
		luns, n, err := scsi.ParseReportLUNs(a.in)
		require.NoError(t, err)
		assert.Equal(t, 1, n)
		assert.Equal(t, []uint64{0}, luns)
	}
}

func TestReportLUNs(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	var want []uint64
	for _, n := range []int{300, 2, scsi.MaxLUN} {
		lu, err := scsi.NewLU(memory(t, 1<<20), scsi.LUConfig{})
		require.NoError(t, err)
		require.NoError(t, r.dev.Add(n, lu))
	}
	for _, n := range []int{0, 2, 300, scsi.MaxLUN} {
		want = append(want, scsi.EncodeLUN(n))
	}
	a := r.do(scsi.ReportLUNs(1024), nil, 1024)
	a.good(t)
	luns, n, err := scsi.ParseReportLUNs(a.in)
	require.NoError(t, err)
	assert.Equal(t, want, luns)
	assert.Equal(t, 4, n)
	a = r.do(scsi.ReportLUNs(24), nil, 24)
	luns, n, err = scsi.ParseReportLUNs(a.in)
	require.NoError(t, err)
	assert.Equal(t, want[:2], luns)
	assert.Equal(t, 4, n, "the length field is not cut")
	r.do(scsi.ReportLUNs(15), nil, 15).pointsTo(t, 6)
	c := scsi.ReportLUNs(16)
	c[2] = 0x01
	a = r.do(c, nil, 16)
	a.good(t)
	assert.Equal(t, make([]byte, 8), a.in, "no well known logical units")
	c[2] = 0x11
	r.do(c, nil, 16).pointsTo(t, 2)

	assert.ErrorIs(t, r.dev.Add(2, r.lu), scsi.ErrLUNTaken)
	assert.ErrorIs(t, r.dev.Add(scsi.MaxLUN+1, r.lu), scsi.ErrLUNRange)
	_, err = r.dev.Remove(7)
	assert.ErrorIs(t, err, scsi.ErrNoLUN)
}

// More LUNs than fit into one buffer of the transport.
func TestReportManyLUNs(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	r.chunk = 4096
	for n := 1; n < 1000; n++ {
		require.NoError(t, r.dev.Add(n, r.lu))
	}
	a := r.do(scsi.ReportLUNs(1<<20), nil, 1<<20)
	a.good(t)
	luns, _, err := scsi.ParseReportLUNs(a.in)
	require.NoError(t, err)
	assert.Len(t, luns, 1000)
}

func (r *rig) tur(n *scsi.Nexus) answer {
	r.t.Helper()
	return r.as(n, scsi.TestUnitReady().Append(nil), nil, 0)
}

func TestFirstUnitAttention(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	n := r.dev.NewNexus("initiator")
	// Looking around does not need, and does not take, the unit attention.
	for _, c := range []scsi.CDB{scsi.Inquiry(96), scsi.ReportLUNs(64)} {
		r.as(n, c[:], nil, 96).good(t)
	}
	r.tur(n).fails(t, scsi.KeyUnitAttention, scsi.CodeReset)
	r.tur(n).good(t)
	n.Close()
	n.Close()
	n = r.dev.NewNexus("initiator")
	a := r.as(n, scsi.Read(0, 1, 0).Append(nil), nil, 512)
	a.fails(t, scsi.KeyUnitAttention, scsi.CodeNexusLoss)
	assert.Zero(t, a.In)
	n.Close()
	assert.Equal(t, 1, r.dev.Nexuses())
}

func TestRequestSenseTellsAttention(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	n := r.dev.NewNexus("initiator")
	sense := func(descriptor byte) scsi.Sense {
		c := scsi.RequestSense(252)
		c[1] = descriptor
		a := r.as(n, c[:], nil, 252)
		a.good(t)
		s, ok := scsi.ParseSense(a.in)
		require.True(t, ok)
		assert.Equal(t, descriptor == 1, a.in[0] == 0x72)
		return s
	}
	assert.Equal(t, scsi.Sense{Key: scsi.KeyUnitAttention, Code: scsi.CodeReset}, sense(1))
	assert.Equal(t, scsi.Sense{}, sense(1))
	assert.Equal(t, scsi.Sense{}, sense(0))
	r.tur(n).good(t)
}

func TestResets(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	b, c := r.newNexus("b"), r.newNexus("c")
	r.lu.Reset(r.nexus)
	r.tur(r.nexus).fails(t, scsi.KeyUnitAttention, scsi.CodeBusDeviceReset, "the one that asked, too")
	r.tur(r.nexus).good(t)
	r.tur(b).fails(t, scsi.KeyUnitAttention, scsi.CodeBusDeviceReset)
	r.tur(b).good(t)
	r.lu.Attention(scsi.CodeModeParametersChanged, nil)
	r.dev.Reset(nil, scsi.CodeBusReset)
	r.tur(c).fails(t, scsi.KeyUnitAttention, scsi.CodeBusReset)
	r.tur(c).good(t, "a reset makes older news old")
	r.dev.Reset(nil, scsi.CodePowerOn)
	r.tur(r.nexus).fails(t, scsi.KeyUnitAttention, scsi.CodePowerOn)
	r.lu.Attention(scsi.CodeCommandsCleared, b)
	r.tur(c).fails(t, scsi.KeyUnitAttention, scsi.CodePowerOn)
	r.tur(c).fails(t, scsi.KeyUnitAttention, scsi.CodeCommandsCleared)
	r.tur(c).good(t)
}

// The queue of one nexus is bounded, tells each thing once, and in order.
func TestAttentionQueue(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	for range 3 {
		for i := range scsi.Code(100) {
			r.lu.Attention(0x2a00+i, nil)
		}
	}
	n := 0
	for ; r.tur(r.nexus).Status != scsi.StatusGood; n++ {
		require.Less(t, n, 100)
	}
	assert.Equal(t, 8, n)
	r.lu.Attention(scsi.CodeCapacityChanged, nil)
	r.tur(r.nexus).fails(t, scsi.KeyUnitAttention, scsi.CodeCapacityChanged)
	r.tur(r.nexus).good(t)
}

func TestLUNsChange(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	b := r.newNexus("b")
	lu, err := scsi.NewLU(memory(t, 1<<20), scsi.LUConfig{})
	require.NoError(t, err)
	require.NoError(t, r.dev.Add(1, lu))
	r.tur(r.nexus).fails(t, scsi.KeyUnitAttention, scsi.CodeReportedLUNsChanged)
	r.tur(r.nexus).good(t)
	r.as(b, scsi.ReportLUNs(64).Append(nil), nil, 64).good(t)
	r.tur(b).good(t, "who has read the list knows")
	a := r.at(b, scsi.EncodeLUN(1), scsi.TestUnitReady().Append(nil), nil, 0)
	a.fails(t, scsi.KeyUnitAttention, scsi.CodeReset)
	got, err := r.dev.Remove(1)
	require.NoError(t, err)
	assert.Same(t, lu, got)
	r.at(b, scsi.EncodeLUN(1), scsi.TestUnitReady().Append(nil), nil, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeLUNotSupported)
	r.tur(b).fails(t, scsi.KeyUnitAttention, scsi.CodeReportedLUNsChanged)
	b.Close()
}

// A disk that grows: one unit attention for each nexus, then the new size. Shrinking needs force;
// half a block more is nothing, and is said.
func TestResize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	s, err := store.CreateFile(path, 1<<20)
	require.NoError(t, err)
	defer s.Close()
	var log bytes.Buffer
	r := newRig(t, s, scsi.LUConfig{Log: slog.New(slog.NewTextHandler(&log, nil))})
	b := r.newNexus("b")
	capacity := func() uint64 {
		a := r.do(scsi.ReadCapacity16(), nil, 32)
		a.good(t)
		return binary.BigEndian.Uint64(a.in) + 1
	}
	require.NoError(t, r.lu.Resize(2<<20, false))
	for _, n := range []*scsi.Nexus{r.nexus, b} {
		r.tur(n).fails(t, scsi.KeyUnitAttention, scsi.CodeCapacityChanged)
		r.tur(n).good(t)
	}
	assert.EqualValues(t, 4096, capacity())
	r.do(scsi.Write(4095, 1, 0), make([]byte, 512), 0).good(t)

	require.NoError(t, os.Truncate(path, 3<<20+256))
	assert.True(t, r.lu.Refresh())
	r.tur(r.nexus).fails(t, scsi.KeyUnitAttention, scsi.CodeCapacityChanged)
	assert.EqualValues(t, 6144, capacity())
	assert.EqualValues(t, 256, r.lu.Ignored())
	assert.Contains(t, log.String(), "ignored=256")
	require.NoError(t, os.Truncate(path, 3<<20))
	assert.False(t, r.lu.Refresh(), "the same number of blocks")

	assert.ErrorIs(t, r.lu.Resize(1<<20, false), scsi.ErrShrink)
	assert.ErrorIs(t, r.lu.Resize(100, true), scsi.ErrShrink)
	assert.EqualValues(t, 6144, capacity())
	require.NoError(t, r.lu.Resize(1<<20, true))
	r.tur(r.nexus).fails(t, scsi.KeyUnitAttention, scsi.CodeCapacityChanged)
	assert.EqualValues(t, 2048, capacity())
	r.do(scsi.Read(2048, 1, 0), nil, 512).fails(t, scsi.KeyIllegalRequest, scsi.CodeLBAOutOfRange)

	fixed := newRig(t, struct{ store.Store }{memory(t, 1<<20)}, scsi.LUConfig{})
	assert.ErrorContains(t, fixed.lu.Resize(2<<20, false), "the store's size is fixed")
}

// RESERVE(6) and RELEASE(6), which old hypervisors use to create a datastore.
func TestReservation(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	a, b := r.nexus, r.newNexus("b")
	status := func(n *scsi.Nexus, c scsi.CDB) scsi.Status { return r.as(n, c[:], make([]byte, 512), 512).Status }
	conflict, good := scsi.StatusReservationConflict, scsi.StatusGood
	reserve, release := scsi.Reserve6(), scsi.Release6()
	read := scsi.Read(0, 1, 0)

	assert.Equal(t, good, status(a, reserve))
	assert.Equal(t, good, status(a, reserve), "again")
	assert.Equal(t, good, status(a, read))
	for _, c := range []scsi.CDB{read, scsi.Write(0, 1, 0), scsi.TestUnitReady(), reserve, scsi.ModeSense6(8, 255), {0xc0}} {
		assert.Equal(t, conflict, status(b, c), c[0])
	}
	for _, c := range []scsi.CDB{scsi.Inquiry(96), scsi.RequestSense(18), scsi.ReportLUNs(64), scsi.ReadCapacity10(), scsi.ReadCapacity16(), release} {
		assert.Equal(t, good, status(b, c), c[0])
	}
	assert.Equal(t, conflict, status(b, read), "B's RELEASE has no effect")
	assert.Equal(t, good, status(a, release))
	assert.Equal(t, good, status(b, read))

	assert.Equal(t, good, status(a, reserve))
	r.lu.Reset(b)
	r.tur(a)
	r.tur(b)
	assert.Equal(t, good, status(b, read), "a reset clears it")
	assert.Equal(t, good, status(a, reserve))
	a.Close()
	assert.Equal(t, good, status(b, reserve), "the loss of the session clears it")
	third := scsi.Reserve6()
	third[1] = 0x10
	r.as(b, third[:], nil, 0).pointsTo(t, 1)
}

func TestStartStop(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	r.do(scsi.StartStop(false), nil, 0).good(t)
	r.tur(r.nexus).good(t)
	c := scsi.StartStop(false)
	c[4] = 0x02 // LOEJ
	r.do(c, nil, 0).pointsTo(t, 4)
	for condition := range byte(15) { // nothing to power down, and LOEJ means nothing there
		c[4] = (condition+1)<<4 | 0x02
		r.do(c, nil, 0).good(t)
		r.tur(r.nexus).good(t)
	}
}

// REPORT SUPPORTED OPERATION CODES agrees with what the logical unit does, for every operation code
// and service action.
func TestSupportedOpcodes(t *testing.T) {
	for _, thin := range []scsi.Provisioning{scsi.ProvisionThin, scsi.ProvisionFull} {
		r := memoryRig(t, 1<<20, scsi.LUConfig{Provisioning: thin})
		for _, timeouts := range []byte{0, 0x80} {
			c := scsi.ReportSupportedOpcodes(8192)
			c[2] = timeouts
			a := r.do(c, nil, 8192)
			a.good(t)
			require.EqualValues(t, len(a.in)-4, binary.BigEndian.Uint32(a.in))
			listed, actions := map[[2]byte]int{}, map[byte]bool{}
			size := 8
			if timeouts != 0 {
				size = 20
			}
			require.Zero(t, (len(a.in)-4)%size)
			for d := a.in[4:]; len(d) > 0; d = d[size:] {
				listed[[2]byte{d[0], d[3]}] = int(d[7])
				actions[d[0]] = d[5]&0x01 != 0
				assert.Equal(t, timeouts != 0, d[5]&0x02 != 0)
			}
			for op := range 256 {
				for action := range 32 {
					if action > 0 && !actions[byte(op)] && action < 31 {
						continue
					}
					key := [2]byte{byte(op), byte(action)}
					one := scsi.ReportSupportedOpcodes(64)
					one[2], one[3], one[5] = 0x03|timeouts, key[0], key[1]
					a := r.do(one, nil, 64)
					a.good(t)
					length, supported := listed[key]
					assert.Equal(t, supported, a.in[1]&0x07 == 3, "%02x/%02x", op, action)
					if !supported {
						continue
					}
					assert.EqualValues(t, length, a.in[3])
					usage := a.in[4 : 4+length]
					assert.Equal(t, key[0], usage[0])
					cdb := scsi.CDB{key[0]}
					assert.Equal(t, length, cdb.Len())
				}
				probe := scsi.CDB{byte(op)}
				got := r.do(probe, make([]byte, 4096), 4096)
				_, plain := listed[[2]byte{byte(op), 0}]
				unknown := got.Status == scsi.StatusCheckCondition && got.sense.Code == scsi.CodeInvalidOpcode
				if !actions[byte(op)] {
					assert.Equal(t, plain, !unknown, "%02x", op)
				}
			}
		}
		c := scsi.ReportSupportedOpcodes(64)
		c[2], c[3] = 1, scsi.OpServiceActionIn16
		r.do(c, nil, 64).pointsTo(t, 2)
		c[2], c[3] = 2, scsi.OpRead10
		r.do(c, nil, 64).pointsTo(t, 2)
		c[2] = 4
		r.do(c, nil, 64).pointsTo(t, 2)
	}
}

func TestUnknownCommands(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	r.do(scsi.CDB{0x85}, nil, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidOpcode) // ATA PASS-THROUGH(16)
	r.do(scsi.CDB{scsi.OpServiceActionIn16, 0x1f}, nil, 0).pointsTo(t, 1)
	r.as(r.nexus, nil, nil, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidOpcode)
	r.as(r.nexus, []byte{scsi.OpRead10, 0, 0}, nil, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidOpcode)
	assert.Equal(t, "READ(10)", scsi.OpcodeName(scsi.Read(0, 1, 0).Append(nil)))
	assert.Equal(t, "operation 85h", scsi.OpcodeName([]byte{0x85}))
}

// Nexuses come and go and units change while commands run.
func TestConcurrentChanges(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 50 {
				n := r.dev.NewNexus(fmt.Sprint(w))
				for range 5 {
					for _, c := range []scsi.CDB{scsi.TestUnitReady(), scsi.Reserve6(), scsi.Read(0, 1, 0), scsi.ReportLUNs(64)} {
						r.dev.Execute(context.Background(), n, 0, c[:], &wire{expect: 512, chunk: 4096})
					}
				}
				if w == 0 {
					if i%2 == 0 {
						_ = r.dev.Add(1, r.lu)
					} else {
						_, _ = r.dev.Remove(1)
					}
					r.dev.Reset(n, scsi.CodeBusReset)
				}
				n.Close()
			}
		})
	}
	wg.Wait()
	assert.Equal(t, 1, r.dev.Nexuses())
	for r.tur(r.nexus).Status == scsi.StatusCheckCondition {
	}
	r.tur(r.nexus).good(t)
}

// A logical unit can be used without a Device: it is LUN 0 of nothing, with nexuses of its own.
func TestLogicalUnitAlone(t *testing.T) {
	s := memory(t, 1<<20)
	lu, err := scsi.NewLU(s, scsi.LUConfig{})
	require.NoError(t, err)
	assert.Same(t, s, lu.Store())
	assert.EqualValues(t, 2048, lu.Capacity())
	assert.Len(t, lu.NAA(), 8)
	n := scsi.NewNexus("alone")
	assert.Equal(t, "alone", n.Initiator())
	lu.Attach(n)
	lu.Attach(n)
	run := func(n *scsi.Nexus, c scsi.CDB) scsi.Result {
		return lu.Execute(context.Background(), n, c[:], &wire{expect: 512, chunk: 4096})
	}
	res := run(n, scsi.TestUnitReady())
	sense, ok := scsi.ParseSense(res.Sense())
	require.True(t, ok)
	assert.Equal(t, scsi.CodeReset, sense.Code)
	res = run(n, scsi.Reserve6())
	assert.Equal(t, scsi.StatusGood, res.Status)
	res = run(nil, scsi.Read(0, 1, 0))
	assert.Equal(t, scsi.StatusReservationConflict, res.Status)
	n.Close()
	res = run(nil, scsi.Read(0, 1, 0))
	assert.Equal(t, scsi.StatusGood, res.Status)
	lu.Attach(n)
	res = run(n, scsi.TestUnitReady())
	assert.Equal(t, scsi.StatusGood, res.Status, "a closed nexus stays closed")
	for _, c := range []scsi.CDB{scsi.ReportLUNs(64), scsi.InquiryVPD(scsi.PageIdentification, 255)} {
		res = run(nil, c)
		assert.Equal(t, scsi.StatusGood, res.Status)
	}
}
