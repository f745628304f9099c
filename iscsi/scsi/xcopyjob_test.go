package scsi_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
)

// Statuses of RECEIVE COPY STATUS(LID4) (SPC-4, table 319).
const (
	statusDone       = 0x01
	statusFailed     = 0x02
	statusForeground = 0x11
	statusBackground = 0x12
	statusTerminated = 0x60
)

// background begins a copy of that many blocks within logical unit 0, from 0 to 1024, with IMMED.
func (r *rig) background(id uint32, blocks uint16) answer {
	r.t.Helper()
	list := copyList4(id, nil, [][]byte{segment(0xffff, 0xffff, blocks, 0, 1024)})
	list[15] = 0x01
	return r.do(copyCDB(scsi.SAExtendedCopyLID4, len(list)), list, 0)
}

func (r *rig) abortCopy(id uint32) answer {
	r.t.Helper()
	c := scsi.CDB{scsi.OpExtendedCopy, scsi.SACopyOperationAbort}
	binary.BigEndian.PutUint32(c[2:], id)
	return r.do(c, nil, 0)
}

// status4 is what RECEIVE COPY STATUS(LID4) tells of a copy: its status, and the octets that were moved.
func (r *rig) status4(id uint32) (status byte, moved uint64) {
	r.t.Helper()
	a := r.results(scsi.SACopyStatusLID4, id)
	a.good(r.t)
	require.Zero(r.t, a.in[15], "counted in octets")
	return a.in[5], binary.BigEndian.Uint64(a.in[16:])
}

// again has the next write of a store wait, as the first one did.
func (h *held) again() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hold, h.entered = true, make(chan struct{})
}

func TestCopyInBackground(t *testing.T) { // SPC-4, section 6.4.3.2: IMMED
	synctest.Test(t, func(t *testing.T) {
		h := holding(t)
		r := newRig(t, h, scsi.LUConfig{})
		data := pattern(512*512, 3)
		_, err := h.Store.WriteAt(data, 0)
		require.NoError(t, err)

		r.background(1, 512).good(t, "before it is done")
		<-h.entered
		status, moved := r.status4(1)
		assert.EqualValues(t, statusBackground, status)
		assert.Zero(t, moved)
		r.background(1, 1).fails(t, scsi.KeyIllegalRequest, scsi.CodeOperationInProgress)

		// What ends the tasks of a nexus leaves it alone: it is none of them.
		h.release <- nil
		synctest.Wait()
		status, moved = r.status4(1)
		assert.EqualValues(t, statusDone, status)
		assert.EqualValues(t, len(data), moved)
		assert.True(t, bytes.Equal(data, r.read(1024, 512)))
		r.results(scsi.SACopyStatusLID4, 1).pointsTo(t, 2, "told once")

		// A failure is told with its sense data.
		h.again()
		r.background(2, 512).good(t)
		<-h.entered
		h.release <- errors.New("broken")
		synctest.Wait()
		a := r.results(scsi.SACopyStatusLID4, 2)
		a.good(t)
		assert.EqualValues(t, statusFailed, a.in[5])
		assert.EqualValues(t, scsi.StatusCheckCondition, a.in[12])
		s, ok := scsi.ParseSense(a.in[32:])
		require.True(t, ok)
		assert.Equal(t, scsi.Sense{Key: scsi.KeyCopyAborted, Code: scsi.CodeThirdPartyFailure, Info: 512, InfoValid: true}, s)
	})
}

// The list of a copy in the background outlives the buffer that it came in.
func TestCopyInBackgroundKeepsItsList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memoryRig(t, 4<<20, scsi.LUConfig{})
		require.NoError(t, r.lu.Limiter().Set(0, 1<<20))
		other := memory(t, 4<<20)
		second := r.withSecond(other, scsi.LUConfig{})
		data := pattern(1<<20, 4)
		r.do(scsi.Write(0, 2048, 0), data, 0).good(t)
		list := copyList4(1, [][]byte{cscd(r.lu), cscd(second)}, [][]byte{segment(0, 1, 1024, 0, 0), segment(0, 1, 1024, 1024, 1024)})
		list[15] = 0x01
		r.do(copyCDB(scsi.SAExtendedCopyLID4, len(list)), list, 0).good(t)
		r.do(scsi.WriteSame(7000, 8, false), bytes.Repeat([]byte{0xee}, 512), 0).good(t, "takes the buffer, and fills it")
		time.Sleep(5 * time.Second)
		status, moved := r.status4(1)
		assert.EqualValues(t, statusDone, status)
		assert.EqualValues(t, len(data), moved)
		assert.True(t, bytes.Equal(data, contents(t, other, 0, len(data))))
	})
}

