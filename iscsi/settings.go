package iscsi

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Settings are what one side wants, or can do at most; the negotiation with the peer makes Params of them. The zero
// value is good for both roles. Lengths are in octets.
type Settings struct {
	// HeaderDigest and DataDigest are the digests taken, in order of preference ("CRC32C", "None"). Empty: an initiator
	// offers None, a target takes what the initiator likes best. Over RDMA they are always None.
	HeaderDigest, DataDigest []string

	// UnsolicitedData allows Data-Out PDUs that no R2T asked for (InitialR2T=No). A target agrees if the initiator wants it too.
	UnsolicitedData bool
	// NoImmediateData forbids data in SCSI Command PDUs (ImmediateData=No).
	NoImmediateData bool

	// MaxRecvDataSegment is the longest data segment that this side takes in a PDU; 0: 262144.
	// Over RDMA the two RecvDataSegment lengths below stand in its place.
	MaxRecvDataSegment int
	MaxBurstLength     int // longest solicited sequence; 0: 1048576
	FirstBurstLength   int // most unsolicited data, immediate included; 0: 65536
	MaxOutstandingR2T  int // 0: 8
	DefaultTime2Wait   int // seconds; 0: 2; below 0: none
	DefaultTime2Retain int // seconds; 0: 20 of an initiator with ErrorRecoveryLevel 2, else none. A target that recovers connections agrees to more than 0 only with ErrorRecoveryLevel 2

	// AnyPDUOrder and AnySequenceOrder let data PDUs of a sequence, and sequences of a command, come in any order (DataPDUInOrder=No,
	// DataSequenceInOrder=No), if the other side wants that too. With an ErrorRecoveryLevel above 0 they count for nothing: what is
	// acknowledged is a prefix then.
	AnyPDUOrder, AnySequenceOrder bool

	// MaxConnections is how many connections a session may have; 0: 1.
	MaxConnections int
	// ErrorRecoveryLevel is the highest level taken, 0 to 2 (RFC 7143, section 7.1.5). Above 0 a task has one R2T outstanding
	// (section 13.19), whatever MaxOutstandingR2T says.
	ErrorRecoveryLevel int

	// ProtocolLevel is the highest iSCSIProtocolLevel (RFC 7144, section 7.1.1). 0: an initiator says
	// nothing (so it is 1), a target goes up to 2.
	ProtocolLevel int
	// TaskReporting are the ways of reporting task ends taken, in order of preference; empty: "RFC3720" alone, and an
	// initiator says nothing.
	TaskReporting []string

	// TargetRecvDataSegment and InitiatorRecvDataSegment bound control PDUs over RDMA, per direction; 0: 8192.
	TargetRecvDataSegment    int
	InitiatorRecvDataSegment int
	// MaxOutstandingUnexpectedPDUs is what this side takes without credit (RFC 7145, section 6.7); 0: 8.
	MaxOutstandingUnexpectedPDUs uint32
	// MaxAHSLength is what this side takes; 0: 256, which is the default and is not declared.
	MaxAHSLength uint32
	// TaggedBufferForSolicitedDataOnly and ISERHelloRequired are an initiator's declarations (RFC 7145, sections 6.9 and 6.10).
	TaggedBufferForSolicitedDataOnly bool
	ISERHelloRequired                bool
	// RequireRDMA ends the login, with ErrNoRDMA, of a Normal session that would go on as plain iSCSI on a connection that could have
	// become an RDMA one (DatamoverInfo.Handover).
	RequireRDMA bool
}

// Check tells what in s cannot be said on the wire: a length out of its key's range, or a digest that nobody knows.
func (s *Settings) Check() error {
	for i := range keys {
		k := &keys[i]
		v := s.value(k.Name, RoleTarget, false)
		if v != "" && !k.Valid(v) {
			return fmt.Errorf("%w: %s=%s is out of range", ErrSettings, k.Name, v)
		}
	}
	for _, d := range slices.Concat(s.HeaderDigest, s.DataDigest) {
		if d != "CRC32C" && d != None {
			return fmt.Errorf("%w: digest %q", ErrSettings, d)
		}
	}
	for _, r := range s.TaskReporting {
		if r != "RFC3720" && r != "ResponseFence" && r != "FastAbort" {
			return fmt.Errorf("%w: task reporting %q", ErrSettings, r)
		}
	}
	return nil
}

// ErrSettings: Settings that no negotiation can be held with.
var ErrSettings = errors.New("iscsi: impossible settings")

// What is declared if Settings say nothing, in octets.
const (
	DefaultMaxRecvDataSegment  = 256 << 10
	DefaultRDMARecvDataSegment = 8192
)

func orDefault(n, def int) string {
	if n == 0 {
		n = def
	}
	return strconv.Itoa(n)
}

