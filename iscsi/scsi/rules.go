package scsi

// access is what a persistent reservation, held by another nexus, means to a command. The five columns of the
// standards' tables (SPC-4, table 65; SBC-3, table 13) know these rows:
//
//	              any nexus    registered     not registered
//	              WE     EA    RO and AR     WE-RO/AR  EA-RO/AR
//	accessAny     A      A        A             A         A
//	accessRead    A      C        A             A         C
//	accessWrite   C      C        A             C         C
type access uint8

const (
	accessWrite   access = iota // and whatever the tables do not know
	accessRead                  // reads the medium, or what is said about it
	accessAny                   // harms nobody, or has rules of its own
	accessStart                 // START STOP UNIT: starting is accessAny, all else accessWrite
	accessPrevent               // PREVENT ALLOW MEDIUM REMOVAL: allowing is accessAny, preventing accessWrite
)

// pathStates is a set of asymmetric access states beyond the two active ones in which a command runs (SPC-4, section
// 5.15.2.5 ff.).
type pathStates uint8

const (
	inStandby pathStates = 1 << iota
	inUnavailable
	inTransition

	inEvery = inStandby | inUnavailable | inTransition
)

// anyAction is the service action of a rule for all of an operation.
const anyAction = 0xff

// rule says what stands in a command's way before the logical unit looks at its fields.
type rule struct {
	op, action byte
	access     access
	paths      pathStates
	medium     bool // needs the medium: fails while a removable one is out
}

// rules are the commands of SPC-4 and SBC-4 that a disk may have, whether it is offered here or not. What is missing is
// accessWrite, runs in the active states, and needs no medium.
var rules = []rule{
	{OpTestUnitReady, anyAction, accessAny, 0, true},
	{OpRequestSense, anyAction, accessAny, inEvery, false},
	{OpInquiry, anyAction, accessAny, inEvery, false},
	{OpReportLUNs, anyAction, accessAny, inEvery, false},
	{OpModeSelect6, anyAction, accessWrite, inStandby, false},
	{OpModeSelect10, anyAction, accessWrite, inStandby, false},
	{OpModeSense6, anyAction, accessRead, inStandby, false},
	{OpModeSense10, anyAction, accessRead, inStandby, false},
	{0x4c, anyAction, accessWrite, inStandby, false}, // LOG SELECT
	{0x4d, anyAction, accessAny, inStandby, false},   // LOG SENSE
	{0x1c, anyAction, accessRead, inStandby, false},  // RECEIVE DIAGNOSTIC RESULTS
	{0x1d, anyAction, accessWrite, inStandby, false}, // SEND DIAGNOSTIC
	{0x3c, anyAction, accessRead, inStandby | inUnavailable, false},
	{0x3b, anyAction, accessWrite, inStandby | inUnavailable, false}, // WRITE BUFFER

	// These decide by themselves.
	{OpReserve6, anyAction, accessAny, 0, false},
	{OpRelease6, anyAction, accessAny, 0, false},
	{OpReserve10, anyAction, accessAny, 0, false},
	{OpRelease10, anyAction, accessAny, 0, false},
	{OpPersistentReserveIn, anyAction, accessAny, inStandby, false},
	{OpPersistentReserveOut, anyAction, accessAny, inStandby, false},

	{OpMaintenanceIn, SAReportTargetPortGroups, accessAny, inEvery, false},
	{OpMaintenanceIn, SAReportSupportedOpcode, accessRead, 0, false},
	{OpMaintenanceIn, SAReportSupportedTaskFunctions, accessRead, 0, false},
	{OpMaintenanceIn, anyAction, accessAny, 0, false},
	{OpMaintenanceOut, SASetTargetPortGroups, accessWrite, inStandby | inUnavailable, false},

	{OpStartStopUnit, anyAction, accessStart, 0, false},
	{OpPreventAllow, anyAction, accessPrevent, 0, false},
	{OpReadCapacity10, anyAction, accessAny, 0, true},
	{OpServiceActionIn16, SAReadCapacity16, accessAny, 0, true},
	{OpServiceActionIn16, 0x13, accessAny, 0, true}, // REPORT REFERRALS
	{OpServiceActionIn16, anyAction, accessRead, 0, true},

	{OpRead6, anyAction, accessRead, 0, true},
	{OpRead10, anyAction, accessRead, 0, true},
	{OpRead12, anyAction, accessRead, 0, true},
	{OpRead16, anyAction, accessRead, 0, true},
	{OpVerify10, anyAction, accessRead, 0, true},
	{OpVerify12, anyAction, accessRead, 0, true},
	{OpVerify16, anyAction, accessRead, 0, true},
	{OpPreFetch10, anyAction, accessRead, 0, true},
	{OpPreFetch16, anyAction, accessRead, 0, true},
	{0x37, anyAction, accessRead, 0, true},  // READ DEFECT DATA(10)
	{0xb7, anyAction, accessRead, 0, true},  // READ DEFECT DATA(12)
	{0x3e, anyAction, accessRead, 0, true},  // READ LONG(10)
	{0x84, anyAction, accessRead, 0, false}, // RECEIVE COPY RESULTS

	{OpWrite6, anyAction, accessWrite, 0, true},
	{OpWrite10, anyAction, accessWrite, 0, true},
	{OpWrite12, anyAction, accessWrite, 0, true},
	{OpWrite16, anyAction, accessWrite, 0, true},
	{0x2e, anyAction, accessWrite, 0, true}, // WRITE AND VERIFY(10)
	{0xae, anyAction, accessWrite, 0, true}, // WRITE AND VERIFY(12)
	{0x8e, anyAction, accessWrite, 0, true}, // WRITE AND VERIFY(16)
	{0x9c, anyAction, accessWrite, 0, true}, // WRITE ATOMIC(16)
	{0x8b, anyAction, accessWrite, 0, true}, // ORWRITE(16)
	{OpWriteSame10, anyAction, accessWrite, 0, true},
	{OpWriteSame16, anyAction, accessWrite, 0, true},
	{OpCompareAndWrite, anyAction, accessWrite, 0, true},
	{OpUnmap, anyAction, accessWrite, 0, true},
	{OpSynchronizeCache10, anyAction, accessWrite, 0, true},
	{OpSynchronizeCache16, anyAction, accessWrite, 0, true},
	{0x48, anyAction, accessWrite, 0, true}, // SANITIZE
	{0x04, anyAction, accessWrite, 0, true}, // FORMAT UNIT
	{0x07, anyAction, accessWrite, 0, true}, // REASSIGN BLOCKS
}

// ruleOf finds the rule of an operation and its service action.
func ruleOf(op, action byte) rule {
	for _, r := range rules {
		if r.op == op && (r.action == action || r.action == anyAction) {
			return r
		}
	}
	return rule{op: op, action: action}
}

// accessOf is what a command asks of a reservation; a nil command is one that is not offered.
func accessOf(c *command, cdb []byte) access {
	if c == nil {
		return accessWrite
	}
	switch a := c.rule.access; a {
	case accessStart:
		if cdb[4]&0xf1 == 0x01 { // POWER CONDITION 0 and START
			return accessAny
		}
		return accessWrite
	case accessPrevent:
		if cdb[4]&0x03 == 0 {
			return accessAny
		}
		return accessWrite
	default:
		return a
	}
}
