package iscsi

import (
	"slices"
	"strconv"
	"strings"
)

// KeyType is what a key's values look like.
type KeyType uint8

// Key types.
const (
	KeyText    KeyType = iota // any text
	KeyBool                   // Yes or No
	KeyNumber                 // a number from Min to Max
	KeyList                   // names in order of preference
	KeyMarkers                // obsolete marker keys (RFC 7143, section 13.25)
)

// KeyFunc is how two sides' values of a key become one (RFC 7143, section 6.2).
type KeyFunc uint8

// Result functions.
const (
	Declare  KeyFunc = iota // no negotiation: each side tells its own
	And                     // Yes if both say Yes
	Or                      // Yes if one says Yes
	Min                     // the smaller number
	Max                     // the larger number
	FirstOf                 // the first of the proposer's list that the other side takes
	Question                // SendTargets: asked and answered with other keys
)

// KeyUse is when a key may be sent (RFC 7143, section 13: IO, LO, ALL, FFPO).
type KeyUse uint8

// When keys may be sent.
const (
	LeadingOnly     KeyUse = iota // LO: login of a session's first connection
	InitializeOnly                // IO: login of every connection
	Always                        // ALL: login, and full feature phase
	FullFeatureOnly               // FFPO
)

// Key is one row of the table of keys: RFC 7143, sections 12 and 13; RFC 7144, section 7.1; RFC 7145, section 6.
type Key struct {
	Name string
	Type KeyType
	Func KeyFunc
	Use  KeyUse
	// Session tells that the key is session-wide, otherwise it is the connection's.
	Session bool
	// Initiator and Target tell who may send it (as an offer or a declaration).
	Initiator, Target bool
	// AnyStage tells that it may be sent in the security stage as well.
	AnyStage bool
	// NotDiscovery: irrelevant in discovery sessions.
	NotDiscovery bool
	// RDMA: irrelevant unless RDMAExtensions=Yes.
	RDMA     bool
	Min, Max uint64
	// ZeroToo: 0 is allowed below Min.
	ZeroToo bool
	Default string
}

// Names of the keys that code here refers to.
const (
	KeyAuthMethod           = "AuthMethod"
	KeyHeaderDigest         = "HeaderDigest"
	KeyDataDigest           = "DataDigest"
	KeyMaxConnections       = "MaxConnections"
	KeySendTargets          = "SendTargets"
	KeyTargetName           = "TargetName"
	KeyInitiatorName        = "InitiatorName"
	KeyTargetAlias          = "TargetAlias"
	KeyInitiatorAlias       = "InitiatorAlias"
	KeyTargetAddress        = "TargetAddress"
	KeyTargetPortalGroupTag = "TargetPortalGroupTag"
	KeyInitialR2T           = "InitialR2T"
	KeyImmediateData        = "ImmediateData"
	KeyMaxRecvDataSegment   = "MaxRecvDataSegmentLength"
	KeyMaxBurstLength       = "MaxBurstLength"
	KeyFirstBurstLength     = "FirstBurstLength"
	KeyDefaultTime2Wait     = "DefaultTime2Wait"
	KeyDefaultTime2Retain   = "DefaultTime2Retain"
	KeyMaxOutstandingR2T    = "MaxOutstandingR2T"
	KeyDataPDUInOrder       = "DataPDUInOrder"
	KeyDataSequenceInOrder  = "DataSequenceInOrder"
	KeyErrorRecoveryLevel   = "ErrorRecoveryLevel"
	KeySessionType          = "SessionType"
	KeyTaskReporting        = "TaskReporting"
	KeyProtocolLevel        = "iSCSIProtocolLevel"
	KeyNodeArchitecture     = "X#NodeArchitecture"
	KeyRDMAExtensions       = "RDMAExtensions"
	KeyTargetRecvSegment    = "TargetRecvDataSegmentLength"
	KeyInitiatorRecvSegment = "InitiatorRecvDataSegmentLength"
	KeyMaxUnexpectedPDUs    = "MaxOutstandingUnexpectedPDUs"
	KeyMaxAHSLength         = "MaxAHSLength"
	KeySolicitedOnly        = "TaggedBufferForSolicitedDataOnly"
	KeyISERHello            = "iSERHelloRequired"
)

