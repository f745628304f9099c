package iser

import (
	"errors"
	"io"
	"os"
	"time"

	"goiwarp/iscsi"
)

// writeTimeout bounds how long a peer may take to make room for one PDU of the login.
const writeTimeout = 10 * time.Second

// run is the goroutine of the login phase: request and response take turns, so that it reads a PDU only when nothing is to be sent. Then
// it starts what follows.
func (h *Handover) run() {
	if !h.target && !h.turn() {
		return
	}
	for {
		p, err := h.readPDU()
		if err != nil {
			h.cut(err)
			return
		}
		h.n.ControlNotify(p)
		if !h.turn() {
			return
		}
	}
}

// turn waits until this side has something to say, and says it. false: the login phase is over, and so is run.
func (h *Handover) turn() bool {
	for {
		h.mu.Lock()
		out, next, ending, failed := h.out, h.next, h.ending, h.failed
		h.out = nil
		h.mu.Unlock()
		for _, p := range out {
			err := failed
			if err == nil {
				err = h.writePDU(p)
			}
			p.Release()
			failed = err
		}
		switch {
		case next != nil:
			h.switchOver(next, failed)
			return false
		case ending || failed != nil:
			h.cut(failed)
			return false
		case len(out) > 0:
			return true
		}
		<-h.wake
	}
}

// switchOver lets the successor run. It comes after the upcall that enabled it, so that upcalls stay one at a time.
func (h *Handover) switchOver(next iscsi.Datamover, err error) {
	d, ok := next.(*Datamover)
	switch {
	case !ok:
		next.Start(h.n)
	case err != nil:
		_ = h.conn.Close()
		d.startFailed(&HandoverError{Phase: PhaseLogin, Remote: h.conn.RemoteAddr(), Err: err})
	default:
		d.startUp()
	}
}

// cut ends the connection in the login phase; err is nil if this side asked for a graceful end.
func (h *Handover) cut(err error) {
	h.mu.Lock()
	asked, quiet := h.ending, h.quiet
	h.ending = true
	graceful := asked && h.failed == nil
	out := h.out
	h.out = nil
	h.mu.Unlock()
	if graceful {
		for _, p := range out {
			if err = h.writePDU(p); err != nil {
				break
			}
		}
		h.linger()
	}
	for _, p := range out {
		p.Release()
	}
	if !asked {
		if errors.Is(err, io.EOF) {
			err = nil
		} else if err != nil {
			err = &connectionError{&HandoverError{Phase: PhaseLogin, Remote: h.conn.RemoteAddr(), Err: err}}
		}
	}
	h.mu.Lock()
	if h.failed == nil {
		h.failed = err
	}
	h.closeLockedKeep()
	h.mu.Unlock()
	if !quiet {
		h.n.ConnectionTerminateNotify(err)
	}
	close(h.done)
}

// closeLockedKeep gives everything back but leaves Done open, for the last upcall.
func (h *Handover) closeLockedKeep() {
	h.dropISER()
	_ = h.conn.Close()
	close(h.ready)
}

// linger sends the FIN and waits until the peer has taken what was sent, which a close with unread octets might destroy.
func (h *Handover) linger() {
	c, ok := h.conn.(interface{ CloseWrite() error })
	if !ok || c.CloseWrite() != nil {
		return
	}
	_ = h.conn.SetReadDeadline(time.Now().Add(h.cfg.Linger))
	_, _ = io.CopyBuffer(io.Discard, onlyReader{h.conn}, make([]byte, 4096))
}

type onlyReader struct{ io.Reader }

// readPDU reads one PDU of the login phase: exactly its octets. io.EOF only where no PDU has begun.
func (h *Handover) readPDU() (*iscsi.PDU, error) {
	p := new(iscsi.PDU)
	n := copy(p.BHS[:], h.read)
	h.read = nil
	if _, err := io.ReadFull(h.conn, p.BHS[n:]); err != nil {
		if n > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	f := iscsi.FrameOf(p.BHS[:], false, false)
	if f.Data > loginAccept {
		return nil, &LengthError{What: "data segment during login", Got: f.Data, Want: loginDataSegment}
	}
	body := make([]byte, f.AHS+f.Data+f.Pad)
	if _, err := io.ReadFull(h.conn, body); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	p.AHS, p.Data = body[:f.AHS:f.AHS], body[f.AHS:][:f.Data:f.Data]
	return p, nil
}

// writePDU writes one PDU of the login phase, without digests.
func (h *Handover) writePDU(p *iscsi.PDU) error {
	b, err := iscsi.AppendPDU(nil, p, false, false)
	if err != nil {
		return err
	}
	_ = h.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err = h.conn.Write(b)
	_ = h.conn.SetWriteDeadline(time.Time{})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errors.New("the peer does not read")
	}
	return err
}
