package scsi_test

import (
	"bytes"
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

// slate is a StateStore in memory that can fail.
type slate struct {
	mu    sync.Mutex // guards what follows
	data  []byte
	err   error
	left  int // how many more times Save succeeds if limited
	limit bool
}

func (s *slate) Load() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data, s.err
}

func (s *slate) Save(data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limit {
		if s.left--; s.left < 0 {
			return errors.New("disk full")
		}
	}
	s.data = data
	return nil
}

// fail has Save fail after it has succeeded so many times.
func (s *slate) fail(after int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit, s.left = true, after
}

func (s *slate) heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = false
}

func (s *slate) kept() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.data)
}

// restarted is a new rig over a store, as after a restart of the process that left that state behind.
func restarted(t *testing.T, s store.Store, state []byte, cfg scsi.LUConfig) (*rig, *slate) {
	t.Helper()
	k := &slate{data: bytes.Clone(state)}
	cfg.Sanitizing = k
	return newRig(t, s, cfg), k
}

// An operation that was cut short goes on in the pass in which it was, whether the process was killed or ended in order; nothing is
// read before it is done.
func TestSanitizeGoesOnAfterRestart(t *testing.T) { // SBC-4, section 4.11
	synctest.Test(t, func(t *testing.T) {
		for _, orderly := range []bool{false, true} {
			s, limit := memory(t, 1<<20), int64(1<<20)
			r, k := restarted(t, s, nil, scsi.LUConfig{Bandwidth: limit})
			r.overwrite(0x80, 0x80|4, []byte{0x0f, 0x1f}).good(t) // INVERT, four times
			time.Sleep(2500 * time.Millisecond)
			killed := k.kept()
			r.lu.Close() // the first process touches nothing any more
			if orderly {
				killed = k.kept()
			}
			require.NotEmpty(t, killed)

			r, k = restarted(t, s, killed, scsi.LUConfig{Bandwidth: limit})
			a := r.do(scsi.TestUnitReady(), nil, 0)
			a.fails(t, scsi.KeyNotReady, scsi.CodeSanitizeInProgress)
			assert.InDelta(t, 0.5, float64(a.sense.Progress)/65536, 0.1, "two passes were done")
			r.do(scsi.Read(0, 1, 0), nil, 512).fails(t, scsi.KeyNotReady, scsi.CodeSanitizeInProgress)
			begun := time.Now()
			for r.do(scsi.TestUnitReady(), nil, 0).Status != scsi.StatusGood {
				time.Sleep(100 * time.Millisecond)
			}
			assert.InDelta(t, 2, time.Since(begun).Seconds(), 0.5)
			assert.True(t, bytes.Equal(bytes.Repeat([]byte{0xf0, 0xe0}, 1<<19), r.read(0, 2048)), "the last pass is inverted")
			assert.Empty(t, k.kept())
			r, _ = restarted(t, s, k.kept(), scsi.LUConfig{})
			r.read(0, 1)
		}
	})
}

func TestSanitizeBlockEraseGoesOn(t *testing.T) {
	s := memory(t, 1<<20)
	state := []byte(`{"version": 1, "operation": "block erase", "passes": 1}`)
	full := bytes.Repeat([]byte{7}, 1<<20)
	_, err := s.WriteAt(full, 0)
	require.NoError(t, err)
	// As it is configured here blocks cannot be unmapped: the data stays out of reach, and what is kept stays.
	f, k := restarted(t, s, state, scsi.LUConfig{Provisioning: scsi.ProvisionFull})
	f.do(scsi.Read(0, 1, 0), nil, 512).fails(t, scsi.KeyMediumError, scsi.CodeSanitizeFailed)
	f.lu.Close()
	assert.Equal(t, state, k.kept())
	ro, _ := restarted(t, s, state, scsi.LUConfig{ReadOnly: true})
	ro.do(scsi.Read(0, 1, 0), nil, 512).fails(t, scsi.KeyMediumError, scsi.CodeSanitizeFailed)

	synctest.Test(t, func(t *testing.T) {
		s := memory(t, 1<<20)
		_, err := s.WriteAt(full, 0)
		require.NoError(t, err)
		r, k := restarted(t, s, state, scsi.LUConfig{})
		synctest.Wait()
		assert.Equal(t, make([]byte, 1<<20), r.read(0, 2048))
		assert.Empty(t, k.kept())
	})
}