func TestCopyOperationAbort(t *testing.T) { // SPC-4, section 6.3
	synctest.Test(t, func(t *testing.T) {
		h := holding(t)
		r := newRig(t, h, scsi.LUConfig{})
		r.abortCopy(1).pointsTo(t, 2, "no such copy")
		begin := func(id uint32) {
			r.background(id, 512).good(t)
			<-h.entered
		}
		// ends runs what ends the copy while a piece of it waits in the store: it comes back once that has been written.
		ends := func(what func()) {
			done := make(chan struct{})
			go func() {
				what()
				close(done)
			}()
			synctest.Wait()
			select {
			case <-done:
				assert.Fail(t, "did not wait for the piece under way")
			default:
			}
			h.release <- nil
			<-done
			h.again()
		}
		begin(1)
		other := r.newNexus("b")
		mine := r.nexus
		r.nexus = other
		r.abortCopy(1).pointsTo(t, 2, "another nexus's")
		r.nexus = mine
		r.abortCopy(2).pointsTo(t, 2, "another identifier")
		ends(func() { r.abortCopy(1).good(t) })
		status, moved := r.status4(1)
		assert.EqualValues(t, statusTerminated, status)
		assert.EqualValues(t, 128<<10, moved, "the piece that was under way")
		r.abortCopy(1).pointsTo(t, 2, "it has ended")

		// A copy whose command waits for it ends its command.
		list := copyList4(5, nil, [][]byte{segment(0xffff, 0xffff, 512, 0, 1024)})
		c := copyCDB(scsi.SAExtendedCopyLID4, len(list))
		done := make(chan scsi.Result)
		go func() { done <- r.dev.Execute(context.Background(), r.nexus, 0, c[:], &wire{out: list, chunk: 4096}) }()
		<-h.entered
		status, _ = r.status4(5)
		assert.EqualValues(t, statusForeground, status)
		ends(func() { r.abortCopy(5).good(t) })
		res := <-done
		require.NoError(t, res.Err)
		s, ok := scsi.ParseSense(res.Sense())
		require.True(t, ok)
		assert.Equal(t, scsi.Sense{Key: scsi.KeyCopyAborted, Info: 256, InfoValid: true}, s)

		// So do a reset of the copy manager, the loss of the nexus, PREEMPT AND ABORT and Close.
		begin(6)
		ends(func() { r.lu.Reset(nil) })
		r.do(scsi.TestUnitReady(), nil, 0)
		r.results(scsi.SACopyStatusLID4, 6).pointsTo(t, 2)

		begin(7)
		ends(r.nexus.Close)
		r.nexus = other
		r.do(scsi.TestUnitReady(), nil, 0)
		r.results(scsi.SACopyStatusLID4, 7).pointsTo(t, 2)

		begin(8)

		ends(r.lu.Close)
		status, _ = r.status4(8)
		assert.EqualValues(t, statusTerminated, status)
		assert.Equal(t, scsi.StatusBusy, r.background(9, 1).Status, "a closed unit begins none")
		h.mu.Lock()
		h.hold = false
		h.mu.Unlock()
	})
}

// As many copies as the operating parameters tell of are under way at the same time; more are BUSY.
func TestCopiesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memoryRig(t, 4<<20, scsi.LUConfig{})
		require.NoError(t, r.lu.Limiter().Set(0, 1<<20))
		params := r.results(scsi.SACopyOperatingParameters, 0)
		params.good(t)
		most := uint32(params.in[36])
		for id := range most {
			r.background(id, 1024).good(t)
		}
		assert.Equal(t, scsi.StatusBusy, r.background(most, 1024).Status)
		r.abortCopy(3).good(t)
		r.background(most, 1024).good(t)
		r.dev.Reset(nil, scsi.CodeBusReset)
		r.do(scsi.TestUnitReady(), nil, 0)
		r.background(0, 1).good(t)
		r.lu.Close()
	})
}

// A reservation that another nexus takes while a copy runs, and a sanitize operation, hold for the rest of the copy.
func TestCopyInBackgroundIsBarred(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, bar := range map[string]func(r *rig){
			"reservation": func(r *rig) {
				r.nexus = r.newNexus("b")
				r.do(scsi.Reserve6(), nil, 0).good(t)
			},
			"sanitize":  func(r *rig) { r.overwrite(0x80, 1, []byte{0}).good(t) },
			"protected": func(r *rig) { r.lu.SetReadOnly(true) },
		} {
			h := holding(t)
			r := newRig(t, h, scsi.LUConfig{})
			mine := r.nexus
			r.background(1, 512).good(t)
			<-h.entered
			bar(r)
			h.release <- nil
			synctest.Wait()
			if name == "reservation" {
				r.do(scsi.Release6(), nil, 0).good(t)
			}
			r.nexus = mine
			r.do(scsi.TestUnitReady(), nil, 0)
			status, moved := r.status4(1)
			assert.EqualValues(t, statusFailed, status, name)
			assert.EqualValues(t, 128<<10, moved, name)
		}
	})
}

