package scsi_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
)

const (
	keyA = 0x000000000000aaaa
	keyB = 0xbbbbbbbbbbbbbbbb
	keyC = 0x00000000cccccccc
)

func portName(name string) string { return "iqn.2026-11.com.example:" + name + ",i,0x00023d000001" }

// prRig has three nexuses: a and b are to be registered, c not.
type prRig struct {
	*rig
	a, b, c *scsi.Nexus
}

func newPRRig(t *testing.T, cfg scsi.LUConfig) *prRig {
	r := memoryRig(t, 1<<20, cfg)
	return &prRig{r, r.newNexus(portName("a")), r.newNexus(portName("b")), r.newNexus(portName("c"))}
}

// out runs PERSISTENT RESERVE OUT.
func (r *prRig) out(n *scsi.Nexus, action byte, kind scsi.ReservationType, key, sark uint64, flags ...byte) answer {
	r.t.Helper()
	f := byte(0)
	for _, v := range flags {
		f |= v
	}
	list := scsi.AppendReserve(nil, key, sark, f)
	cdb := scsi.PersistentReserveOut(action, kind, uint32(len(list)))
	return r.as(n, cdb[:], list, 0)
}

func (r *prRig) in(n *scsi.Nexus, action byte) scsi.ReservationData {
	r.t.Helper()
	cdb := scsi.PersistentReserveIn(action, 4096)
	a := r.as(n, cdb[:], nil, 4096)
	a.good(r.t)
	d, err := scsi.ParseReservation(action, a.in)
	require.NoError(r.t, err)
	return d
}

// register registers a and b.
func (r *prRig) register() {
	r.t.Helper()
	r.out(r.a, scsi.SARegister, 0, 0, keyA).good(r.t)
	r.out(r.b, scsi.SARegister, 0, 0, keyB).good(r.t)
}

// told takes the unit attention that waits for a nexus, CodeNone if there is none.
func (r *prRig) told(n *scsi.Nexus) scsi.Code {
	r.t.Helper()
	cdb := scsi.RequestSense(18)
	a := r.as(n, cdb[:], nil, 18)
	a.good(r.t)
	s, _ := scsi.ParseSense(a.in)
	return s.Code
}

func (r *prRig) conflict(a answer, what ...any) {
	r.t.Helper()
	require.Equal(r.t, scsi.StatusReservationConflict, a.Status, what...)
}

var allTypes = []scsi.ReservationType{
	scsi.WriteExclusive, scsi.ExclusiveAccess, scsi.WriteExclusiveRegistrantsOnly,
	scsi.ExclusiveAccessRegistrantsOnly, scsi.WriteExclusiveAllRegistrants, scsi.ExclusiveAccessAllRegistrants,
}

