package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"time"

	"goiwarp/iscsi/scsi"
)

// workload is one of fio's values of rw.
type workload struct {
	random, mixed bool
	reads         int // percent; of a mixed one --rwmixread tells
}

var workloads = map[string]workload{
	"read": {reads: 100}, "write": {}, "randread": {random: true, reads: 100}, "randwrite": {random: true},
	"rw": {mixed: true}, "randrw": {random: true, mixed: true},
}

func workloadNames() []string { return slices.Sorted(maps.Keys(workloads)) }

// benchSpec is what is to be done.
type benchSpec struct {
	rw            string
	random        bool
	readPercent   int
	bs            int // octets of a command
	depth, jobs   int
	offset, size  int64 // octets of the disk that are used
	runtime, ramp time.Duration
	limited       bool // a run ends when size octets were moved
	verify        bool
	seed          uint64
	fitted        bool
}

func (s *benchSpec) writes() bool { return s.readPercent < 100 }
func (s *benchSpec) reads() bool  { return s.readPercent > 0 }

// lend is how much memory a job's commands hold: what is lent has a power of two's size, and pages at least.
func (s *benchSpec) lend() int {
	each := int64(1) << max(bits.Len(uint(s.bs-1)), 12)
	return int(min(each*int64(s.depth), benchMemory))
}

// fit checks the spec against a disk and settles what is used of it. A second disk has to have as much as the first.
func (s *benchSpec) fit(ctx context.Context, d *disk) error {
	block := int64(d.cap.BlockSize)
	switch bs := int64(s.bs); {
	case bs%block != 0:
		return fmt.Errorf("--bs %d: %s has blocks of %d octets, and a command is for whole ones", s.bs, d, block)
	case s.offset%block != 0:
		return fmt.Errorf("--offset %d: %s has blocks of %d octets: begin with one", s.offset, d, block)
	case s.offset >= d.Size() || s.size > d.Size()-s.offset:
		return fmt.Errorf("beyond the end of %s, which has %s", d, octets(d.Size()))
	}
	if !s.fitted {
		s.fitted = true
		s.limited = s.size > 0
		if s.size == 0 {
			s.size = d.Size() - s.offset
		}
	}
	if share := s.size / int64(s.jobs); share < int64(s.bs) {
		return fmt.Errorf("--bs %s: each of %d jobs has only %s of the disk", octets(int64(s.bs)), s.jobs, octets(share))
	}
	l, err := d.lun.Limits(ctx)
	switch {
	case errors.Is(err, scsi.KeyIllegalRequest.Err()): // the page is optional
	case err != nil:
		return err
	case l.MaxTransfer > 0 && int64(s.bs)/block > int64(l.MaxTransfer):
		return fmt.Errorf("--bs %s: %s takes at most %s in a command", octets(int64(s.bs)), d, octets(int64(l.MaxTransfer)*block))
	}
	return nil
}

// splitMix turns x into a number that looks random (the finalizer of the SplitMix64 generator).
func splitMix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
