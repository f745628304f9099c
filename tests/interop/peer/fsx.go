package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"
)

// Bounds of what exercise does to its file, in octets.
const (
	exerciseMost = 4 << 20
	exerciseIO   = 128 << 10
)

// exerciser changes a file at random and keeps in memory what it has to contain. A seed repeats the changes.
type exerciser struct {
	f     *os.File
	name  string
	rng   *rand.Rand
	model []byte // what lies beyond its length is unknown
	buf   []byte
	trace []string // the last changes
	did   map[string]int
}

// exercise changes and verifies a file so many times, or for so long.
func exercise(name, how string, seed uint64) (err error) {
	n, span := 1<<62, time.Duration(0)
	if k, nerr := strconv.Atoi(how); nerr == nil {
		n = k
	} else if span, err = time.ParseDuration(how); err != nil {
		return err
	}
	x := &exerciser{name: name, rng: rand.New(rand.NewPCG(seed, 2026)), buf: make([]byte, exerciseIO), did: map[string]int{}}
	if x.f, err = os.Create(name); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.f.Close()) }()
	begun, slowest, i := time.Now(), time.Duration(0), 0
	for ; i < n && (span == 0 || time.Since(begun) < span); i++ {
		at := time.Now()
		if err := x.step(); err != nil {
			return fmt.Errorf("seed %d, change %d: %w; before: %s", seed, i, err, strings.Join(x.trace, ", "))
		}
		slowest = max(slowest, time.Since(at))
	}
	if err := x.whole(); err != nil {
		return fmt.Errorf("seed %d, at the end: %w", seed, err)
	}
	fmt.Printf("%d changes in %v, the slowest %v: %v\n", i, time.Since(begun).Round(time.Millisecond), slowest.Round(time.Millisecond), x.did)
	return nil
}

// step does one thing.
func (x *exerciser) step() error {
	off := x.rng.IntN(exerciseMost)
	n := 1 + x.rng.IntN(exerciseIO)
	if x.rng.IntN(4) == 0 { // at the edges of blocks and pages
		off &^= 4095
		n = (n + 4095) &^ 4095
	}
	n = min(n, exerciseMost-off, exerciseIO)
	note := func(what string) {
		x.did[what]++
		x.trace = append(x.trace, fmt.Sprintf("%s %d+%d", what, off, n))
		if len(x.trace) > 20 {
			x.trace = x.trace[1:]
		}
	}
	switch p := x.rng.IntN(100); {
	case p < 40:
		note("write")
		return x.write(off, n)
	case p < 75:
		note("read")
		return x.read(off, n)
	case p < 83:
		note("truncate")
		x.grow(off)
		x.model = x.model[:off]
		return x.f.Truncate(int64(off))
	case p < 91:
		note("punch")
		return x.punch(off, n)
	case p < 97:
		note("sync")
		return x.f.Sync()
	case p < 99:
		note("reopen")
		return x.reopen()
	}
	note("whole")
	return x.whole()
}

// grow extends the model with zeros.
func (x *exerciser) grow(n int) {
	if n > len(x.model) {
		x.model = append(x.model, make([]byte, n-len(x.model))...)
	}
}

func (x *exerciser) write(off, n int) error {
	b := x.buf[:n]
	for i := range b {
		b[i] = byte(x.rng.Uint32())
	}
	x.grow(off + n)
	copy(x.model[off:], b)
	_, err := x.f.WriteAt(b, int64(off))
	return err
}

func (x *exerciser) read(off, n int) error {
	want := x.model[min(off, len(x.model)):min(off+n, len(x.model))]
	b := x.buf[:n]
	k, err := x.f.ReadAt(b, int64(off))
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return compare(b[:k], want, off)
}

func compare(got, want []byte, off int) error {
	if len(got) != len(want) {
		return fmt.Errorf("read %d octets at %d, and there are %d", len(got), off, len(want))
	}
	if bytes.Equal(got, want) {
		return nil
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("octet %d is %02x, and should be %02x", off+i, got[i], want[i])
		}
	}
	return nil
}

func (x *exerciser) punch(off, n int) error {
	if off+n > len(x.model) { // what is beyond the end stays beyond it
		n = len(x.model) - off
	}
	if n <= 0 {
		return nil
	}
	if err := punchHole(x.f, int64(off), int64(n)); err != nil {
		return err
	}
	clear(x.model[off : off+n])
	return nil
}

// reopen lets the pages of the file go, so that what is read next comes from the disk.
func (x *exerciser) reopen() error {
	if err := x.f.Sync(); err != nil {
		return err
	}
	if err := forget(x.f); err != nil {
		return err
	}
	if err := x.f.Close(); err != nil {
		return err
	}
	f, err := os.OpenFile(x.name, os.O_RDWR, 0)
	if err == nil {
		x.f = f
	}
	return err
}

// whole compares all of it.
func (x *exerciser) whole() error {
	b, err := os.ReadFile(x.name)
	if err != nil {
		return err
	}
	return compare(b, x.model, 0)
}