// TestReservationConflicts: SPC-4, table 65, and SBC-3, table 13. Columns: a registered nexus that is not the holder under WE, EA,
// and the four RO and AR types, then one that is not registered under the same six. A is allowed, C a conflict.
func TestReservationConflicts(t *testing.T) {
	const (
		all     = "AAAAAA AAAAAA"
		readers = "ACAAAA ACACAC"
		writers = "CCAAAA CCCCCC"
	)
	block := make([]byte, 512)
	for _, c := range []struct {
		name string
		cdb  scsi.CDB
		out  []byte
		want string
	}{
		{"TEST UNIT READY", scsi.TestUnitReady(), nil, all},
		{"INQUIRY", scsi.Inquiry(96), nil, all},
		{"REQUEST SENSE", scsi.RequestSense(18), nil, all},
		{"REPORT LUNS", scsi.ReportLUNs(64), nil, all},
		{"READ CAPACITY(10)", scsi.ReadCapacity10(), nil, all},
		{"READ CAPACITY(16)", scsi.ReadCapacity16(), nil, all},
		{"PERSISTENT RESERVE IN", scsi.PersistentReserveIn(scsi.PRReadKeys, 64), nil, all},
		{"START STOP UNIT, START", scsi.StartStop(true), nil, all},
		{"START STOP UNIT, stop", scsi.StartStop(false), nil, writers},
		{"MODE SENSE(6)", scsi.ModeSense6(0x3f, 255), nil, readers},
		{"MODE SENSE(10)", scsi.ModeSense10(0x3f, 255), nil, readers},
		{"READ(10)", scsi.Read(0, 1, 0), nil, readers},
		{"READ(16)", scsi.Read16(0, 1, 0), nil, readers},
		{"VERIFY(10)", scsi.Verify(0, 1, scsi.VerifyMedium), nil, readers},
		{"GET LBA STATUS", scsi.GetLBAStatus(0, 24), nil, readers},
		{"REPORT SUPPORTED OPERATION CODES", scsi.ReportSupportedOpcodes(64), nil, readers},
		{"MODE SELECT(6)", scsi.ModeSelect6(0), nil, writers},
		{"WRITE(10)", scsi.Write(0, 1, 0), block, writers},
		{"WRITE(16)", scsi.Write16(0, 1, 0), block, writers},
		{"WRITE SAME(16)", scsi.WriteSame(0, 1, false), block, writers},
		{"COMPARE AND WRITE", scsi.CompareAndWrite(0, 0, 0), nil, writers},
		{"SYNCHRONIZE CACHE(10)", scsi.SynchronizeCache(0, 0), nil, writers},
		{"UNMAP", scsi.Unmap(0), scsi.AppendUnmap(nil, nil), writers},
		{"unknown operation", scsi.CDB{0xc1}, nil, writers},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			for i, who := range []string{"registered", "not registered"} {
				if i > 0 {
					got += " "
				}
				for _, kind := range allTypes {
					r := newPRRig(t, scsi.LUConfig{})
					r.register()
					r.out(r.a, scsi.SAReserve, kind, keyA, 0).good(t)
					n := r.b
					if who == "not registered" {
						n = r.c
					}
					if r.as(n, c.cdb[:], c.out, 4096).Status == scsi.StatusReservationConflict {
						got += "C"
					} else {
						got += "A"
					}
					require.NotEqual(t, scsi.StatusReservationConflict, r.as(r.a, c.cdb[:], c.out, 4096).Status, "the holder, %v", kind)
				}
			}
			require.Equal(t, c.want, got)
		})
	}
}

// TestReserveOutConflicts: SPC-4, table 66. Who may ask for what while another nexus holds a reservation.
func TestReserveOutConflicts(t *testing.T) {
	for _, c := range []struct {
		action                    byte
		registered, notRegistered bool // allowed
	}{
		{scsi.SARegister, true, true},
		{scsi.SARegisterAndIgnore, true, true},
		{scsi.SAReserve, false, false},
		{scsi.SARelease, true, false},
		{scsi.SAClear, true, false},
		{scsi.SAPreempt, true, false},
		{scsi.SAPreemptAndAbort, true, false},
	} {
		for _, kind := range allTypes[:4] {
			r := newPRRig(t, scsi.LUConfig{})
			r.register()
			r.out(r.a, scsi.SAReserve, kind, keyA, 0).good(t)
			a := r.out(r.b, c.action, kind, keyB, keyA)
			require.Equal(t, c.registered, a.Status == scsi.StatusGood, "action %d, %v, registered", c.action, kind)

			r = newPRRig(t, scsi.LUConfig{})
			r.register()
			r.out(r.a, scsi.SAReserve, kind, keyA, 0).good(t)
			a = r.out(r.c, c.action, kind, 0, keyA)
			require.Equal(t, c.notRegistered, a.Status == scsi.StatusGood, "action %d, %v, not registered", c.action, kind)
		}
	}
}

