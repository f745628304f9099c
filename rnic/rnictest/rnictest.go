// Package rnictest is the conformance suite of rnic: what a consumer may rely on, tested on any
// provider. A provider's tests call Run with the device or devices to test:
//
//	func TestConformance(t *testing.T) {
//		rnictest.Run(t, func(t *testing.T) rnictest.Provider {
//			dev := newDevice(t)
//			return rnictest.Provider{Client: dev, Server: dev, Addr: "127.0.0.1:0"}
//		})
//	}
//
// A test of an operation that a device does not claim (rnic.Capability) asserts that the operation
// fails with an *rnic.UnsupportedError and does nothing; every other test runs as it is.
//
//	       Client device                                    Server device
//	+-------------------------+                       +-------------------------+
//	| end: PD, CQ, MR, QP     |  Dial, Connect   -->  | end: PD, CQ, MR, QP     |
//	| polls and counts        |  <--  Accept          | polls and counts        |
//	+-------------------------+                       +-------------------------+
//
// Each test builds such a pair, works through it, and the pair's cleanup checks that every work
// request completed exactly once.
package rnictest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/rnic"
)

// Provider is what the suite tests.
type Provider struct {
	// Client dials and Server listens. They may be the same device.
	Client, Server rnic.Device
	// Addr is an address that Server can listen on; port 0 picks a free port. An empty Addr
	// means "127.0.0.1:0".
	Addr string
	// Options, if not nil, are used by both ends wherever a test does not set its own.
	Options *rnic.LinkOptions
	// SilentTerminate says that the devices do not tell their consumers of Terminate Messages: an end for cause
	// may look like an orderly one, and refused work like flushed work.
	SilentTerminate bool
	// Deviations names tests, "Memory/RemoteRights/read/without" say, that the devices are known not to pass, with
	// the reason: they are skipped and say why.
	Deviations map[string]string
}

// wantFailed asserts that a connection ended for cause.
func wantFailed(t *testing.T, p Provider, e *end) {
	t.Helper()
	if ev := e.last(); !p.SilentTerminate {
		require.Equal(t, rnic.Failed, ev.Kind)
		require.Error(t, ev.Err)
	}
}

// wantStatus asserts how a work request failed.
func wantStatus(t *testing.T, p Provider, want rnic.Status, c rnic.Completion) {
	t.Helper()
	if p.SilentTerminate && (c.Status == rnic.StatusFlushed || c.Status == rnic.StatusConnectionLost) {
		return
	}
	require.Equal(t, want, c.Status)
}

// deviation skips a test, or a part of one, that is known to fail.
func deviation(t *testing.T, p Provider) {
	t.Helper()
	for name, why := range p.Deviations {
		if strings.HasSuffix(t.Name(), "/"+name) {
			t.Skip("known deviation: " + why)
		}
	}
}

// suite lists the tests in the order in which a newcomer would ask the questions.
var suite = []struct {
	name string
	run  func(*testing.T, Provider)
}{
	{"Attributes", testAttributes},
	{"Unclaimed", testUnclaimed},

	{"Memory/Register", testRegister},
	{"Memory/AllocIsAlignedAndZeroed", testAlloc},
	{"Memory/LocalBounds", testLocalBounds},
	{"Memory/LocalRights", testLocalRights},
	{"Memory/OtherDomain", testOtherDomain},
	{"Memory/DomainInUse", testDomainInUse},
	{"Memory/DeregisterInUse", testDeregisterInUse},
	{"Memory/DeregisterUnderWrites", testDeregisterUnderWrites},
	{"Memory/RemoteRights", testRemoteRights},
	{"Memory/RemoteBounds", testRemoteBounds},

	{"Window/Bind", testWindowBind},
	{"Window/Bytes", testWindowBytes},
	{"Window/Invalidate", testWindowInvalidate},
	{"Window/RemoteInvalidate", testRemoteInvalidate},
	{"Window/LocalInvalidate", testLocalInvalidate},
	{"Window/ZeroBased", testZeroBased},
	{"Window/ReadSink", testWindowSink},

	{"Send/GatherScatter", testGatherScatter},
	{"Send/Sizes", testSendSizes},
	{"Send/Inline", testInline},
	{"Send/Solicited", testSolicited},
	{"Send/Immediate", testImmediate},
	{"Send/TooLong", testTooLong},
	{"Send/NoReceive", testNoReceive},
	{"Write/GatherSizes", testWriteSizes},
	{"Write/BeforeSend", testWriteBeforeSend},
	{"Read/Sizes", testReadSizes},
	{"Read/SGELimits", testSGELimits},
	{"Read/DeepQueueORD1", testReadsORD1},
	{"Read/IRD", testReadsIRD},
	{"Read/ORD0", testReadsORD0},
	{"Read/Fence", testFence},
	{"Read/InvalidateSink", testInvalidateSink},
	{"Atomic/FetchAdd", testFetchAdd},
	{"Atomic/CmpSwap", testCmpSwap},
	{"Atomic/Concurrent", testAtomicConcurrent},
	{"Atomic/Misaligned", testAtomicMisaligned},

	{"Queue/OrderAndSignaling", testOrder},
	{"Queue/SendFull", testSendFull},
	{"Queue/RecvFull", testRecvFull},
	{"Queue/ChainIsAtomic", testChainAtomic},
	{"Queue/Malformed", testMalformed},
	{"Queue/PollAndWait", testPollWait},
	{"Queue/Handler", testHandler},
	{"Queue/HandlerNotUnderPost", testHandlerNotUnderPost},
	{"Queue/CQOverrun", testOverrun},
	{"Queue/CQInUse", testCQInUse},
	{"Queue/SRQ", testSRQ},
	{"Queue/SRQLimit", testSRQLimit},

	{"Connect/PrivateData", testPrivateData},
	{"Connect/Reject", testReject},
	{"Connect/IRDAndORD", testDepths},
	{"Connect/Timeout", testConnectTimeout},
	{"Connect/Refused", testConnectRefused},
	{"Connect/States", testConnectStates},
	{"Connect/PassiveWaits", testPassiveWaits},
	{"Connect/ListenerClose", testListenerClose},
	{"Connect/Many", testManyConnections},

	{"End/Disconnect", testDisconnect},
	{"End/CloseFlushes", testCloseFlushes},
	{"End/PeerDeath", testPeerDeath},
	{"End/PostAfter", testPostAfter},
	{"End/DeviceClose", testDeviceClose},

	{"Load/BothWays", testBothWays},
	{"Load/Stats", testStats},
}

// Run runs the suite. provider is called once per test.
func Run(t *testing.T, provider func(t *testing.T) Provider) {
	for _, c := range suite {
		t.Run(c.name, func(t *testing.T) {
			p := provider(t)
			if p.Addr == "" {
				p.Addr = "127.0.0.1:0"
			}
			deviation(t, p)
			c.run(t, p)
		})
	}
}

// need skips a test of a capability that one of the devices does not claim.
func need(t *testing.T, p Provider, want rnic.Capability) {
	t.Helper()
	if !p.Client.Attributes().Caps.Has(want) || !p.Server.Attributes().Caps.Has(want) {
		t.Skip("the device does not claim it; Unclaimed tests its refusal")
	}
}

// needSilence skips a test that needs a passive side that may not send yet.
func needSilence(t *testing.T, p Provider) {
	t.Helper()
	if p.Options != nil && p.Options.PeerToPeer == rnic.On {
		t.Skip("a peer-to-peer connection opens both directions by itself")
	}
}
