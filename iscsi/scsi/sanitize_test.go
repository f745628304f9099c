package scsi_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
	"goiwarp/iscsi/store/storetest"
)

// sanitizeCDB is SANITIZE with a service action, flags in octet 1 and a parameter list length.
func sanitizeCDB(bits byte, length int) scsi.CDB {
	return scsi.CDB{scsi.OpSanitize, bits, 7: byte(length >> 8), 8: byte(length)}
}

// overwrite sends SANITIZE with OVERWRITE.
func (r *rig) overwrite(bits byte, count byte, pattern []byte) answer {
	r.t.Helper()
	list := append([]byte{count, 0, byte(len(pattern) >> 8), byte(len(pattern))}, pattern...)
	return r.do(sanitizeCDB(bits|scsi.SASanitizeOverwrite, len(list)), list, 0)
}

func TestSanitizeOverwrite(t *testing.T) { // SBC-4, section 5.38
	log := storetest.Log(storetest.Forget(memory(t, 1<<20)), nil)
	r := newRig(t, log, scsi.LUConfig{})
	n := uint32(r.lu.Capacity())
	r.do(scsi.Write(5, 4, 0), pattern(2048, 1), 0).good(t)
	r.overwrite(0, 1, []byte{0xaa, 0xbb, 0xcc}).good(t)
	block := bytes.Repeat([]byte{0xaa, 0xbb, 0xcc}, 171)[:512]
	assert.True(t, bytes.Equal(bytes.Repeat(block, int(n)), r.read(0, n)), "each block begins with the pattern")
	ops := log.Ops()
	assert.Contains(t, ops, storetest.Op{Kind: storetest.Flush})

	r.overwrite(0, 0x80|2, bytes.Repeat([]byte{0x0f}, 512)).good(t) // INVERT, twice
	assert.True(t, bytes.Equal(bytes.Repeat([]byte{0xf0}, int(n)*512), r.read(0, n)))
	flushes := 0
	for _, op := range log.Ops() {
		if op.Kind == storetest.Flush {
			flushes++
		}
	}
	assert.GreaterOrEqual(t, flushes, 2, "each pass reaches the medium")
}

func TestSanitizeChecksItsParameters(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	for length := range 5 {
		r.do(sanitizeCDB(scsi.SASanitizeOverwrite, length), make([]byte, 16), 0).pointsTo(t, 7)
	}
	r.do(sanitizeCDB(scsi.SASanitizeOverwrite, 512+5), make([]byte, 1024), 0).pointsTo(t, 7)
	for _, c := range []struct {
		name  string
		list  []byte
		octet int
	}{
		{"count 0", []byte{0x00, 0, 0, 4, 1, 2, 3, 4}, 0},
		{"TEST", []byte{0x41, 0, 0, 4, 1, 2, 3, 4}, 0},
		{"no pattern", []byte{0x01, 0, 0, 0, 1, 2, 3, 4}, 2},
		{"a pattern longer than a block", []byte{0x01, 0, 2, 1, 1, 2, 3, 4}, 2},
	} {
		a := r.do(sanitizeCDB(scsi.SASanitizeOverwrite, len(c.list)), c.list, 0)
		a.fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInParameters, c.name)
		assert.EqualValues(t, c.octet, a.sense.Field, c.name)
	}
	r.do(sanitizeCDB(scsi.SASanitizeOverwrite, 8), []byte{1, 0, 0, 5, 1, 2, 3, 4}, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeParameterListLength)
	r.do(sanitizeCDB(scsi.SASanitizeOverwrite, 8), []byte{1, 0, 0, 4}, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeParameterListLength)
	for _, action := range []byte{scsi.SASanitizeOverwrite, scsi.SASanitizeBlockErase, scsi.SASanitizeExitFailureMode} {
		c := sanitizeCDB(0x40|action, 0)
		r.do(c, nil, 0).pointsTo(t, 1)
		for octet := 2; octet < 7; octet++ {
			c := sanitizeCDB(action, 0)
			c[octet] = 1
			r.do(c, nil, 0).pointsTo(t, octet)
		}
	}
	r.do(sanitizeCDB(scsi.SASanitizeBlockErase, 8), make([]byte, 8), 0).pointsTo(t, 7)
	r.do(sanitizeCDB(scsi.SASanitizeExitFailureMode, 8), make([]byte, 8), 0).pointsTo(t, 7)
	r.do(sanitizeCDB(0x20|scsi.SASanitizeExitFailureMode, 0), nil, 0).pointsTo(t, 1)
	r.do(sanitizeCDB(0x03, 0), nil, 0).pointsTo(t, 1) // CRYPTOGRAPHIC ERASE: nothing is encrypted

	ro := memoryRig(t, 1<<20, scsi.LUConfig{ReadOnly: true})
	ro.overwrite(0, 1, []byte{1}).fails(t, scsi.KeyDataProtect, scsi.CodeWriteProtected)
}