func TestRegister(t *testing.T) { // SPC-4, section 5.12.7
	r := newPRRig(t, scsi.LUConfig{})
	r.conflict(r.out(r.a, scsi.SARegister, 0, 1, keyA), "a key although not registered")
	r.out(r.a, scsi.SARegister, 0, 0, 0).good(t)
	require.Zero(t, r.in(r.a, scsi.PRReadKeys).Generation, "nothing was registered")
	r.out(r.a, scsi.SARegister, 0, 0, keyA).good(t)
	require.Equal(t, scsi.ReservationData{Generation: 1, Keys: []uint64{keyA}}, r.in(r.c, scsi.PRReadKeys))
	r.conflict(r.out(r.a, scsi.SARegister, 0, 0, keyB), "registered, without its key")
	r.out(r.a, scsi.SARegister, 0, keyA, keyB).good(t)
	require.Equal(t, []uint64{keyB}, r.in(r.c, scsi.PRReadKeys).Keys, "its key is another now")
	r.out(r.a, scsi.SARegisterAndIgnore, 0, 12345, keyC).good(t)
	require.Equal(t, []uint64{keyC}, r.in(r.c, scsi.PRReadKeys).Keys)
	r.out(r.a, scsi.SARegister, 0, keyC, 0).good(t)
	require.Equal(t, scsi.ReservationData{Generation: 4}, r.in(r.c, scsi.PRReadKeys))
	r.out(r.a, scsi.SARegisterAndIgnore, 0, 0, 0).good(t)
	require.EqualValues(t, 4, r.in(r.c, scsi.PRReadKeys).Generation)
}

// TestRegistrationOutlivesSession: what comes back with the same name and ISID is registered still.
func TestRegistrationOutlivesSession(t *testing.T) {
	r := newPRRig(t, scsi.LUConfig{})
	r.register()
	r.out(r.a, scsi.SAReserve, scsi.ExclusiveAccess, keyA, 0).good(t)
	r.a.Close()
	read := scsi.Read(0, 1, 0)
	r.conflict(r.as(r.b, read[:], nil, 512))
	again := r.newNexus(portName("a"))
	r.as(again, read[:], nil, 512).good(t)
	r.lu.Reset(again) // SPC-4, section 5.12.1: a reset leaves persistent reservations alone
	require.Equal(t, scsi.CodeBusDeviceReset, r.told(r.b))
	r.conflict(r.as(r.b, read[:], nil, 512))
}

func TestReserveAndRelease(t *testing.T) { // SPC-4, sections 5.12.9 and 5.12.11.2
	for _, kind := range allTypes {
		r := newPRRig(t, scsi.LUConfig{})
		r.conflict(r.out(r.a, scsi.SAReserve, kind, 0, 0), "not registered")
		r.register()
		r.conflict(r.out(r.a, scsi.SAReserve, kind, keyB, 0), "another's key")
		r.out(r.a, scsi.SAReserve, kind, keyA, 0).good(t)
		r.out(r.a, scsi.SAReserve, kind, keyA, 0).good(t, "again")
		other := scsi.WriteExclusive
		if kind == other {
			other = scsi.ExclusiveAccess
		}
		r.conflict(r.out(r.a, scsi.SAReserve, other, keyA, 0), "another type")
		d := r.in(r.c, scsi.PRReadReservation)
		want := []uint64{keyA}
		if kind >= scsi.WriteExclusiveAllRegistrants {
			want = []uint64{0}
			r.out(r.b, scsi.SAReserve, kind, keyB, 0).good(t, "every registrant is a holder")
		} else {
			r.out(r.b, scsi.SARelease, kind, keyB, 0).good(t, "not the holder: no effect")
		}
		require.Equal(t, want, d.Keys)
		require.Equal(t, kind, d.Type)
		r.out(r.a, scsi.SARelease, other, keyA, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidRelease)
		r.conflict(r.out(r.c, scsi.SARelease, kind, 0, 0), "not registered")
		r.out(r.a, scsi.SARelease, kind, keyA, 0).good(t)
		wantCode := scsi.CodeNone
		if kind >= scsi.WriteExclusiveRegistrantsOnly {
			wantCode = scsi.CodeReservationsReleased
		}
		require.Equal(t, wantCode, r.told(r.b), kind)
		require.Equal(t, scsi.CodeNone, r.told(r.a))
		require.Equal(t, scsi.CodeNone, r.told(r.c))
		require.Zero(t, r.in(r.c, scsi.PRReadReservation).Type)
		require.EqualValues(t, 2, r.in(r.c, scsi.PRReadReservation).Generation, "reserving does not count")
	}
}