// A failure outlives a restart, until an operation succeeds or EXIT FAILURE MODE ends one that allowed it.
func TestSanitizeFailureOutlivesRestart(t *testing.T) {
	for _, unrestricted := range []bool{false, true} {
		broken := storetest.Fail(memory(t, 1<<20), nil)
		broken.Always(storetest.Write, errors.New("broken"))
		r, k := restarted(t, broken, nil, scsi.LUConfig{})
		bits := byte(0)
		if unrestricted {
			bits = 0x20 // AUSE
		}
		r.overwrite(bits, 1, []byte{9}).fails(t, scsi.KeyMediumError, scsi.CodeSanitizeFailed)

		broken.Set(nil)
		r, k = restarted(t, broken, k.kept(), scsi.LUConfig{})
		r.do(scsi.Read(0, 1, 0), nil, 512).fails(t, scsi.KeyMediumError, scsi.CodeSanitizeFailed)
		exit := sanitizeCDB(scsi.SASanitizeExitFailureMode, 0)
		if unrestricted {
			k.fail(0)
			r.do(exit, nil, 0).fails(t, scsi.KeyHardwareError, scsi.CodeInternalTargetFailure)
			r.do(scsi.Read(0, 1, 0), nil, 512).fails(t, scsi.KeyMediumError, scsi.CodeSanitizeFailed)
			k.heal()
			r.do(exit, nil, 0).good(t)
		} else {
			r.do(exit, nil, 0).pointsTo(t, 1)
			r.overwrite(0, 1, []byte{9}).good(t)
		}
		r.read(0, 1)
		assert.Empty(t, k.kept())
	}
}

// What cannot be kept does not begin, and what cannot be forgotten does not end: a restart would destroy what was written since.
func TestSanitizeStateMustBeKept(t *testing.T) {
	s := memory(t, 1<<20)
	r, k := restarted(t, s, nil, scsi.LUConfig{})
	data := pattern(512, 3)
	r.do(scsi.Write(0, 1, 0), data, 0).good(t)
	k.fail(0)
	r.overwrite(0, 1, []byte{9}).fails(t, scsi.KeyHardwareError, scsi.CodeInternalTargetFailure)
	assert.Equal(t, data, r.read(0, 1))
	k.fail(1)
	r.overwrite(0, 1, []byte{9}).fails(t, scsi.KeyMediumError, scsi.CodeSanitizeFailed)

	for _, state := range []string{
		"{", "{}", `{"version": 1, "operation": "polish", "passes": 1}`, `{"version": 1, "operation": "overwrite", "passes": 1}`,
		`{"version": 1, "operation": "overwrite", "pattern": "AA==", "passes": 32}`, `{"version": 1, "operation": "overwrite", "pattern": "AA==", "passes": 2, "done": 2}`,
		`{"version": 1, "operation": "block erase", "passes": 2}`,
	} {
		_, err := scsi.NewLU(s, scsi.LUConfig{Sanitizing: &slate{data: []byte(state)}})
		require.ErrorContains(t, err, "remove the file", state)
	}
	_, err := scsi.NewLU(s, scsi.LUConfig{Sanitizing: &slate{err: errors.New("unreadable")}})
	require.ErrorContains(t, err, "unreadable")
}

// Two logical units that keep it in the same file by mistake: the other one's data is not destroyed, and neither is served, for it is not known whose
// operation it is.
func TestSanitizeOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, k := restarted(t, memory(t, 1<<20), nil, scsi.LUConfig{Identity: "disks/0", Bandwidth: 1 << 10})
		r.overwrite(0x80, 1, []byte{0}).good(t)
		r.lu.Close()
		other := memory(t, 1<<20)
		data := pattern(1<<20, 7)
		_, err := other.WriteAt(data, 0)
		require.NoError(t, err)
		_, err = scsi.NewLU(other, scsi.LUConfig{Identity: "disks/1", Sanitizing: &slate{data: k.kept()}})
		require.ErrorContains(t, err, `begun for "disks/0", and this is "disks/1"`)
		require.NotContains(t, err.Error(), "\n")
		synctest.Wait()
		require.True(t, bytes.Equal(data, contents(t, other, 0, 1<<20)))
	})
}