func TestSanitizeBlockErase(t *testing.T) {
	r := memoryRig(t, 1<<30, scsi.LUConfig{})
	assert.EqualValues(t, 0x40, r.vpd(scsi.PageCharacteristic)[7]&0xc0, "WABEREQ: reads succeed afterwards")
	r.do(scsi.Write(77, 4, 0), pattern(2048, 1), 0).good(t)
	r.do(sanitizeCDB(scsi.SASanitizeBlockErase, 0), nil, 0).good(t)
	assert.Equal(t, make([]byte, 2048), r.read(77, 4))
	a := r.do(scsi.GetLBAStatus(0, 512), nil, 512)
	a.good(t)
	assert.Len(t, a.in, 24, "one range, unmapped")
	assert.EqualValues(t, 1, a.in[8+12])

	full := memoryRig(t, 1<<20, scsi.LUConfig{Provisioning: scsi.ProvisionFull})
	full.do(sanitizeCDB(scsi.SASanitizeBlockErase, 0), nil, 0).pointsTo(t, 1)
	assert.Zero(t, full.vpd(scsi.PageCharacteristic)[7])
}

// held is a store whose writes wait once it is told to hold them.
type held struct {
	store.Store
	mu      sync.Mutex
	hold    bool
	entered chan struct{}
	release chan error
}

func (h *held) WriteAt(p []byte, off int64) (int, error) {
	h.mu.Lock()
	hold := h.hold
	h.hold = false
	h.mu.Unlock()
	if hold {
		close(h.entered)
		if err := <-h.release; err != nil {
			return 0, err
		}
	}
	return h.Store.WriteAt(p, off)
}

func holding(t *testing.T) *held {
	return &held{Store: memory(t, 1<<20), hold: true, entered: make(chan struct{}), release: make(chan error)}
}

// An operation outlives its command, resets and nexuses; meanwhile only what does not touch the medium
// is answered, and REQUEST SENSE tells how far it is.
func TestSanitizeInProgress(t *testing.T) { // SBC-4, section 4.11
	synctest.Test(t, func(t *testing.T) {
		h := holding(t)
		r := newRig(t, h, scsi.LUConfig{})
		r.overwrite(0x80, 1, []byte{0}).good(t, "IMMED")
		<-h.entered
		in := func(a answer) {
			t.Helper()
			a.fails(t, scsi.KeyNotReady, scsi.CodeSanitizeInProgress)
			assert.True(t, a.sense.ProgressValid)
		}
		in(r.do(scsi.TestUnitReady(), nil, 0))
		in(r.do(scsi.StartStop(true), nil, 0))
		in(r.do(scsi.Read(0, 1, 0), nil, 512))
		in(r.do(scsi.Write(0, 1, 0), make([]byte, 512), 0))
		in(r.do(scsi.ModeSense6(0x3f, 255), nil, 255))
		in(r.overwrite(0, 1, []byte{1}))
		r.do(scsi.Inquiry(96), nil, 96).good(t)
		r.do(scsi.ReportLUNs(64), nil, 64).good(t)
		r.do(scsi.ReportSupportedOpcodes(64), nil, 64).good(t)
		a := r.do(scsi.RequestSense(252), nil, 252)
		a.good(t)
		s, ok := scsi.ParseSense(a.in)
		require.True(t, ok)
		assert.Equal(t, scsi.Sense{Key: scsi.KeyNotReady, Code: scsi.CodeSanitizeInProgress, ProgressValid: true}, s)

		r.lu.Reset(r.nexus)
		r.dev.Reset(r.nexus, scsi.CodeBusReset)
		r.nexus.Close()
		r.nexus = r.dev.NewNexus("a")
		r.do(scsi.TestUnitReady(), nil, 0) // its unit attention
		in(r.do(scsi.TestUnitReady(), nil, 0))
		h.release <- nil
		synctest.Wait()
		r.do(scsi.TestUnitReady(), nil, 0).good(t)
		r.read(0, 8)
	})
}

// An abort ends the command, not the operation.
func TestSanitizeSurvivesAbort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := holding(t)
		r := newRig(t, h, scsi.LUConfig{})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan scsi.Result)
		go func() {
			c := sanitizeCDB(scsi.SASanitizeOverwrite, 5)
			done <- r.dev.Execute(ctx, r.nexus, 0, c[:], &wire{out: []byte{1, 0, 0, 1, 0xee}, chunk: 4096})
		}()
		<-h.entered
		cancel()
		res := <-done
		assert.ErrorIs(t, res.Err, context.Canceled)
		r.do(scsi.TestUnitReady(), nil, 0).fails(t, scsi.KeyNotReady, scsi.CodeSanitizeInProgress)
		h.release <- nil
		synctest.Wait()
		assert.Equal(t, bytes.Repeat([]byte{0xee}, 512), r.read(2047, 1))
	})
}