func TestUnregisterHolder(t *testing.T) { // SPC-4, section 5.12.11.2.3
	for _, kind := range allTypes {
		r := newPRRig(t, scsi.LUConfig{})
		r.register()
		r.out(r.a, scsi.SAReserve, kind, keyA, 0).good(t)
		r.out(r.a, scsi.SARegister, 0, keyA, 0).good(t)
		left, told := scsi.ReservationType(0), scsi.CodeNone
		switch {
		case kind >= scsi.WriteExclusiveAllRegistrants:
			left = kind
		case kind >= scsi.WriteExclusiveRegistrantsOnly:
			told = scsi.CodeReservationsReleased
		}
		require.Equal(t, left, r.in(r.c, scsi.PRReadReservation).Type, kind)
		require.Equal(t, told, r.told(r.b), kind)
		r.out(r.b, scsi.SARegister, 0, keyB, 0).good(t)
		require.Zero(t, r.in(r.c, scsi.PRReadReservation).Type, "nobody is left")
	}
}

func TestClear(t *testing.T) { // SPC-4, section 5.12.11.2.7
	r := newPRRig(t, scsi.LUConfig{})
	r.register()
	r.out(r.a, scsi.SAReserve, scsi.ExclusiveAccess, keyA, 0).good(t)
	r.conflict(r.out(r.c, scsi.SAClear, 0, 0, 0))
	r.out(r.b, scsi.SAClear, 0, keyB, 0).good(t)
	require.Equal(t, scsi.CodeReservationsPreempted, r.told(r.a))
	require.Equal(t, scsi.CodeNone, r.told(r.b))
	require.Equal(t, scsi.ReservationData{Generation: 3}, r.in(r.c, scsi.PRReadKeys))
}

func TestPreempt(t *testing.T) { // SPC-4, section 5.12.11.2.4 and .6
	for _, kind := range allTypes {
		r := newPRRig(t, scsi.LUConfig{})
		r.register()
		r.out(r.c, scsi.SARegister, 0, 0, keyC).good(t)
		r.conflict(r.out(r.b, scsi.SAPreempt, kind, keyB, 0x1234), "nobody's key")
		r.out(r.b, scsi.SAPreempt, kind, keyB, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInParameters)
		r.out(r.a, scsi.SAReserve, kind, keyA, 0).good(t)
		sark := uint64(keyA)
		gone := []*scsi.Nexus{r.a}
		left := []uint64{keyB, keyC}
		if kind >= scsi.WriteExclusiveAllRegistrants { // only 0 takes such a reservation over
			sark = 0
			gone, left = append(gone, r.c), []uint64{keyB}
		}
		next := scsi.WriteExclusive
		if kind == next {
			next = scsi.ExclusiveAccess
		}
		r.out(r.b, scsi.SAPreempt, next, keyB, sark).good(t, kind)
		d := r.in(r.b, scsi.PRReadFullStatus)
		require.Equal(t, left, d.Keys, kind)
		require.Equal(t, next, d.Type)
		for _, reg := range d.Registrations {
			require.Equal(t, reg.Key == keyB, reg.Holder)
		}
		for _, n := range gone {
			require.Equal(t, scsi.CodeRegistrationsPreempted, r.told(n), kind)
		}
		if len(left) == 2 {
			require.Equal(t, scsi.CodeReservationsReleased, r.told(r.c), "the type is another")
		}
		require.Equal(t, scsi.CodeNone, r.told(r.b))
	}
}

// TestPreemptRegistrations: the key of one who does not hold the reservation.
func TestPreemptRegistrations(t *testing.T) { // SPC-4, section 5.12.11.2.5
	r := newPRRig(t, scsi.LUConfig{})
	r.register()
	r.out(r.c, scsi.SARegister, 0, 0, keyB).good(t, "the same key as b")
	r.out(r.a, scsi.SAReserve, scsi.WriteExclusive, keyA, 0).good(t)
	r.out(r.a, scsi.SAPreempt, scsi.ExclusiveAccess, keyA, keyB).good(t)
	d := r.in(r.a, scsi.PRReadReservation)
	require.Equal(t, scsi.WriteExclusive, d.Type, "the type in the CDB says nothing here")
	require.Equal(t, []uint64{keyA}, r.in(r.a, scsi.PRReadKeys).Keys)
	for _, n := range []*scsi.Nexus{r.b, r.c} {
		require.Equal(t, scsi.CodeRegistrationsPreempted, r.told(n))
	}
	r.out(r.a, scsi.SAPreempt, scsi.ExclusiveAccess, keyA, keyA).good(t, "a holder changes the type of its own")
	require.Equal(t, scsi.ExclusiveAccess, r.in(r.a, scsi.PRReadReservation).Type)
}