// value is this side's value of a negotiated or declared operational key; for lists all that it takes. "" if it has none.
func (s *Settings) value(name string, role Role, rdma bool) string {
	switch name {
	case KeyHeaderDigest:
		return digestList(s.HeaderDigest, role, rdma)
	case KeyDataDigest:
		return digestList(s.DataDigest, role, rdma)
	case KeyMaxConnections:
		return orDefault(s.MaxConnections, 1)
	case KeyInitialR2T:
		return yesNo(!s.UnsolicitedData)
	case KeyImmediateData:
		return yesNo(!s.NoImmediateData)
	case KeyMaxRecvDataSegment:
		return orDefault(s.MaxRecvDataSegment, DefaultMaxRecvDataSegment)
	case KeyMaxBurstLength:
		return orDefault(s.MaxBurstLength, 1<<20)
	case KeyFirstBurstLength:
		// It may not pass MaxBurstLength (RFC 7143, section 13.14).
		first, burst := s.FirstBurstLength, s.MaxBurstLength
		if first == 0 {
			first = 64 << 10
		}
		if burst == 0 {
			burst = 1 << 20
		}
		return strconv.Itoa(min(first, burst))
	case KeyMaxOutstandingR2T:
		if role == RoleInitiator && s.ErrorRecoveryLevel > 0 {
			return "1"
		}
		return orDefault(s.MaxOutstandingR2T, 8)
	case KeyDefaultTime2Wait:
		if s.DefaultTime2Wait < 0 {
			return "0"
		}
		return orDefault(s.DefaultTime2Wait, 2)
	case KeyDefaultTime2Retain:
		if role == RoleInitiator && s.ErrorRecoveryLevel == 2 {
			return orDefault(s.DefaultTime2Retain, 20)
		}
		return strconv.Itoa(s.DefaultTime2Retain)
	case KeyDataPDUInOrder:
		return yesNo(!s.AnyPDUOrder || s.ErrorRecoveryLevel > 0)
	case KeyDataSequenceInOrder:
		return yesNo(!s.AnySequenceOrder || s.ErrorRecoveryLevel > 0)
	case KeyErrorRecoveryLevel:
		return strconv.Itoa(s.ErrorRecoveryLevel)
	case KeyTaskReporting:
		if len(s.TaskReporting) == 0 {
			return "RFC3720"
		}
		return strings.Join(s.TaskReporting, ",")
	case KeyProtocolLevel:
		return orDefault(s.ProtocolLevel, 2)
	case KeyRDMAExtensions:
		return yesNo(rdma)
	case KeyTargetRecvSegment:
		return orDefault(s.TargetRecvDataSegment, DefaultRDMARecvDataSegment)
	case KeyInitiatorRecvSegment:
		return orDefault(s.InitiatorRecvDataSegment, DefaultRDMARecvDataSegment)
	case KeyMaxUnexpectedPDUs:
		return orDefault(int(s.MaxOutstandingUnexpectedPDUs), 8)
	case KeyMaxAHSLength:
		return orDefault(int(s.MaxAHSLength), 256)
	case KeySolicitedOnly:
		return yesNo(s.TaggedBufferForSolicitedDataOnly)
	case KeyISERHello:
		return yesNo(s.ISERHelloRequired)
	}
	return ""
}

func digestList(l []string, role Role, rdma bool) string {
	switch {
	case rdma:
		return None
	case len(l) > 0:
		return strings.Join(l, ",")
	case role == RoleTarget:
		return "CRC32C,None"
	}
	return None
}

// offers tells whether an initiator says the key of its own accord.
func (s *Settings) offers(k *Key, rdma bool) bool {
	switch k.Name {
	case KeyRDMAExtensions, KeyTargetRecvSegment, KeyInitiatorRecvSegment, KeyMaxUnexpectedPDUs:
		return rdma
	case KeyMaxAHSLength:
		return rdma && s.MaxAHSLength != 0
	case KeySolicitedOnly:
		return rdma && s.TaggedBufferForSolicitedDataOnly
	case KeyISERHello:
		return rdma && s.ISERHelloRequired
	case KeyHeaderDigest, KeyDataDigest, KeyMaxRecvDataSegment:
		return !rdma
	case KeyProtocolLevel:
		return s.ProtocolLevel != 0
	case KeyTaskReporting:
		return len(s.TaskReporting) > 0
	case KeyNodeArchitecture:
		return false
	}
	return s.value(k.Name, RoleInitiator, rdma) != ""
}

// guards are the keys that a target brings up itself when the initiator was silent and the default would be
// more than it allows.
func guards(k *Key) bool {
	switch k.Name {
	case KeyImmediateData, KeyMaxBurstLength, KeyFirstBurstLength, KeyHeaderDigest, KeyDataDigest:
		return true
	}
	return false
}
