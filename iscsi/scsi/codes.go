package scsi

import "fmt"

// Code is an additional sense code with its qualifier: ASC in the high octet, ASCQ in the low one
// (SPC-4, section 4.5.6 and annex F).
type Code uint16

// MakeCode joins asc and ascq.
func MakeCode(asc, ascq byte) Code { return Code(asc)<<8 | Code(ascq) }

// ASC is the additional sense code.
func (c Code) ASC() byte { return byte(c >> 8) }

// ASCQ is the additional sense code qualifier.
func (c Code) ASCQ() byte { return byte(c) }

// The codes that a logical unit here sends, and some that others send.
const (
	CodeNone                      Code = 0x0000
	CodeNotReadyCauseUnknown      Code = 0x0400
	CodeBecomingReady             Code = 0x0401
	CodeInitializingRequired      Code = 0x0402
	CodeManualIntervention        Code = 0x0403
	CodeFormatInProgress          Code = 0x0404
	CodeNotAccessibleTransition   Code = 0x040a
	CodeNotAccessibleStandby      Code = 0x040b
	CodeNotAccessibleUnavailable  Code = 0x040c
	CodeOperationInProgress       Code = 0x0016
	CodeWriteError                Code = 0x0c00
	CodeWriteErrorAutoReallocFail Code = 0x0c02
	CodeUnexpectedUnsolicitedData Code = 0x0c0c
	CodeNotEnoughUnsolicitedData  Code = 0x0c0d
	CodeUnrecoveredRead           Code = 0x1100
	CodeGuardCheckFailed          Code = 0x1001
	CodeParameterListLength       Code = 0x1a00
	CodeMiscompareDuringVerify    Code = 0x1d00
	CodeInvalidOpcode             Code = 0x2000
	CodeLBAOutOfRange             Code = 0x2100
	CodeInvalidFieldInCDB         Code = 0x2400
	CodeLUNotSupported            Code = 0x2500
	CodeInvalidFieldInParameters  Code = 0x2600
	CodeParameterNotSupported     Code = 0x2601
	CodeInvalidRelease            Code = 0x2604
	CodeWriteProtected            Code = 0x2700
	CodeSpaceAllocationFailed     Code = 0x2707
	CodeMediumMayHaveChanged      Code = 0x2800
	CodeReset                     Code = 0x2900
	CodePowerOn                   Code = 0x2901
	CodeBusReset                  Code = 0x2902
	CodeBusDeviceReset            Code = 0x2903
	CodeInternalReset             Code = 0x2904
	CodeNexusLoss                 Code = 0x2907
	CodeModeParametersChanged     Code = 0x2a01
	CodeReservationsPreempted     Code = 0x2a03
	CodeReservationsReleased      Code = 0x2a04
	CodeRegistrationsPreempted    Code = 0x2a05
	CodeAsymmetricAccessChanged   Code = 0x2a06
	CodeCapacityChanged           Code = 0x2a09
	CodeCommandSequence           Code = 0x2c00
	CodeCommandsCleared           Code = 0x2f00
	CodeMediumNotPresent          Code = 0x3a00
	CodeMediumTrayOpen            Code = 0x3a02
	CodeThresholdReached          Code = 0x3807
	CodeSavingNotSupported        Code = 0x3900
	CodeTargetConditionsChanged   Code = 0x3f00
	CodeInquiryDataChanged        Code = 0x3f03
	CodeReportedLUNsChanged       Code = 0x3f0e
	CodeSelfTestFailed            Code = 0x3e03
	CodeInternalTargetFailure     Code = 0x4400
	CodeProtocolServiceCRC        Code = 0x4705
	CodeClearedByISCSI            Code = 0x477f // some commands cleared by iSCSI protocol event
	CodeSNACKRejected             Code = 0x1113 // read error: failed retransmission request
	CodeOverlappedCommands        Code = 0x4e00
	CodeMediumRemovalPrevented    Code = 0x5302
	CodeDataPhase                 Code = 0x4b00
	CodeInvalidFieldInCIU         Code = 0x0e03
	CodeInsufficientResources     Code = 0x5503
	CodeSetTargetPortGroupsFailed Code = 0x670a
	CodeInsufficientRegistration  Code = 0x5504
	CodeSanitizeInProgress        Code = 0x041b
	CodeUnreachableCopyTarget     Code = 0x0804
	CodeThirdPartyFailure         Code = 0x0d01
	CodeCopyTargetNotReachable    Code = 0x0d02
	CodeCopyTargetWrongType       Code = 0x0d03
	CodeDefectListNotFound        Code = 0x1c00
	CodeTooManyTargetDescriptors  Code = 0x2606
	CodeTargetDescriptorType      Code = 0x2607
	CodeTooManySegments           Code = 0x2608
	CodeSegmentDescriptorType     Code = 0x2609
	CodeInexactSegment            Code = 0x260a
	CodeInlineDataLength          Code = 0x260b
	CodeSoftwareWriteProtected    Code = 0x2702
	CodeSanitizeFailed            Code = 0x3103
)