// aborter notes what PREEMPT AND ABORT asks for.
type aborter struct {
	of []string
}

func (a *aborter) AbortNexuses(_ *scsi.LU, of []*scsi.Nexus, x scsi.Transfer) {
	for _, n := range of {
		a.of = append(a.of, n.Initiator())
	}
	if x == nil {
		a.of = append(a.of, "no command")
	}
}

func TestPreemptAndAbortAbortsTasks(t *testing.T) {
	r := newPRRig(t, scsi.LUConfig{})
	var a aborter
	r.dev.SetTaskAborter(&a)
	r.register()
	r.out(r.a, scsi.SAReserve, scsi.WriteExclusive, keyA, 0).good(t)
	r.out(r.b, scsi.SAPreempt, scsi.WriteExclusive, keyB, keyA).good(t)
	require.Empty(t, a.of, "PREEMPT aborts nothing")
	r.told(r.a)
	r.out(r.a, scsi.SARegister, 0, 0, keyA).good(t)
	r.out(r.b, scsi.SAPreemptAndAbort, scsi.WriteExclusive, keyB, keyA).good(t)
	require.Equal(t, []string{portName("a")}, a.of)
}

func TestSpecIPT(t *testing.T) { // SPC-4, section 5.12.7
	r := newPRRig(t, scsi.LUConfig{})
	send := func(n *scsi.Nexus, action byte, key, sark uint64, list []byte) answer {
		cdb := scsi.PersistentReserveOut(action, 0, uint32(len(list)))
		return r.as(n, cdb[:], list, 0)
	}
	list := scsi.AppendReserve(nil, 0, keyA, scsi.SpecIPT, portName("b"), portName("absent"))
	send(r.a, scsi.SARegisterAndIgnore, 0, keyA, list).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInParameters)
	send(r.a, scsi.SARegister, 0, keyA, list).good(t)
	d := r.in(r.c, scsi.PRReadFullStatus)
	require.EqualValues(t, 1, d.Generation)
	require.Equal(t, []scsi.Registration{
		{Initiator: portName("a"), Port: 1, Key: keyA},
		{Initiator: portName("b"), Port: 1, Key: keyA},
		{Initiator: portName("absent"), Port: 1, Key: keyA},
	}, d.Registrations)
	send(r.c, scsi.SARegister, 0, keyC, scsi.AppendReserve(nil, 0, keyC, scsi.SpecIPT, portName("new"), portName("b"))).
		fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInParameters, "b is registered")
	require.Len(t, r.in(r.c, scsi.PRReadKeys).Keys, 3, "none was registered")
	// The name of an initiator without an ISID is every port of it that is logged in.
	name, _, _ := strings.Cut(portName("d"), ",")
	r.newNexus(portName("d"))
	r.newNexus(name + ",i,0x000000000002")
	r.newNexus(name + "2,i,0x000000000003")
	send(r.c, scsi.SARegister, 0, keyC, scsi.AppendReserve(nil, 0, keyC, scsi.SpecIPT, name)).good(t)
	require.Len(t, r.in(r.c, scsi.PRReadKeys).Keys, 6)
	for name, bad := range map[string][]byte{
		"cut short":      list[:len(list)-4],
		"length too big": append(append([]byte(nil), list...), 0, 0, 0, 0),
		"no length":      list[:24],
	} {
		a := send(r.newNexus(portName(name)), scsi.SARegister, 0, keyA, bad)
		require.Equal(t, scsi.StatusCheckCondition, a.Status, name)
	}
}

