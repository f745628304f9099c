package main

import (
	"errors"
	"fmt"

	"goiwarp/iscsi/scsi"
)

// absentError is what a check says that found out that the peer does not offer what it is about.
type absentError struct{ why string }

func (e *absentError) Error() string { return "not offered: " + e.why }

func absentf(format string, args ...any) error { return &absentError{fmt.Sprintf(format, args...)} }

// optional makes an absentError of a command that the peer does not know, and leaves other errors alone.
func optional(err error) error {
	if errors.Is(err, scsi.CodeInvalidOpcode.Err()) {
		return absentf("%v", err)
	}
	return err
}

// known is what is known of a peer and a check.
type known struct {
	why string
	// fault tells that the peer offers it and does it wrong, so that the check fails in whatever way.
	fault bool
}

// exceptions are what each peer is known not to offer, or to do wrong, by check. A check that finds otherwise fails, either way
// round.
var exceptions = map[string]map[string]known{
	"iserd-iser": {
		"header digest": {why: "MPA's CRC32c stands in its place (RFC 7145, section 6.1)"},
		"data digest":   {why: "the same"},
		"both digests":  {why: "the same"},
	},
	"tgt": {
		"CHAP, algorithms":  {why: "takes number 7 for SHA-1; our initiator offers the others when that goes wrong"},
		"I/O, unsolicited":  {why: "InitialR2T=Yes"},
		"COMPARE AND WRITE": {why: "an unknown command"},
	},
	"istgt": {
		"CHAP, algorithms":        {why: "MD5 alone"},
		"I/O, unsolicited":        {why: "InitialR2T=Yes"},
		"4096-octet blocks":       {why: "512 octets alone"},
		"sense data":              {why: "CHECK CONDITION comes without sense data", fault: true},
		"reservations, preempted": {why: "PREEMPT ends the other's reservation, and does not give it to who preempted", fault: true},
		"UNMAP":                   {why: "not thinly provisioned"},
		"VERIFY":                  {why: "does not take the data to compare with"},
	},
}