var codeNames = map[Code]string{
	CodeSanitizeInProgress:        "not ready, sanitize in progress",
	CodeUnreachableCopyTarget:     "unreachable copy target",
	CodeThirdPartyFailure:         "third party device failure",
	CodeCopyTargetNotReachable:    "copy target device not reachable",
	CodeCopyTargetWrongType:       "incorrect copy target device type",
	CodeDefectListNotFound:        "defect list not found",
	CodeTooManyTargetDescriptors:  "too many target descriptors",
	CodeTargetDescriptorType:      "unsupported target descriptor type code",
	CodeTooManySegments:           "too many segment descriptors",
	CodeSegmentDescriptorType:     "unsupported segment descriptor type code",
	CodeInexactSegment:            "unexpected inexact segment",
	CodeInlineDataLength:          "inline data length exceeded",
	CodeSoftwareWriteProtected:    "logical unit software write protected",
	CodeSanitizeFailed:            "sanitize command failed",
	CodeNone:                      "no additional sense information",
	CodeNotReadyCauseUnknown:      "not ready, cause not reportable",
	CodeBecomingReady:             "becoming ready",
	CodeInitializingRequired:      "not ready, initializing command required",
	CodeManualIntervention:        "not ready, manual intervention required",
	CodeFormatInProgress:          "not ready, format in progress",
	CodeNotAccessibleTransition:   "not accessible, asymmetric access state transition",
	CodeNotAccessibleStandby:      "not accessible, target port in standby state",
	CodeNotAccessibleUnavailable:  "not accessible, target port in unavailable state",
	CodeOperationInProgress:       "operation in progress",
	CodeWriteError:                "write error",
	CodeWriteErrorAutoReallocFail: "write error, auto reallocation failed",
	CodeUnexpectedUnsolicitedData: "write error, unexpected unsolicited data",
	CodeNotEnoughUnsolicitedData:  "write error, not enough unsolicited data",
	CodeUnrecoveredRead:           "unrecovered read error",
	CodeGuardCheckFailed:          "logical block guard check failed",
	CodeParameterListLength:       "parameter list length error",
	CodeMiscompareDuringVerify:    "miscompare during verify operation",
	CodeInvalidOpcode:             "invalid command operation code",
	CodeLBAOutOfRange:             "logical block address out of range",
	CodeInvalidFieldInCDB:         "invalid field in CDB",
	CodeLUNotSupported:            "logical unit not supported",
	CodeInvalidFieldInParameters:  "invalid field in parameter list",
	CodeParameterNotSupported:     "parameter not supported",
	CodeInvalidRelease:            "invalid release of persistent reservation",
	CodeWriteProtected:            "write protected",
	CodeSpaceAllocationFailed:     "space allocation failed write protect",
	CodeMediumMayHaveChanged:      "not ready to ready change, medium may have changed",
	CodeReset:                     "power on, reset, or bus device reset occurred",
	CodePowerOn:                   "power on occurred",
	CodeBusReset:                  "SCSI bus reset occurred",
	CodeBusDeviceReset:            "bus device reset function occurred",
	CodeInternalReset:             "device internal reset",
	CodeNexusLoss:                 "I_T nexus loss occurred",
	CodeModeParametersChanged:     "mode parameters changed",
	CodeReservationsPreempted:     "reservations preempted",
	CodeReservationsReleased:      "reservations released",
	CodeRegistrationsPreempted:    "registrations preempted",
	CodeAsymmetricAccessChanged:   "asymmetric access state changed",
	CodeCapacityChanged:           "capacity data has changed",
	CodeCommandSequence:           "command sequence error",
	CodeCommandsCleared:           "commands cleared by another initiator",
	CodeMediumNotPresent:          "medium not present",
	CodeMediumTrayOpen:            "medium not present, tray open",
	CodeSelfTestFailed:            "logical unit failed self-test",
	CodeThresholdReached:          "thin provisioning soft threshold reached",
	CodeSavingNotSupported:        "saving parameters not supported",
	CodeTargetConditionsChanged:   "target operating conditions have changed",
	CodeInquiryDataChanged:        "INQUIRY data has changed",
	CodeReportedLUNsChanged:       "reported LUNs data has changed",
	CodeInternalTargetFailure:     "internal target failure",
	CodeProtocolServiceCRC:        "protocol service CRC error",
	CodeOverlappedCommands:        "overlapped commands attempted",
	CodeMediumRemovalPrevented:    "medium removal prevented",
	CodeDataPhase:                 "data phase error",
	CodeInvalidFieldInCIU:         "invalid field in command information unit",
	CodeInsufficientResources:     "insufficient resources",
	CodeSetTargetPortGroupsFailed: "SET TARGET PORT GROUPS command failed",
	CodeInsufficientRegistration:  "insufficient registration resources",
}

// String is the code's name if it is a common one, and its two octets, for example "write protected
// (27/00)".
func (c Code) String() string {
	if n, ok := codeNames[c]; ok {
		return fmt.Sprintf("%s (%02x/%02x)", n, c.ASC(), c.ASCQ())
	}
	return fmt.Sprintf("ASC/ASCQ %02x/%02x", c.ASC(), c.ASCQ())
}