func TestAllTargetPorts(t *testing.T) {
	r := newPRRig(t, scsi.LUConfig{})
	second := testPort
	second.Relative, second.Name = 2, "iqn.2026-11.com.example:disk,t,0x0002"
	require.NoError(t, r.dev.AddPort(second))
	require.ErrorIs(t, r.dev.AddPort(second), scsi.ErrPortTaken)
	for _, n := range []*scsi.Nexus{r.a, r.b, r.c} {
		require.Equal(t, scsi.CodeInquiryDataChanged, r.told(n))
	}
	other := r.dev.NewNexusOn(2, portName("a"))
	r.told(other)
	r.out(r.a, scsi.SARegister, 0, 0, keyA, scsi.AllTGPT).good(t)
	d := r.in(r.c, scsi.PRReadFullStatus)
	require.Equal(t, []scsi.Registration{{portName("a"), 1, keyA, false}, {portName("a"), 2, keyA, false}}, d.Registrations)
	r.out(r.a, scsi.SAReserve, scsi.ExclusiveAccess, keyA, 0).good(t)
	read := scsi.Read(0, 1, 0)
	r.conflict(r.as(other, read[:], nil, 512), "another path is another nexus")
	r.out(other, scsi.SARegister, 0, keyA, 0).good(t)
	require.Len(t, r.in(r.c, scsi.PRReadKeys).Keys, 1)
}

func TestRegisterAndMove(t *testing.T) { // SPC-4, section 5.12.8
	r := newPRRig(t, scsi.LUConfig{})
	move := func(n *scsi.Nexus, key, sark uint64, flags byte, port uint16, to string) answer {
		list := scsi.AppendMove(nil, key, sark, flags, port, to)
		cdb := scsi.PersistentReserveOut(scsi.SARegisterAndMove, 0, uint32(len(list)))
		return r.as(n, cdb[:], list, 0)
	}
	r.register()
	move(r.a, keyA, keyC, 0, 1, portName("c")).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInCDB, "nothing to move")
	r.out(r.a, scsi.SAReserve, scsi.WriteExclusive, keyA, 0).good(t)
	r.conflict(move(r.b, keyB, keyC, 0, 1, portName("c")), "not the holder's")
	r.conflict(move(r.c, 0, keyC, 0, 1, portName("c")), "not registered")
	move(r.a, keyA, 0, 0, 1, portName("c")).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInParameters, "no key")
	move(r.a, keyA, keyC, 0, 9, portName("c")).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInParameters, "no such port")
	move(r.a, keyA, keyC, 0, 1, portName("a")).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInParameters, "to itself")
	move(r.a, keyA, keyC, scsi.Unreg, 1, portName("c")).good(t)
	d := r.in(r.a, scsi.PRReadFullStatus)
	require.Equal(t, []scsi.Registration{{portName("b"), 1, keyB, false}, {portName("c"), 1, keyC, true}}, d.Registrations)
	require.Equal(t, scsi.WriteExclusive, d.Type)
	r.out(r.c, scsi.SARelease, scsi.WriteExclusive, keyC, 0).good(t)
	r.out(r.c, scsi.SAReserve, scsi.WriteExclusiveAllRegistrants, keyC, 0).good(t)
	r.conflict(move(r.c, keyC, keyA, 0, 1, portName("a")), "there is no single holder to move from")
}

func TestCapabilities(t *testing.T) { // SPC-4, section 6.15.4
	for _, c := range []struct {
		keep scsi.ReservationStore
		want []byte
	}{
		{nil, []byte{0, 8, 0x1c, 0xb0, 0xea, 0x01, 0, 0}},
		{new(keeper), []byte{0, 8, 0x1d, 0xb0, 0xea, 0x01, 0, 0}},
	} {
		r := newPRRig(t, scsi.LUConfig{Reservations: c.keep})
		cdb := scsi.PersistentReserveIn(scsi.PRReportCapabilities, 8)
		a := r.as(r.a, cdb[:], nil, 8)
		a.good(t)
		assert.Equal(t, c.want, a.in)
	}
}

// keeper is a ReservationStore in memory that can fail.
type keeper struct {
	data []byte
	err  error
}

func (k *keeper) Load() ([]byte, error) { return k.data, k.err }

func (k *keeper) Save(data []byte) error {
	if k.err == nil {
		k.data = data
	}
	return k.err
}

