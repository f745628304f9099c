package scsi_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wire is a Transfer in memory: what the initiator sends is out, what it gets is in. It checks the
// contract of its caller.
type wire struct {
	expect int64 // InLength
	out    []byte
	in     []byte
	chunk  int
	lent   int   // buffers not given back
	err    error // of every method
	broken string
}

type lent struct {
	w *wire
	p []byte
}

func (b *lent) Bytes() []byte { return b.p }

func (b *lent) Release() {
	if b.p == nil {
		b.w.broken = "a buffer was released twice"
	}
	b.p = nil
	b.w.lent--
}

func (w *wire) InLength() int64  { return w.expect }
func (w *wire) OutLength() int64 { return int64(len(w.out)) }
func (w *wire) Chunk() int       { return w.chunk }

func (w *wire) lend(n int) *lent {
	if n <= 0 || n > w.chunk {
		w.broken = "a buffer of a wrong size was asked for"
	}
	w.lent++
	return &lent{w, make([]byte, n)}
}

func (w *wire) Buffer(n int) (scsi.Buffer, error) {
	if w.err != nil {
		return nil, w.err
	}
	return w.lend(n), nil
}

func (w *wire) In(b scsi.Buffer, off int64, n int) error {
	defer b.Release()
	if w.err != nil {
		return w.err
	}
	if off != int64(len(w.in)) || n <= 0 || n > len(b.Bytes()) {
		w.broken = "data-in with a hole or of a wrong size"
	}
	p := b.Bytes()[:n]
	w.in = append(w.in, p[:min(int64(n), max(w.expect-off, 0))]...)
	return nil
}

func (w *wire) Out(off int64, n int) (scsi.Buffer, error) {
	if w.err != nil {
		return nil, w.err
	}
	if off < 0 || off+int64(n) > int64(len(w.out)) {
		w.broken = "data-out beyond what there is"
		return nil, errors.New("out of range")
	}
	b := w.lend(n)
	copy(b.p, w.out[off:])
	return b, nil
}

// answer is a command's end.
type answer struct {
	scsi.Result
	in    []byte
	sense scsi.Sense
}

// rig is a Device with one logical unit, 0, and nexuses that have been told of the power-on.
type rig struct {
	t     *testing.T
	dev   *scsi.Device
	lu    *scsi.LU
	nexus *scsi.Nexus
	chunk int
}

var testPort = scsi.Port{
	Name: "iqn.2026-11.com.example:disk,t,0x0001", DeviceName: "iqn.2026-11.com.example:disk", Relative: 1, Protocol: 5, Version: 0x0960,
}

func newRig(t *testing.T, s store.Store, cfg scsi.LUConfig) *rig {
	t.Helper()
	lu, err := scsi.NewLU(s, cfg)
	require.NoError(t, err)
	r := &rig{t: t, dev: scsi.NewDevice(testPort), lu: lu, chunk: 64 << 10}
	require.NoError(t, r.dev.Add(0, lu))
	r.nexus = r.newNexus("a")
	return r
}

func memoryRig(t *testing.T, size int64, cfg scsi.LUConfig) *rig {
	t.Helper()
	return newRig(t, memory(t, size), cfg)
}

func memory(t *testing.T, size int64) store.Store {
	t.Helper()
	s, err := store.NewMemory(size)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// newNexus opens a nexus and takes its first unit attention.
func (r *rig) newNexus(name string) *scsi.Nexus {
	n := r.dev.NewNexus(name)
	r.as(n, scsi.TestUnitReady().Append(nil), nil, 0)
	return n
}

// do runs a command that moves at most edtl octets in.
func (r *rig) do(cdb scsi.CDB, out []byte, edtl int64) answer {
	r.t.Helper()
	return r.as(r.nexus, cdb[:], out, edtl)
}

func (r *rig) as(n *scsi.Nexus, cdb, out []byte, edtl int64) answer {
	r.t.Helper()
	return r.at(n, 0, cdb, out, edtl)
}

func (r *rig) at(n *scsi.Nexus, lun uint64, cdb, out []byte, edtl int64) answer {
	r.t.Helper()
	w := &wire{expect: edtl, out: out, chunk: r.chunk}
	plan := r.dev.Plan(lun, cdb)
	res := r.dev.Execute(context.Background(), n, lun, cdb, w)
	require.Empty(r.t, w.broken)
	require.Zero(r.t, w.lent, "every buffer is given back")
	require.LessOrEqual(r.t, res.In, plan.DataIn, "never more than the plan")
	require.LessOrEqual(r.t, res.Out, plan.DataOut)
	if res.Status == scsi.StatusGood {
		require.Equal(r.t, min(res.In, edtl), int64(len(w.in)), "what the result says was moved")
	}
	a := answer{Result: res, in: w.in}
	if res.Status == scsi.StatusCheckCondition {
		var ok bool
		a.sense, ok = scsi.ParseSense(res.Sense())
		require.True(r.t, ok)
	} else {
		require.Empty(r.t, res.Sense())
	}
	return a
}

func (a answer) good(t *testing.T, what ...any) {
	t.Helper()
	require.NoError(t, a.Err, what...)
	require.Equal(t, scsi.StatusGood, a.Status, append(what, a.sense.String())...)
}

func (a answer) fails(t *testing.T, key scsi.Key, code scsi.Code, what ...any) {
	t.Helper()
	require.NoError(t, a.Err, what...)
	require.Equal(t, scsi.StatusCheckCondition, a.Status, what...)
	assert.Equal(t, key.String()+": "+code.String(), a.sense.Key.String()+": "+a.sense.Code.String(), what...)
}

// pointsTo checks the field pointer into the CDB.
func (a answer) pointsTo(t *testing.T, octet int, what ...any) {
	t.Helper()
	a.fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInCDB, what...)
	assert.True(t, a.sense.FieldValid && a.sense.InCDB, what...)
	assert.EqualValues(t, octet, a.sense.Field, what...)
}
