package iser

import (
	"errors"
	"fmt"
	"time"

	"goiwarp/rnic"
)

// errForced ends a graceful end that the peer did not let happen.
var errForced = errors.New("iser: graceful end took too long")

// ConnectionTerminate implements iscsi.Datamover. A graceful end that takes longer than
// Config.DisconnectTimeout is forced.
func (d *Datamover) ConnectionTerminate(graceful bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.quiet = true
	if graceful {
		d.drain(nil)
		return
	}
	d.shutdown(nil)
}

// drain ends the connection once what was given to SendControl is sent; d.mu is held.
func (d *Datamover) drain(cause error) {
	if d.phase >= phaseDraining {
		return
	}
	if d.qp == nil { // nothing has left yet, and nothing can
		d.shutdown(cause)
		return
	}
	d.phase, d.cause, d.hold = phaseDraining, cause, false
	d.forced = time.AfterFunc(d.cfg.DisconnectTimeout, func() { d.fail(errForced) })
	d.pump()
}

// fail ends the connection at once because of err.
func (d *Datamover) fail(err error) {
	d.mu.Lock()
	d.failLocked(err)
	d.mu.Unlock()
}

func (d *Datamover) failLocked(err error) {
	if d.phase != phaseDown {
		d.log.Debug("iser: connection failed", "remote", d.remoteAddr(), "error", err)
	}
	d.shutdown(err)
}

// noteCause keeps the first reason for the end that is under way.
func (d *Datamover) noteCause(err error) {
	d.mu.Lock()
	if d.cause == nil && d.phase != phaseDown {
		d.cause = err
	}
	d.mu.Unlock()
}

// event takes what happens to the queue pair.
func (d *Datamover) event(ev rnic.Event) {
	switch ev.Kind {
	case rnic.Disconnected:
		d.mu.Lock()
		d.shutdown(nil)
		d.mu.Unlock()
	case rnic.Failed:
		d.fail(ev.Err)
	}
}

// shutdown begins the end of the connection; d.mu is held. The queue pair is closed by a goroutine
// of its own, since it must not be closed from its callbacks.
func (d *Datamover) shutdown(cause error) {
	if d.phase == phaseDown {
		return
	}
	d.phase = phaseDown
	if d.cause == nil {
		d.cause = cause
	}
	d.start.cancel()
	go d.teardown()
}

// teardown gives everything back and tells the iSCSI layer. When it begins, no call changes the
// connection any more; when the queue pair is closed, no callback does.
func (d *Datamover) teardown() {
	d.start.wait()
	if d.qp != nil {
		if err := d.qp.Close(); err != nil {
			d.log.Warn("iser: closing the queue pair", "error", err)
		}
	}
	if d.cq != nil {
		if err := d.cq.Close(); err != nil {
			d.log.Warn("iser: closing the completion queue", "error", err)
		}
	}
	d.up.Lock()
	if d.n != nil && !d.isQuiet() {
		d.deliverEarly()
	}
	for _, r := range d.early {
		r.pdu.Release()
	}
	d.early = nil

	d.mu.Lock()
	for _, t := range [...]*time.Timer{d.forced, d.helloTimer} {
		if t != nil {
			t.Stop()
		}
	}
	cause := d.cause
	left := [...]opList{d.posted, d.waiting, d.reads}
	d.posted, d.waiting, d.reads = opList{}, opList{}, opList{}
	for itt, t := range d.tasks {
		delete(d.tasks, itt)
		d.dropTask(t)
	}
	clear(d.remote)
	d.mu.Unlock()
	for i := range left {
		for o := left[i].pop(); o != nil; o = left[i].pop() {
			err := cause
			if err == nil {
				err = fmt.Errorf("%w: connection ended", rnic.ErrClosed)
			}
			d.finish(o, err)
		}
	}

	d.mu.Lock()
	for _, w := range d.windows {
		if err := w.Free(); err != nil {
			d.log.Error("iser: freeing a window", "error", err)
		}
	}
	d.nWindows -= len(d.windows)
	d.windows = nil
	d.giveBackReceives()
	d.mu.Unlock()
	if d.n != nil && !d.isQuiet() {
		if cause != nil {
			cause = &connectionError{cause}
		}
		d.n.ConnectionTerminateNotify(cause)
	}
	d.up.Unlock()
	d.dom.leave(d)
	if d.own {
		d.dom.closeLater()
	}
	close(d.done)
	d.start.settle()
}

// giveBackReceives ends the connection's claim to receives; d.mu is held.
func (d *Datamover) giveBackReceives() {
	if err := d.dom.receives.reserve(d.reserved, 0); err != nil {
		d.log.Error("iser: giving receives back", "error", err)
	}
	d.reserved = 0
}

// isQuiet says whether ConnectionTerminate was called.
func (d *Datamover) isQuiet() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.quiet
}