func TestAPTPL(t *testing.T) { // SPC-4, section 5.12.4
	for _, kind := range append(allTypes, 0) {
		k := new(keeper)
		r := newPRRig(t, scsi.LUConfig{Reservations: k})
		r.register()
		require.Empty(t, k.data, "nobody has asked for it")
		r.out(r.a, scsi.SARegister, 0, keyA, keyC, scsi.APTPL).good(t)
		if kind != 0 {
			r.out(r.a, scsi.SAReserve, kind, keyC, 0).good(t)
		}
		before := r.in(r.a, scsi.PRReadFullStatus)

		r = newPRRig(t, scsi.LUConfig{Reservations: k})
		after := r.in(r.c, scsi.PRReadFullStatus)
		require.Zero(t, after.Generation, "power on")
		before.Generation = 0
		require.Equal(t, before, after)
		require.True(t, r.lu.Reservations().Persistent)

		r.out(r.b, scsi.SARegister, 0, keyB, keyB).good(t, "the last REGISTER turns it off")
		require.Empty(t, k.data)
		require.Empty(t, newPRRig(t, scsi.LUConfig{Reservations: k}).in(r.c, scsi.PRReadKeys).Keys)
	}
}

// TestAPTPLFails: what cannot be kept does not happen.
func TestAPTPLFails(t *testing.T) {
	r := newPRRig(t, scsi.LUConfig{})
	r.out(r.a, scsi.SARegister, 0, 0, keyA, scsi.APTPL).fails(t, scsi.KeyIllegalRequest, scsi.CodeInvalidFieldInParameters, "nowhere to keep it")
	k := new(keeper)
	r = newPRRig(t, scsi.LUConfig{Reservations: k})
	r.out(r.a, scsi.SARegister, 0, 0, keyA, scsi.APTPL).good(t)
	saved := string(k.data)
	k.err = errors.New("disk full")
	r.out(r.a, scsi.SAReserve, scsi.ExclusiveAccess, keyA, 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeInsufficientRegistration)
	r.out(r.b, scsi.SARegister, 0, 0, keyB).fails(t, scsi.KeyIllegalRequest, scsi.CodeInsufficientRegistration)
	require.Equal(t, scsi.ReservationData{Generation: 1, Keys: []uint64{keyA}}, r.in(r.a, scsi.PRReadKeys))
	require.Equal(t, saved, string(k.data))
}

// TestAPTPLUnreadable: a logical unit does not start without the reservations that it had.
func TestAPTPLUnreadable(t *testing.T) {
	for _, data := range []string{
		"{", `{"version":2}`, `{"version":1}`, `{"version":1,"registrations":[{"initiator":"a","key":"0"}]}`,
		`{"version":1,"registrations":[{"initiator":"a","key":"1"},{"initiator":"a","key":"2"}]}`,
		`{"version":1,"registrations":[{"initiator":"a","key":"1"}],"type":2}`,
		`{"version":1,"registrations":[{"initiator":"a","key":"1"}],"type":1}`,
		`{"version":1,"registrations":[{"initiator":"a","key":"1"}],"type":1,"holder":1}`,
	} {
		_, err := scsi.NewLU(memory(t, 1<<20), scsi.LUConfig{Reservations: &keeper{data: []byte(data)}})
		require.ErrorContains(t, err, "persistent reservations", data)
	}
	_, err := scsi.NewLU(memory(t, 1<<20), scsi.LUConfig{Reservations: &keeper{err: errors.New("broken")}})
	require.ErrorContains(t, err, "broken")
}

// TestAPTPLFile: through a file, as a daemon keeps it.
func TestAPTPLFile(t *testing.T) {
	f := store.StateFile(t.TempDir() + "/disk.img.pr")
	r := newPRRig(t, scsi.LUConfig{Reservations: f})
	r.out(r.a, scsi.SARegister, 0, 0, keyA, scsi.APTPL).good(t)
	r.out(r.a, scsi.SAReserve, scsi.ExclusiveAccess, keyA, 0).good(t)
	r = newPRRig(t, scsi.LUConfig{Reservations: f})
	read := scsi.Read(0, 1, 0)
	r.conflict(r.as(r.b, read[:], nil, 512))
	r.as(r.a, read[:], nil, 512).good(t)
}

