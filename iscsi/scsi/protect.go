package scsi

// SetReadOnly has the logical unit refuse writes, or take them again, while it serves. Commands that run already go on to their end, and every
// nexus is told (MODE PARAMETERS CHANGED: the WP bit of MODE SENSE). What the configuration, the store or a failed flush made read-only stays so;
// ReadOnly tells.
func (l *LU) SetReadOnly(on bool) {
	before := l.ReadOnly()
	l.protected.Store(on)
	if l.ReadOnly() != before {
		l.Attention(CodeModeParametersChanged, nil)
	}
}