// keys is the table. Each row is followed by nothing but facts of the RFCs.
var keys = [...]Key{
	{Name: KeyAuthMethod, Type: KeyList, Func: FirstOf, Use: InitializeOnly, Initiator: true, Target: true, AnyStage: true, Default: None},

	{Name: KeyRDMAExtensions, Type: KeyBool, Func: And, Session: true, Initiator: true, Target: true, NotDiscovery: true, Default: No},
	{Name: KeyHeaderDigest, Type: KeyList, Func: FirstOf, Use: InitializeOnly, Initiator: true, Target: true, Default: None},
	{Name: KeyDataDigest, Type: KeyList, Func: FirstOf, Use: InitializeOnly, Initiator: true, Target: true, Default: None},
	{Name: KeyMaxConnections, Type: KeyNumber, Func: Min, Session: true, Initiator: true, Target: true, NotDiscovery: true, Min: 1, Max: 65535, Default: "1"},
	{Name: KeySendTargets, Func: Question, Use: FullFeatureOnly, Session: true, Initiator: true},
	{Name: KeyTargetName, Use: InitializeOnly, Session: true, Initiator: true, AnyStage: true},
	{Name: KeyInitiatorName, Use: InitializeOnly, Session: true, Initiator: true, AnyStage: true},
	{Name: KeyTargetAlias, Use: Always, Session: true, Target: true, AnyStage: true},
	{Name: KeyInitiatorAlias, Use: Always, Session: true, Initiator: true, AnyStage: true},
	{Name: KeyTargetAddress, Use: Always, Session: true, Target: true, AnyStage: true},
	{Name: KeyTargetPortalGroupTag, Type: KeyNumber, Use: InitializeOnly, Session: true, Target: true, AnyStage: true, Max: 65535},
	{Name: KeyInitialR2T, Type: KeyBool, Func: Or, Session: true, Initiator: true, Target: true, NotDiscovery: true, Default: Yes},
	{Name: KeyImmediateData, Type: KeyBool, Func: And, Session: true, Initiator: true, Target: true, NotDiscovery: true, Default: Yes},
	{Name: KeyMaxRecvDataSegment, Type: KeyNumber, Use: Always, Initiator: true, Target: true, Min: 512, Max: MaxDataSegment, Default: "8192"},
	{Name: KeyMaxBurstLength, Type: KeyNumber, Func: Min, Session: true, Initiator: true, Target: true, NotDiscovery: true, Min: 512, Max: MaxDataSegment, Default: "262144"},
	{Name: KeyFirstBurstLength, Type: KeyNumber, Func: Min, Session: true, Initiator: true, Target: true, NotDiscovery: true, Min: 512, Max: MaxDataSegment, Default: "65536"},
	{Name: KeyDefaultTime2Wait, Type: KeyNumber, Func: Max, Session: true, Initiator: true, Target: true, Max: 3600, Default: "2"},
	{Name: KeyDefaultTime2Retain, Type: KeyNumber, Func: Min, Session: true, Initiator: true, Target: true, Max: 3600, Default: "20"},
	{Name: KeyMaxOutstandingR2T, Type: KeyNumber, Func: Min, Session: true, Initiator: true, Target: true, NotDiscovery: true, Min: 1, Max: 65535, Default: "1"},
	{Name: KeyDataPDUInOrder, Type: KeyBool, Func: Or, Session: true, Initiator: true, Target: true, NotDiscovery: true, Default: Yes},
	{Name: KeyDataSequenceInOrder, Type: KeyBool, Func: Or, Session: true, Initiator: true, Target: true, NotDiscovery: true, Default: Yes},
	{Name: KeyErrorRecoveryLevel, Type: KeyNumber, Func: Min, Session: true, Initiator: true, Target: true, Max: 2, Default: "0"},
	{Name: KeySessionType, Session: true, Initiator: true, AnyStage: true, Default: "Normal"},
	{Name: KeyTaskReporting, Type: KeyList, Func: FirstOf, Session: true, Initiator: true, Target: true, NotDiscovery: true, Default: "RFC3720"},
	{Name: KeyProtocolLevel, Type: KeyNumber, Func: Min, Session: true, Initiator: true, Target: true, NotDiscovery: true, Max: 31, Default: "1"},
	{Name: KeyNodeArchitecture, Session: true, Initiator: true, Target: true, Default: None},

	{Name: KeyTargetRecvSegment, Type: KeyNumber, Func: Min, Use: InitializeOnly, Initiator: true, Target: true, RDMA: true, Min: 512, Max: MaxDataSegment, Default: "8192"},
	{Name: KeyInitiatorRecvSegment, Type: KeyNumber, Func: Min, Use: InitializeOnly, Initiator: true, Target: true, RDMA: true, Min: 512, Max: MaxDataSegment, Default: "8192"},
	{Name: KeyMaxUnexpectedPDUs, Type: KeyNumber, Session: true, Initiator: true, Target: true, RDMA: true, Min: 2, Max: 1<<32 - 1, ZeroToo: true, Default: "0"},
	{Name: KeyMaxAHSLength, Type: KeyNumber, Session: true, Initiator: true, Target: true, RDMA: true, Min: 2, Max: 1<<32 - 1, ZeroToo: true, Default: "256"},
	{Name: KeySolicitedOnly, Type: KeyBool, Session: true, Initiator: true, RDMA: true, Default: No},
	{Name: KeyISERHello, Type: KeyBool, Session: true, Initiator: true, RDMA: true, Default: No},

	{Name: "IFMarker", Type: KeyMarkers, Use: InitializeOnly, Initiator: true, Target: true, Default: No},
	{Name: "OFMarker", Type: KeyMarkers, Use: InitializeOnly, Initiator: true, Target: true, Default: No},
	{Name: "IFMarkInt", Type: KeyMarkers, Use: InitializeOnly, Initiator: true, Target: true},
	{Name: "OFMarkInt", Type: KeyMarkers, Use: InitializeOnly, Initiator: true, Target: true},
}