// PREEMPT AND ABORT ends the copies of whom it preempts.
func TestPreemptEndsCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPRRig(t, scsi.LUConfig{})
		require.NoError(t, r.lu.Limiter().Set(0, 64<<10))
		r.register()
		r.nexus = r.a
		r.background(1, 1024).good(t)
		r.out(r.b, scsi.SAPreempt, 1, keyB, keyA).good(t)
		r.told(r.a)
		status, _ := r.status4(1)
		assert.EqualValues(t, statusBackground, status, "PREEMPT alone leaves it")
		r.out(r.a, scsi.SARegister, 0, 0, keyA).good(t)
		r.out(r.b, scsi.SAPreemptAndAbort, 1, keyB, keyA).good(t)
		r.told(r.a)
		status, _ = r.status4(1)
		assert.EqualValues(t, statusTerminated, status)
	})
}

// A copy whose piece under way stalls in the store keeps neither the removal of its logical unit nor other nexuses waiting, and Close waits for it
// though its nexus has gone.
func TestStalledCopyHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := holding(t)
		r := newRig(t, h, scsi.LUConfig{})
		r.background(1, 512).good(t)
		<-h.entered
		l, err := r.dev.Remove(0)
		require.NoError(t, err)
		r.newNexus("b")
		done := make(chan struct{})
		go func() {
			l.Close()
			close(done)
		}()
		synctest.Wait()
		select {
		case <-done:
			assert.Fail(t, "closed while a piece is in the store")
		default:
		}
		h.release <- nil
		<-done
	})
}

// What a reset does to everybody does not wait for the piece under way.
func TestResetTellsBeforeItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := holding(t)
		r := newRig(t, h, scsi.LUConfig{})
		r.background(1, 512).good(t)
		<-h.entered
		done := make(chan struct{})
		go func() {
			r.lu.Reset(nil)
			close(done)
		}()
		synctest.Wait()
		r.do(scsi.TestUnitReady(), nil, 0).fails(t, scsi.KeyUnitAttention, scsi.CodeBusDeviceReset)
		r.results(scsi.SACopyStatusLID4, 1).pointsTo(t, 2, "it is forgotten")
		h.release <- nil
		<-done
	})
}

// aborting is a wire whose command is aborted while its parameter list is fetched.
type aborting struct {
	*wire
	abort context.CancelFunc
}

func (a *aborting) Out(off int64, n int) (scsi.Buffer, error) {
	a.abort()
	return a.wire.Out(off, n)
}

// A command that was aborted before its copy began leaves none behind.
func TestAbortedCommandBeginsNoCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := holding(t)
		r := newRig(t, h, scsi.LUConfig{})
		list := copyList4(1, nil, [][]byte{segment(0xffff, 0xffff, 512, 0, 1024)})
		list[15] = 0x01
		c := copyCDB(scsi.SAExtendedCopyLID4, len(list))
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		res := r.dev.Execute(ctx, r.nexus, 0, c[:], &aborting{&wire{out: list, chunk: 4096}, cancel})
		require.ErrorIs(t, res.Err, context.Canceled)
		synctest.Wait()
		select {
		case <-h.entered:
			assert.Fail(t, "it copies")
		default:
		}
	})
}

// PREEMPT AND ABORT is answered once nothing of whom it preempts can reach the logical unit any more, copies that another one manages included.
func TestPreemptEndsCopiesOfOthers(t *testing.T) {
	for name, usage := range map[string]byte{"named": 0, "without an identifier": 0x18} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := holding(t)
				r := newRig(t, h, scsi.LUConfig{})
				a, b := r.newNexus(portName("a")), r.newNexus(portName("b"))
				r.nexus = a
				second := r.withSecond(memory(t, 1<<20), scsi.LUConfig{})
				p := &prRig{r, a, b, nil}
				for range 3 { // unit attentions
					ready := scsi.TestUnitReady()
					r.as(a, ready[:], nil, 0)
					r.as(b, ready[:], nil, 0)
				}
				p.register()
				p.out(a, scsi.SAReserve, scsi.ExclusiveAccessRegistrantsOnly, keyA, 0).good(t)
				id := uint32(1)
				if usage != 0 {
					id = 0
				}
				list := copyList4(id, [][]byte{cscd(second), cscd(r.lu)}, [][]byte{segment(0, 1, 512, 0, 0)})
				list[1] |= usage
				c := copyCDB(scsi.SAExtendedCopyLID4, len(list))
				copied := make(chan scsi.Result, 1)
				go func() {
					for {
						res := r.dev.Execute(context.Background(), a, 1<<48, c[:], &wire{out: list, chunk: 4096})
						if s, ok := scsi.ParseSense(res.Sense()); ok && s.Key == scsi.KeyUnitAttention {
							continue
						}
						copied <- res
						return
					}
				}()
				<-h.entered
				done := make(chan answer, 1)
				go func() { done <- p.out(b, scsi.SAPreemptAndAbort, scsi.ExclusiveAccessRegistrantsOnly, keyB, keyA) }()
				synctest.Wait()
				require.Empty(t, done, "answered while a piece is on its way")
				h.release <- nil
				(<-done).good(t)
				res := <-copied
				s, ok := scsi.ParseSense(res.Sense())
				require.True(t, ok)
				assert.Equal(t, scsi.Sense{Key: scsi.KeyCopyAborted, Info: 256, InfoValid: true}, s)
			})
		})
	}
}