// After a failure the medium stays out of reach until an operation succeeds, or until EXIT FAILURE MODE
// if the one that failed allowed it.
func TestSanitizeFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, unrestricted := range []bool{false, true} {
			h := holding(t)
			r := newRig(t, h, scsi.LUConfig{})
			bits := byte(0x80)
			if unrestricted {
				bits |= 0x20 // AUSE
			}
			r.do(sanitizeCDB(scsi.SASanitizeExitFailureMode, 0), nil, 0).good(t, "nothing has failed")
			r.overwrite(bits, 1, []byte{9}).good(t)
			<-h.entered
			r.do(sanitizeCDB(scsi.SASanitizeExitFailureMode, 0), nil, 0).fails(t, scsi.KeyNotReady, scsi.CodeSanitizeInProgress)
			h.release <- errors.New("broken")
			synctest.Wait()
			r.do(scsi.TestUnitReady(), nil, 0).fails(t, scsi.KeyMediumError, scsi.CodeSanitizeFailed)
			r.do(scsi.Read(0, 1, 0), nil, 512).fails(t, scsi.KeyMediumError, scsi.CodeSanitizeFailed)
			r.do(scsi.Inquiry(96), nil, 96).good(t)
			if unrestricted {
				r.do(sanitizeCDB(scsi.SASanitizeExitFailureMode, 0), nil, 0).good(t)
			} else {
				r.do(sanitizeCDB(scsi.SASanitizeExitFailureMode, 0), nil, 0).pointsTo(t, 1)
				r.overwrite(0, 1, []byte{9}).good(t)
			}
			r.read(0, 1)
		}
	})
	fail := storetest.Fail(memory(t, 1<<20), func(op storetest.Op) error {
		if op.Kind == storetest.Write {
			return errors.New("broken")
		}
		return nil
	})
	newRig(t, fail, scsi.LUConfig{}).overwrite(0, 1, []byte{9}).fails(t, scsi.KeyMediumError, scsi.CodeSanitizeFailed)
}

// What may take long does not run on a goroutine that reads a connection, not even over memory.
func TestLongCommandsBlock(t *testing.T) {
	r := memoryRig(t, 1<<20, scsi.LUConfig{})
	for _, c := range []scsi.CDB{
		sanitizeCDB(scsi.SASanitizeOverwrite, 8), sanitizeCDB(scsi.SASanitizeBlockErase, 0), copyCDB(0, 16), copyCDB(1, 48), scsi.WriteSame(0, 0, false),
	} {
		assert.True(t, r.dev.Plan(0, c[:]).Blocks, scsi.OpcodeName(c[:]))
	}
	c := scsi.Write(0, 1, 0)
	assert.False(t, r.dev.Plan(0, c[:]).Blocks)
}

// A logical unit's bandwidth bounds its sanitize operation, which tells how far it is.
func TestSanitizeKeepsLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memoryRig(t, 8<<20, scsi.LUConfig{})
		require.NoError(t, r.lu.Limiter().Set(0, 1<<20))
		begun := time.Now()
		r.overwrite(0x80, 1, []byte{9}).good(t)
		time.Sleep(4 * time.Second)
		a := r.do(scsi.TestUnitReady(), nil, 0)
		a.fails(t, scsi.KeyNotReady, scsi.CodeSanitizeInProgress)
		assert.InDelta(t, 0.5, float64(a.sense.Progress)/65536, 0.05)
		r.overwrite(0, 1, []byte{9}).fails(t, scsi.KeyNotReady, scsi.CodeSanitizeInProgress)
		for r.do(scsi.TestUnitReady(), nil, 0).Status != scsi.StatusGood {
			time.Sleep(100 * time.Millisecond)
		}
		assert.InDelta(t, 8, time.Since(begun).Seconds(), 0.5)
	})
}

// Close ends an operation and waits for it.
func TestCloseEndsSanitize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := holding(t)
		s := &counting{Store: h}
		r := newRig(t, s, scsi.LUConfig{})
		r.overwrite(0x80, 31, []byte{9}).good(t)
		<-h.entered
		closed := make(chan struct{})
		go func() {
			r.lu.Close()
			close(closed)
		}()
		synctest.Wait()
		h.release <- nil
		<-closed
		assert.Less(t, s.writes, 31*(1<<20)/(128<<10), "it did not go on to its end")
		r.overwrite(0, 1, []byte{1}).fails(t, scsi.KeyNotReady, scsi.CodeSanitizeInProgress, "a closed unit begins none")
		r.lu.Close()
	})
}

type counting struct {
	store.Store
	writes int
}

func (c *counting) WriteAt(p []byte, off int64) (int, error) {
	c.writes++
	return c.Store.WriteAt(p, off)
}
