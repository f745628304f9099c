package scsi

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Operations of a sanitizePlan.
const (
	planOverwrite = "overwrite"
	planErase     = "block erase"
)

const sanitizeVersion = 1

// sanitizePlan is what a sanitize operation does and how far it has come, as it is kept over a restart.
type sanitizePlan struct {
	Version      int    `json:"version"`
	Unit         string `json:"unit,omitempty"` // LUConfig.Identity: another's data is not what was to be gone
	Operation    string `json:"operation"`
	Pattern      []byte `json:"pattern,omitempty"` // of OVERWRITE
	Passes       int    `json:"passes"`
	Invert       bool   `json:"invert,omitempty"`
	Unrestricted bool   `json:"unrestricted,omitempty"` // AUSE: EXIT FAILURE MODE may end a failure
	Done         int    `json:"done,omitempty"`         // passes that are on the medium
	Failed       bool   `json:"failed,omitempty"`
}

// check tells what is wrong with a plan that was read.
func (p *sanitizePlan) check() error {
	switch {
	case p.Version != sanitizeVersion:
		return fmt.Errorf("version %d, not %d", p.Version, sanitizeVersion)
	case p.Operation == planErase && p.Passes == 1 && p.Done == 0:
		return nil
	case p.Operation != planOverwrite:
		return fmt.Errorf("operation %q", p.Operation)
	case len(p.Pattern) == 0:
		return errors.New("no pattern")
	case p.Passes < 1 || p.Passes > 31 || p.Done < 0 || p.Done >= p.Passes:
		return fmt.Errorf("%d of %d passes done", p.Done, p.Passes)
	}
	return nil
}

// keepSanitize keeps what the logical unit is sanitized by; nil is that it is not.
func (l *LU) keepSanitize(p *sanitizePlan) error {
	if l.cfg.Sanitizing == nil {
		return nil
	}
	if p == nil {
		return l.cfg.Sanitizing.Save(nil)
	}
	kept := *p
	kept.Version, kept.Unit = sanitizeVersion, l.cfg.Identity
	data, err := json.MarshalIndent(&kept, "", "  ")
	if err != nil {
		return err
	}
	return l.cfg.Sanitizing.Save(data)
}

// errSanitizeUnable is why an operation that was kept does not go on.
var errSanitizeUnable = errors.New("scsi: the logical unit cannot be sanitized as it is configured now")

// resumeSanitize goes on with an operation that was kept. A state that cannot be read is an error: data that was to be gone must not be
// served as if nothing had been.
func (l *LU) resumeSanitize() error {
	if l.cfg.Sanitizing == nil {
		return nil
	}
	data, err := l.cfg.Sanitizing.Load()
	if err != nil {
		return fmt.Errorf("sanitize operation: %w", err)
	}
	if len(data) == 0 {
		return nil
	}
	var p sanitizePlan
	if err = json.Unmarshal(data, &p); err == nil {
		err = p.check()
	}
	if err != nil {
		return fmt.Errorf("sanitize operation: not what was saved (remove the file to serve the data as it is): %w", err)
	}
	if p.Unit != "" && p.Unit != l.cfg.Identity {
		return fmt.Errorf("sanitize operation: it was begun for %q, and this is %q: no two logical units may keep it in one file "+
			"(if this is the same medium, remove the file and sanitize it again)", p.Unit, l.cfg.Identity)
	}
	s := l.newSanitize(p)
	l.sanitizing.Store(s)
	attrs := []any{"lun", l.cfg.Identity, "store", l.info.Name, "operation", p.Operation}
	unable := l.readOnly() || p.Operation == planErase && !l.thin
	if !p.Failed && !unable {
		l.log.Warn("sanitize goes on", attrs...)
		go l.runSanitize(s)
		return nil
	}
	failure := errSanitizeUnable
	if p.Failed {
		failure = errors.New("scsi: an earlier sanitize operation failed")
	}
	s.failed.Store(&failure)
	s.stop()
	close(s.ended)
	l.log.Error("the logical unit refuses access until a sanitize operation succeeds", append(attrs, "error", failure)...)
	return nil
}