var keyIndex = func() map[string]int {
	m := make(map[string]int, len(keys))
	for i := range keys {
		m[keys[i].Name] = i
	}
	return m
}()

// Keys are all keys that this package knows, in the order in which it handles them.
func Keys() []Key { return slices.Clone(keys[:]) }

// LookupKey finds a key by its name; names are case-sensitive.
func LookupKey(name string) (Key, bool) {
	i, ok := keyIndex[name]
	if !ok {
		return Key{}, false
	}
	return keys[i], true
}

// Valid tells that v is a value that the key can have on the wire, as an offer, an answer or a declaration.
func (k *Key) Valid(v string) bool {
	switch k.Type {
	case KeyBool:
		return v == Yes || v == No
	case KeyNumber:
		n, err := ParseNumber(v)
		return err == nil && (n >= k.Min && n <= k.Max || n == 0 && k.ZeroToo)
	case KeyList:
		for s := range strings.SplitSeq(v, ",") {
			if s == "" {
				return false
			}
		}
	case KeyText, KeyMarkers:
	}
	return true
}

// Combine is the outcome of an offer and what the answering side would have itself: what it answers. For lists, offer is
// the proposer's and own the other side's. Both values are Valid. ok is false when lists have nothing in common.
func (k *Key) Combine(offer, own string) (result string, ok bool) {
	switch k.Func {
	case And:
		return yesNo(offer == Yes && own == Yes), true
	case Or:
		return yesNo(offer == Yes || own == Yes), true
	case Min, Max:
		a, _ := ParseNumber(offer)
		b, _ := ParseNumber(own)
		if (k.Func == Min) == (b < a) {
			a = b
		}
		return strconv.FormatUint(a, 10), true
	case FirstOf:
		mine := strings.Split(own, ",")
		for s := range strings.SplitSeq(offer, ",") {
			if slices.Contains(mine, s) {
				return s, true
			}
		}
		return "", false
	case Declare, Question:
	}
	return offer, true
}

// admits tells that answer is an outcome that offer allows (RFC 7143, section 6.2.2).
func (k *Key) admits(offer, answer string) bool {
	if !k.Valid(answer) {
		return false
	}
	if k.Func == FirstOf {
		return slices.Contains(strings.Split(offer, ","), answer)
	}
	got, _ := k.Combine(answer, offer)
	return sameValue(k, got, answer)
}

// answerOptional tells that an offer settles the key by itself (RFC 7143, section 6.2.2).
func (k *Key) answerOptional(offer string) bool {
	return k.Func == Declare || k.Func == And && offer == No || k.Func == Or && offer == Yes
}

// sameValue compares values; numbers may be written in two ways.
func sameValue(k *Key, a, b string) bool {
	if k.Type == KeyNumber {
		x, errX := ParseNumber(a)
		y, errY := ParseNumber(b)
		return errX == nil && errY == nil && x == y
	}
	return a == b
}

func yesNo(b bool) string {
	if b {
		return Yes
	}
	return No
}
