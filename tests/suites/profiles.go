package main

import (
	"slices"
	"strings"
)

// profile is a kind of logical unit, and which of the suite's tests are for it.
type profile struct {
	name    string
	spec    string   // iserd's SPEC
	tgt     []string // tgtadm's --params for the same
	size    string   // of tgt's file
	portals int
	runs    func(test string) bool
}

// sanitizeReset looks three seconds after it began a SANITIZE whether that is still under way, and again after two logins and
// a second: a disk of ordinary size in memory is done by then.
const sanitizeReset = "SCSI.Sanitize.Reset"

var profiles = []profile{
	{name: "thin", spec: "mem:256MiB,thin=on,physical=4096", tgt: []string{"thin_provisioning=1", "lbppbe=3"}, size: "256M", portals: 1, runs: ordinary},
	{name: "full", spec: "mem:256MiB,thin=off", tgt: []string{"thin_provisioning=0"}, size: "256M", portals: 1, runs: ordinary},
	{name: "read-only", spec: "mem:256MiB,ro", tgt: []string{"readonly=1", "thin_provisioning=1"}, size: "256M", portals: 1, runs: readsOnly},
	{name: "removable", spec: "mem:256MiB,removable", tgt: []string{"removable=1", "thin_provisioning=1"}, size: "256M", portals: 1, runs: ordinary},
	{name: "two-portal", spec: "mem:256MiB", tgt: []string{"thin_provisioning=1"}, size: "256M", portals: 2, runs: ordinary},
	// 12 seconds at its bandwidth.
	{name: "slow", spec: "mem:96MiB,bw=8MiB", tgt: []string{"thin_provisioning=1"}, size: "256M", portals: 1, runs: func(test string) bool { return test == sanitizeReset }},
}

func ordinary(test string) bool { return test != sanitizeReset }

// writers are the tests that write, whatever MODE SENSE says of write protection, and call it a failure that they are
// refused. On a read-only logical unit all others run, ReadOnly among them, which expects the refusals.
var writers = []string{
	"CompareAndWrite.", "OrWrite.", "Sanitize.", "Unmap.", "Write10.", "Write12.", "Write16.", "WriteAtomic16.", "WriteSame10.", "WriteSame16.",
	"WriteVerify10.", "WriteVerify12.", "WriteVerify16.", "ExtendedCopy.Simple", "ExtendedCopy.ValidTgtDescr", "GetLBAStatus.UnmapSingle", "ProutReserve.Access",
	"ReceiveCopyResults.CopyStatus", "MultipathIO.", "ModeSense6.Control-SWP",
	"iSCSIResiduals.Write", "iSCSIdatasn.", "iSCSITMF.", "iSCSIcmdsn.",
}

func readsOnly(test string) bool {
	_, name, _ := strings.Cut(test, ".")
	return !slices.ContainsFunc(writers, func(w string) bool { return strings.HasPrefix(name, w) })
}
