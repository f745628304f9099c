// Package datamovertest is the suite that every iscsi.Datamover passes, whatever carries its PDUs
// and data.
//
// Run takes a function that makes a connected pair and drives both ends through the life of a
// connection: login PDUs, the switch to full feature phase, control PDUs both ways, data in both
// directions, and every way in which a connection ends. The suite plays both iSCSI layers, with a
// recorder where a test looks at single upcalls and with a small scripted disk where it wants load:
//
//	   client (test)                               recorder or disk (test)
//	 SendControl  ^ ControlNotify        PutData, GetData |  ^ DataCompletionNotify
//	--------v-----|---------------------------------------v--|-----------------
//	   initiator Datamover  <--- the pair's transport --->  target Datamover
//
// What differs between transports is asked through Info, so that the suite itself names none.
// Benchmark times the same disk over a pair.
package datamovertest

import (
	"testing"

	"goiwarp/iscsi"
)

// Pair is one connection: two Datamovers that reach each other and on which Start was not called yet.
type Pair struct {
	Initiator, Target iscsi.Datamover

	// Lent counts the buffers, of either end, that Alloc has lent and nobody has released yet. It may
	// be called after the connection has ended, and is never negative. The suite checks that it comes back to 0.
	Lent func() int

	// Cut breaks the transport below both Datamovers, as a failing network does. If it is nil the suite
	// terminates the initiator abruptly instead.
	Cut func()

	// Params, if not nil, changes what the suite's login has agreed on before either end learns it.
	// p is as this end sees it.
	Params func(p *iscsi.Params, target bool)
}

// Maker makes a pair and registers what has to be undone with t.Cleanup. The share of memory that
// Alloc draws on must be at least 2 MiB at each end and should not exceed 64 MiB, since one test uses it up.
type Maker func(t testing.TB) Pair

// Window is the number of commands that the suite has in flight at most; it passes it to
// AllocateConnectionResources.
const Window = 64

// Lengths that the suite's login agrees on, in octets.
const (
	SegmentLength    = 8192   // data segments of control PDUs; over TCP those of Data-In and Data-Out too
	FirstBurstLength = 32768  // unsolicited data
	MaxBurstLength   = 131072 // one GetData
	maxAHS           = 64
)

// Run runs the whole suite, each test on a pair of its own.
func Run(t *testing.T, m Maker) {
	for _, c := range []struct {
		name string
		f    func(*testing.T, Maker)
	}{
		{"LoginInSeveralPDUs", testLogin},
		{"LoginEndedByTarget", testLoginRefused},
		{"ControlInOrderBothWays", testControl},
		{"AHSPassesUnchanged", testAHS},
		{"PDUsAreReleasedOnce", testPDURelease},

		{"DataInPieces", testDataInPieces},
		{"DataInNotify", testDataInNotify},
		{"StatusWithDataNotifiedOnce", testStatus},
		{"DataOutSeveralOutstanding", testDataOut},
		{"ImmediateAndUnsolicitedData", testUnsolicited},
		{"DataBothWaysInOneTask", testBidirectional},
		{"ZeroLengths", testZero},
		{"LargeTransfers", testLarge},
		{"MemoryOfOthers", testForeignBuffers},
		{"MemoryIsBounded", testMemory},

		{"TargetForgetsTask", testTargetDeallocates},
		{"InitiatorForgetsTask", testInitiatorDeallocates},

		{"ManyTasksAtOnce", testConcurrency},

		{"TerminateGracefulDeliversFirst", testGracefulDelivers},
		{"TerminateIdle", testTerminateIdle},
		{"TerminateUnderLoad", testTerminateLoad},
		{"TerminateFromUpcall", testTerminateUpcall},
		{"TerminateBeforeLogin", testTerminateEarly},
		{"CutInMidTransfer", testCut},
		{"MethodsAfterTheEnd", testAfterEnd},
	} {
		t.Run(c.name, func(t *testing.T) { c.f(t, m) })
	}
}
