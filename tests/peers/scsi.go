package main

import (
	"bytes"
	"errors"
	"fmt"

	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

const keyA, keyB = 0xa1, 0xb2

// reservations has two initiators register, and then do what f does.
func reservations(r *run, f func(r *run, a, b *initiator.LUN) error) error {
	return r.disk(func(a *initiator.LUN) error {
		return r.disk(func(b *initiator.LUN) error {
			if err := a.Register(r.ctx, 0, keyA, initiator.RegisterOptions{Ignore: true}); err != nil {
				return optional(err)
			}
			defer func() { _ = a.ClearReservations(r.ctx, keyA) }()
			if err := b.Register(r.ctx, 0, keyB, initiator.RegisterOptions{Ignore: true}); err != nil {
				return err
			}
			defer func() { _ = b.ClearReservations(r.ctx, keyB) }()
			keys, err := a.ReservationKeys(r.ctx)
			if err != nil || len(keys.Keys) != 2 {
				return fmt.Errorf("keys %x: %w", keys.Keys, err)
			}
			if err := a.Reserve(r.ctx, keyA, initiator.WriteExclusive); err != nil {
				return err
			}
			held, err := b.Reservation(r.ctx)
			if err != nil || !held.Held || held.Key != keyA || held.Type != initiator.WriteExclusive {
				return fmt.Errorf("reservation %+v: %w", held, err)
			}
			if err := f(r, a, b); err != nil {
				return err
			}
			if err := b.ClearReservations(r.ctx, keyB); err != nil {
				return err
			}
			keys, err = b.ReservationKeys(r.ctx)
			if err == nil && len(keys.Keys) > 0 {
				err = fmt.Errorf("keys %x are left", keys.Keys)
			}
			return err
		}, initiator.WithInitiatorName(initiatorB))
	})
}

func conflict(what string, err error) error {
	if !errors.Is(err, &scsi.Error{Status: scsi.StatusReservationConflict}) {
		return fmt.Errorf("%s: want RESERVATION CONFLICT, not: %w", what, err)
	}
	return nil
}

func (r *run) write(l *initiator.LUN) error {
	_, err := l.WriteAtContext(r.ctx, make([]byte, 4096), 0)
	return err
}

// reserved: a has the reservation, and gives it back.
func reserved(r *run, a, b *initiator.LUN) error {
	if err := errors.Join(r.write(a), conflict("the other's write", r.write(b)), conflict("the other's reservation", b.Reserve(r.ctx, keyB, initiator.WriteExclusive))); err != nil {
		return err
	}
	if _, err := b.ReadAtContext(r.ctx, make([]byte, 4096), 0); err != nil {
		return fmt.Errorf("the other's read: %w", err)
	}
	if err := a.Release(r.ctx, keyA, initiator.WriteExclusive); err != nil {
		return err
	}
	return errors.Join(r.write(a), r.write(b))
}

// preempted: b takes the reservation over.
func preempted(r *run, a, b *initiator.LUN) error {
	if err := b.Preempt(r.ctx, keyB, keyA, initiator.WriteExclusive, false); err != nil {
		return err
	}
	if err := errors.Join(r.write(b), conflict("the preempted one's write", r.write(a))); err != nil {
		return err
	}
	if err := b.Release(r.ctx, keyB, initiator.WriteExclusive); err != nil {
		return err
	}
	return errors.Join(r.write(a), r.write(b))
}

func unmap(r *run) error {
	return r.disk(func(l *initiator.LUN) error {
		c, err := l.Capacity(r.ctx)
		if err != nil {
			return err
		}
		if !c.Thin {
			return absentf("not thinly provisioned")
		}
		want := bytes.Repeat([]byte{0x5a}, 3<<20)
		if _, err := l.WriteAtContext(r.ctx, want, 0); err != nil {
			return err
		}
		if err := l.Unmap(r.ctx, scsi.Extent{LBA: 2048, Blocks: 2048}); err != nil {
			return optional(err)
		}
		got := make([]byte, len(want))
		if _, err := l.ReadAtContext(r.ctx, got, 0); err != nil {
			return err
		}
		if c.ReadsZeros {
			clear(want[1<<20 : 2<<20])
		} else {
			copy(want[1<<20:2<<20], got[1<<20:2<<20])
		}
		if !bytes.Equal(got, want) {
			return errors.New("reads something else afterwards")
		}
		return nil
	})
}

func writeSame(r *run) error {
	return r.disk(func(l *initiator.LUN) error {
		block := bytes.Repeat([]byte("goiwarp "), 64)
		if err := l.WriteSame(r.ctx, 8192, 2048, block, false); err != nil {
			return optional(err)
		}
		got := make([]byte, 1<<20)
		if _, err := l.ReadAtContext(r.ctx, got, 8192*512); err != nil {
			return err
		}
		if !bytes.Equal(got, bytes.Repeat(block, 2048)) {
			return errors.New("reads something else afterwards")
		}
		return nil
	})
}

func compareAndWrite(r *run) error {
	return r.disk(func(l *initiator.LUN) error {
		a, b := bytes.Repeat([]byte{1}, 512), bytes.Repeat([]byte{2}, 512)
		if _, err := l.WriteAtContext(r.ctx, a, 0); err != nil {
			return err
		}
		if err := l.CompareAndWrite(r.ctx, 0, a, b); err != nil {
			return optional(err)
		}
		if err := l.CompareAndWrite(r.ctx, 0, a, a); !errors.Is(err, scsi.KeyMiscompare.Err()) {
			return fmt.Errorf("want MISCOMPARE, not: %w", err)
		}
		got := make([]byte, 512)
		if _, err := l.ReadAtContext(r.ctx, got, 0); err != nil {
			return err
		}
		if !bytes.Equal(got, b) {
			return errors.New("reads something else afterwards")
		}
		return nil
	})
}

func verify(r *run) error {
	return r.disk(func(l *initiator.LUN) error {
		data := bytes.Repeat([]byte{3}, 4096)
		if _, err := l.WriteAtContext(r.ctx, data, 0); err != nil {
			return err
		}
		if err := l.Verify(r.ctx, 0, 8); err != nil {
			return optional(err)
		}
		if err := l.VerifyData(r.ctx, 0, data); errors.Is(err, initiator.ErrShort) {
			return absentf("%v", err)
		} else if err != nil {
			return optional(err)
		}
		data[100] = 4
		if err := l.VerifyData(r.ctx, 0, data); !errors.Is(err, scsi.KeyMiscompare.Err()) {
			return absentf("compares nothing: %v", err)
		}
		return nil
	})
}
