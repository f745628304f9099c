package blockdev

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sysfs is a file of the kernel about a device.
func sysfs(index int, name string) string { return fmt.Sprintf("/sys/block/nbd%d/%s", index, name) }

// Index is the number of the nbd device that a path leads to.
func Index(path string) (int, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		if !strings.HasPrefix(path, "/dev/nbd") {
			return 0, err
		}
		real = path // one that the kernel has not made yet
	}
	n, err := strconv.Atoi(strings.TrimPrefix(real, "/dev/nbd"))
	if err != nil || n < 0 || n > 1<<15 {
		return 0, fmt.Errorf("%s is no nbd device: want /dev/nbd0 or another number", path)
	}
	return n, nil
}

func text(path string) string {
	b, _ := os.ReadFile(path)
	return string(bytes.TrimSpace(b))
}

func number(path string) int64 {
	n, _ := strconv.ParseInt(text(path), 10, 64)
	return n
}

// users tells who uses a device or one of its partitions.
func users(index int) string {
	var list []string
	names := map[string]bool{}
	own := fmt.Sprintf("nbd%d", index)
	dirs := []string{sysfs(index, "")}
	parts, _ := filepath.Glob(sysfs(index, own+"p*"))
	for _, d := range append(dirs, parts...) {
		if dev := text(filepath.Join(d, "dev")); dev != "" {
			names[dev] = true
		}
		held, _ := filepath.Glob(filepath.Join(d, "holders/*"))
		for _, h := range held {
			list = append(list, "held by "+filepath.Base(h))
		}
	}
	lines("/proc/self/mountinfo", func(f []string) {
		if len(f) > 4 && names[f[2]] {
			list = append(list, "mounted on "+f[4])
		}
	})
	lines("/proc/swaps", func(f []string) {
		if len(f) > 0 && (f[0] == "/dev/"+own || strings.HasPrefix(f[0], "/dev/"+own+"p")) {
			list = append(list, f[0]+" is swap space")
		}
	})
	return strings.Join(list, ", ")
}

func lines(path string, f func(fields []string)) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	for in := bufio.NewScanner(file); in.Scan(); {
		f(strings.Fields(in.Text()))
	}
}

// Detach flushes a device that nobody uses, disconnects it, and returns when it is gone. With force it does not ask who uses it, nor wait
// for a flush: what was not written is lost. ctx bounds it all.
func Detach(ctx context.Context, d Driver, index int, force bool) error {
	if !d.Bound(index) {
		return fmt.Errorf("%s is not attached", Path(index))
	}
	var f *os.File
	if !force {
		var err error
		if f, err = claim(ctx, index); err != nil {
			return err
		}
	}
	err := within(ctx, func() error { return d.Disconnect(index) })
	if f != nil {
		_ = f.Close() // what has the device open keeps the kernel from giving it up
	}
	if err != nil {
		return fmt.Errorf("detaching %s: %w", Path(index), err)
	}
	for d.Bound(index) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is still there: %w", Path(index), context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// claim opens a device for nobody else, and flushes it.
func claim(ctx context.Context, index int) (*os.File, error) {
	var f *os.File
	err := within(ctx, func() error {
		fd, err := unix.Open(Path(index), unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: Path(index), Err: err}
		}
		f = os.NewFile(uintptr(fd), Path(index))
		if err := unix.Fsync(fd); err != nil {
			_ = f.Close()
			return fmt.Errorf("flushing %s: %w", Path(index), err)
		}
		return nil
	})
	switch {
	case errors.Is(err, unix.EBUSY):
		return nil, &BusyError{Path(index), users(index)}
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return nil, ErrNotAllowed
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("%s cannot be flushed now: %w", Path(index), err)
	}
	return f, err
}

// within runs f, which the kernel may keep for long, for as long as ctx lasts; what f does then is forgotten.
func within(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// longestTrim is the most that the kernel trims by one request, in octets.
const longestTrim = 64 << 20

// tune sets what netlink has no attribute for. A kernel that will not is none the worse.
func tune(index int, largest int, rotational bool) {
	write := func(name, v string) { _ = os.WriteFile(sysfs(index, name), []byte(v), 0) }
	write("queue/max_sectors_kb", strconv.Itoa(min(largest, 1<<20)>>10))
	// A trim that took longer than the kernel waits would be sent again and again: many short ones instead of a long one.
	write("queue/discard_max_bytes", strconv.Itoa(longestTrim))
	if rotational {
		write("queue/rotational", "1")
	}
}
