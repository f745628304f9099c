package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/scsi"
)

// device is what the writers work on: a LUN of one session, or a Disk.
type device interface {
	ReadAtContext(ctx context.Context, p []byte, off int64) (int, error)
	WriteAtContext(ctx context.Context, p []byte, off int64) (int, error)
}

// area is what each of the writers has for itself.
const area = 3 << 19 // 1.5 MiB

// writers has n goroutines write their areas of d at random in pieces that are multiples of align, read at random, and at last compares
// the checksum of all with that of what was written. each, if not nil, is called after every write.
func writers(ctx context.Context, d device, n, writes, align int, each func()) error {
	model := make([]byte, n*area)
	if err := pieces(len(model), func(at, n int) error { // what was there before
		_, err := d.ReadAtContext(ctx, model[at:at+n], int64(at))
		return err
	}); err != nil {
		return fmt.Errorf("reading what is there: %w", err)
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = writer(ctx, d, model[i*area:(i+1)*area], int64(i*area), writes, align, each) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	got := sha256.New()
	buf := make([]byte, 256<<10)
	if err := pieces(len(model), func(at, n int) error {
		_, err := d.ReadAtContext(ctx, buf[:n], int64(at))
		got.Write(buf[:n])
		return err
	}); err != nil {
		return err
	}
	if want := sha256.Sum256(model); !bytes.Equal(got.Sum(nil), want[:]) {
		return fmt.Errorf("the checksum of %d octets is not that of what was written", len(model))
	}
	return nil
}

func writer(ctx context.Context, d device, model []byte, base int64, writes, align int, each func()) error {
	rng := rand.New(rand.NewPCG(uint64(base), 1))
	buf := make([]byte, area)
	for range writes {
		// Mostly small, at times as large as it gets.
		n := align * (1 + rng.IntN(64<<10/align))
		if rng.IntN(8) == 0 {
			n = align * (1 + rng.IntN(1<<20/align))
		}
		at := align * rng.IntN((area-n)/align+1)
		fill(rng, model[at:at+n])
		if _, err := d.WriteAtContext(ctx, model[at:at+n], base+int64(at)); err != nil {
			return fmt.Errorf("writing %d octets at %d: %w", n, base+int64(at), err)
		}
		if each != nil {
			each()
		}
		n = align * (1 + rng.IntN(256<<10/align))
		at = align * rng.IntN((area-n)/align+1)
		if _, err := d.ReadAtContext(ctx, buf[:n], base+int64(at)); err != nil {
			return fmt.Errorf("reading %d octets at %d: %w", n, base+int64(at), err)
		}
		if !bytes.Equal(buf[:n], model[at:at+n]) {
			return fmt.Errorf("%d octets at %d are not what was written", n, base+int64(at))
		}
	}
	return nil
}

func pieces(n int, f func(at, n int) error) error {
	for at := 0; at < n; at += 256 << 10 {
		if err := f(at, min(256<<10, n-at)); err != nil {
			return err
		}
	}
	return nil
}

func fill(rng *rand.Rand, p []byte) {
	for i := 0; i < len(p); i += 8 {
		v := rng.Uint64()
		for j := i; j < min(i+8, len(p)); j++ {
			p[j] = byte(v)
			v >>= 8
		}
	}
}

// io is the usual work with the settings that set makes.
func work(r *run, set func(*iscsi.Settings)) error {
	var more []initiator.Option
	if set != nil {
		more = append(more, initiator.WithSettings(set))
	}
	return r.disk(func(l *initiator.LUN) error { return writers(r.ctx, l, 8, 12, 512, nil) }, more...)
}

func unsolicited(r *run) error {
	return r.session(func(s *initiator.Session) error {
		if s.Params().InitialR2T {
			return absentf("the target insists on InitialR2T=Yes")
		}
		return writers(r.ctx, s.LUN(r.peer.luns[0].number), 8, 12, 512, nil)
	}, initiator.WithSettings(func(s *iscsi.Settings) { s.UnsolicitedData = true }))
}

func digests(r *run, header, data bool) error {
	return r.session(func(s *initiator.Session) error {
		if p := s.Params(); p.HeaderDigest != header || p.DataDigest != data {
			return absentf("header digest %v, data digest %v", p.HeaderDigest, p.DataDigest)
		}
		return writers(r.ctx, s.LUN(r.peer.luns[0].number), 8, 12, 512, nil)
	}, initiator.WithSettings(func(s *iscsi.Settings) {
		// No other choice than the one asked for, since some targets would take None wherever it is offered.
		s.HeaderDigest, s.DataDigest = []string{"None"}, []string{"None"}
		if header {
			s.HeaderDigest[0] = "CRC32C"
		}
		if data {
			s.DataDigest[0] = "CRC32C"
		}
	}))
}

func unaligned(r *run) error {
	return r.disk(func(l *initiator.LUN) error { return writers(r.ctx, l, 4, 16, 1, nil) })
}

func bigBlocks(r *run) error {
	i := slices.IndexFunc(r.peer.luns, func(l lun) bool { return l.block == 4096 })
	if i < 0 {
		return absentf("no logical unit of 4096-octet blocks")
	}
	return r.session(func(s *initiator.Session) error {
		l := s.LUN(r.peer.luns[i].number)
		if n, err := l.BlockSize(r.ctx); err != nil || n != 4096 {
			return fmt.Errorf("a block size of %d: %w", n, err)
		}
		return errors.Join(writers(r.ctx, l, 4, 12, 4096, nil), writers(r.ctx, l, 4, 6, 512, nil))
	})
}

// deepQueue submits 256 reads at once of blocks that tell their own number.
func deepQueue(r *run) error {
	return r.disk(func(l *initiator.LUN) error {
		const n, size = 256, 4096
		image := make([]byte, n*size)
		for i := range image {
			image[i] = byte(i/size) ^ byte(i)
		}
		if _, err := l.WriteAtContext(r.ctx, image, 0); err != nil {
			return err
		}
		ended := make(chan *initiator.Request, n)
		reqs := make([]*initiator.Request, n)
		for i := range reqs {
			buf, err := l.Alloc(size)
			if err != nil {
				return err
			}
			defer buf.Release()
			reqs[i] = &initiator.Request{Context: i, Done: initiator.Notify(ended)}
			l.PrepareRead(reqs[i], uint64(i)*size/512, size/512, 512, buf)
		}
		if err := l.Submit(reqs...); err != nil {
			return err
		}
		for range n {
			q := <-ended
			i := q.Context.(int)
			if q.Err != nil {
				return q.Err
			}
			if !bytes.Equal(q.In.Bytes()[:size], image[i*size:(i+1)*size]) {
				return fmt.Errorf("read %d is another's", i)
			}
		}
		return nil
	}, initiator.WithQueueDepth(256))
}

func copies(r *run) error {
	in, out := filepath.Join(r.dir, "in"), filepath.Join(r.dir, "out")
	image := make([]byte, 32<<20)
	fill(rand.New(rand.NewPCG(2, 2)), image)
	clear(image[8<<20 : 12<<20])
	if err := os.WriteFile(in, image, 0o600); err != nil {
		return err
	}
	url := r.peer.url(openTarget, r.peer.luns[0].number)
	if _, err := r.tool("cp", "--verify", in, url); err != nil {
		return err
	}
	if _, err := r.tool("read", url, "--length", "32MiB", out); err != nil {
		return err
	}
	got, err := os.ReadFile(out)
	if err == nil && !bytes.Equal(got, image) {
		err = errors.New("iser read gives something else than iser cp wrote")
	}
	return errors.Join(err, os.Remove(out))
}

func multiLUN(r *run) error {
	return r.session(func(s *initiator.Session) error {
		all, err := s.ReportLUNs(r.ctx)
		if err != nil {
			return err
		}
		for _, l := range r.peer.luns {
			if !slices.Contains(all, scsi.EncodeLUN(int(l.number))) {
				return fmt.Errorf("LUN %d is not among %x", l.number, all)
			}
			if n, err := s.LUN(l.number).Size(r.ctx); err != nil || n != l.size {
				return fmt.Errorf("LUN %d has %d octets, want %d: %w", l.number, n, l.size, err)
			}
			block := bytes.Repeat([]byte{0xa0 + byte(l.number)}, 8192)
			if _, err := s.LUN(l.number).WriteAtContext(r.ctx, block, 1<<20); err != nil {
				return err
			}
		}
		got := make([]byte, 8192)
		for _, l := range r.peer.luns {
			if _, err := s.LUN(l.number).ReadAtContext(r.ctx, got, 1<<20); err != nil {
				return err
			}
			if !bytes.Equal(got, bytes.Repeat([]byte{0xa0 + byte(l.number)}, 8192)) {
				return fmt.Errorf("LUN %d has another's contents", l.number)
			}
		}
		return nil
	})
}

func twoSessions(r *run) error {
	return r.disk(func(a *initiator.LUN) error {
		return r.disk(func(b *initiator.LUN) error {
			got := make([]byte, 64<<10)
			for i, pair := range [][2]*initiator.LUN{{a, b}, {b, a}} {
				want := bytes.Repeat([]byte{byte(i + 1)}, len(got))
				if _, err := pair[0].WriteAtContext(r.ctx, want, 2<<20); err != nil {
					return err
				}
				if _, err := pair[1].ReadAtContext(r.ctx, got, 2<<20); err != nil {
					return err
				}
				if !bytes.Equal(got, want) {
					return errors.New("does not see what the other wrote")
				}
			}
			return nil
		}, initiator.WithInitiatorName(initiatorB))
	})
}

// taskManagement resets the logical unit while others work on it.
func taskManagement(r *run) error {
	return r.session(func(s *initiator.Session) error {
		l := s.LUN(r.peer.luns[0].number)
		ctx, cancel := context.WithCancel(r.ctx)
		defer cancel()
		var wg sync.WaitGroup
		var enough atomic.Bool
		moved := make(chan struct{}, 1)
		for range 4 {
			wg.Go(func() {
				buf := make([]byte, 64<<10)
				for ctx.Err() == nil && !enough.Load() {
					// ErrAborted is what becomes of one that the reset ended.
					if _, err := l.ReadAtContext(ctx, buf, 0); err == nil {
						select {
						case moved <- struct{}{}:
						default:
						}
					}
				}
			})
		}
		defer wg.Wait()
		defer cancel()
		for range 3 {
			for range 8 {
				select {
				case <-moved:
				case <-s.Done():
					return s.Err()
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			answer, err := s.TaskManagement(ctx, iscsi.LogicalUnitReset, scsi.EncodeLUN(int(r.peer.luns[0].number)))
			if err != nil {
				return err
			}
			if answer != iscsi.TaskComplete {
				return fmt.Errorf("LOGICAL UNIT RESET: %v", answer)
			}
		}
		// The last reads end by themselves: a context's end would abort them, and istgt may use up a StatSN for an aborted task's response
		// that it then does not send.
		enough.Store(true)
		wg.Wait()
		return nil
	})
}