// TestLegacyAndPersistent: RESERVE and persistent reservations keep each other out (SPC-2, section 5.5.1; SPC-4, section 5.12.3).
func TestLegacyAndPersistent(t *testing.T) {
	for _, ten := range []bool{false, true} {
		reserve, release := scsi.Reserve6(), scsi.Release6()
		if ten {
			reserve, release = scsi.CDB{scsi.OpReserve10}, scsi.CDB{scsi.OpRelease10}
		}
		r := newPRRig(t, scsi.LUConfig{})
		r.as(r.a, reserve[:], nil, 0).good(t)
		r.conflict(r.as(r.b, reserve[:], nil, 0))
		keys := scsi.PersistentReserveIn(scsi.PRReadKeys, 64)
		r.conflict(r.as(r.b, keys[:], nil, 64))
		r.conflict(r.as(r.a, keys[:], nil, 64), "the holder, too")
		r.conflict(r.out(r.a, scsi.SARegister, 0, 0, keyA))
		require.Equal(t, portName("a"), r.lu.Reservations().Legacy)
		r.as(r.b, release[:], nil, 0).good(t, "no effect")
		r.conflict(r.as(r.b, reserve[:], nil, 0))
		r.as(r.a, release[:], nil, 0).good(t)
		r.register()
		r.conflict(r.as(r.c, reserve[:], nil, 0))
		r.conflict(r.as(r.c, release[:], nil, 0))
		r.as(r.a, reserve[:], nil, 0).good(t)
		r.as(r.a, release[:], nil, 0).good(t)
		require.Empty(t, r.lu.Reservations().Legacy, "GOOD, and nothing was reserved")
	}
}

func TestReserveOutFields(t *testing.T) {
	r := newPRRig(t, scsi.LUConfig{})
	r.register()
	list := scsi.AppendReserve(nil, keyA, 0, 0)
	for _, kind := range []scsi.ReservationType{0, 2, 4, 9, 0x11} { // types that are none, and another scope
		cdb := scsi.PersistentReserveOut(scsi.SAReserve, kind, 24)
		r.as(r.a, cdb[:], list, 0).pointsTo(t, 2)
	}
	for _, n := range []uint32{0, 23, 25, 1 << 20} {
		cdb := scsi.PersistentReserveOut(scsi.SAReserve, 1, n)
		r.as(r.a, cdb[:], make([]byte, n), 0).fails(t, scsi.KeyIllegalRequest, scsi.CodeParameterListLength, n)
	}
	cdb := scsi.PersistentReserveOut(8, 1, 24)
	r.as(r.a, cdb[:], list, 0).pointsTo(t, 1)
}

func TestRegistrationsAreBounded(t *testing.T) {
	r := newPRRig(t, scsi.LUConfig{})
	for i := range 5 {
		var names []string
		for j := range 250 {
			names = append(names, portName(fmt.Sprintf("x%d-%d", i, j)))
		}
		list := scsi.AppendReserve(nil, 0, keyA, scsi.SpecIPT, names...)
		cdb := scsi.PersistentReserveOut(scsi.SARegister, 0, uint32(len(list)))
		a := r.as(r.newNexus(portName(fmt.Sprint("n", i))), cdb[:], list, 0)
		if i < 4 {
			a.good(t, i)
		} else {
			a.fails(t, scsi.KeyIllegalRequest, scsi.CodeInsufficientRegistration)
		}
	}
	require.Len(t, r.lu.Reservations().Registrations, 1004)
}

// TestReservedCommandsAllocateNothing: what a reservation costs each command is a look at a table.
func TestReservedCommandsAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	r := newPRRig(t, scsi.LUConfig{})
	r.register()
	r.out(r.a, scsi.SAReserve, scsi.ExclusiveAccessRegistrantsOnly, keyA, 0).good(t)
	x := &stage{buf: make([]byte, 64<<10), in: 4096}
	read := scsi.Read(0, 8, 0)
	for n, want := range map[*scsi.Nexus]scsi.Status{
		r.a: scsi.StatusGood, r.b: scsi.StatusGood, r.c: scsi.StatusReservationConflict,
	} {
		assert.Zero(t, testing.AllocsPerRun(200, func() {
			if got := r.dev.Execute(t.Context(), n, 0, read[:], x).Status; got != want {
				t.Fatal(got)
			}
		}))
	}
}
