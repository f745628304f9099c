package iscsi

// Values of TaskReporting: how a target reports the end of tasks (RFC 7143, section 13.23). Each one brings what those above it bring.
const (
	ReportRFC3720       = "RFC3720"       // as RFC 3720 had it
	ReportResponseFence = "ResponseFence" // responses that say something about others do not overtake them
	ReportFastAbort     = "FastAbort"     // a function that aborts many tasks waits for no data of theirs
)

// FastAbort tells that task management functions which abort many tasks have the FastAbort semantics (section 4.2.3.4).
func (p *Params) FastAbort() bool { return p.TaskReporting == ReportFastAbort }

// ResponseFence tells that responses are fenced (section 4.2.2.3).
func (p *Params) ResponseFence() bool {
	return p.TaskReporting == ReportResponseFence || p.TaskReporting == ReportFastAbort
}
