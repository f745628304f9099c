package blockdev

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"goiwarp/iscsi/initiator"
)

// runDir is where records of attachments are. They are gone after a reboot, as the devices are.
const runDir = "/run/iser"

// Record is the file of one attachment, locked for as long as somebody serves it.
type Record struct{ f *os.File }

func recordPath(index int) string { return filepath.Join(runDir, fmt.Sprintf("nbd%d.json", index)) }

// Write makes the record of a device.
func Write(d Device) (*Record, error) {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(recordPath(d.Index), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(d)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(append(b, '\n'), 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("record of %s: %w", d.Path, err), f.Close())
	}
	return &Record{f}, nil
}

// Close tells that the device is served no more; Remove also that it is gone.
func (r *Record) Close() error { return r.f.Close() }

// Remove deletes the record.
func (r *Record) Remove() error { return errors.Join(os.Remove(r.f.Name()), r.f.Close()) }

// Lock keeps other processes from attaching while this one does. Unlock by closing the file.
func Lock() (*os.File, error) {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(runDir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

var nbdName = regexp.MustCompile(`^nbd([0-9]+)$`)

// Attached lists the devices that are attached by this package, served or not.
func Attached() ([]Device, error) {
	entries, err := os.ReadDir("/sys/block")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var list []Device
	for _, e := range entries {
		m := nbdName.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		index, err := strconv.Atoi(m[1])
		if err != nil {
			continue
		}
		if d, ok := look(index); ok {
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b Device) int { return a.Index - b.Index })
	return list, nil
}

// look tells what is known of a device that is set up: by the kernel, and by the record, which counts only for the same disk.
func look(index int) (Device, bool) {
	if _, err := os.Stat(sysfs(index, "pid")); err != nil {
		return Device{}, false
	}
	var d Device
	served := false
	if f, err := os.Open(recordPath(index)); err == nil {
		_ = json.NewDecoder(f).Decode(&d)
		served = errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
		_ = f.Close()
	}
	if b := text(sysfs(index, "backend")); b != "" && b != d.URL {
		d, served = Device{URL: b, Connections: 1}, false
	}
	if !initiator.IsURL(d.URL) {
		return Device{}, false // somebody else's
	}
	d.Index, d.Path, d.Served = index, Path(index), served
	d.Size = 512 * number(sysfs(index, "size"))
	d.BlockSize = int(number(sysfs(index, "queue/logical_block_size")))
	if !served {
		d.PID = 0
	}
	return d, true
}

// Find looks for the device that a URL or a path names, among those that are attached. A URL names a target and a LUN, by whatever portal.
func Find(list []Device, name string) (Device, bool, error) {
	if !initiator.IsURL(name) {
		index, err := Index(name)
		if err != nil {
			return Device{}, false, err
		}
		for _, d := range list {
			if d.Index == index {
				return d, true, nil
			}
		}
		return Device{}, false, nil
	}
	u, err := initiator.ParseURL(name)
	if err != nil {
		return Device{}, false, err
	}
	var found []Device
	for _, d := range list {
		v, err := initiator.ParseURL(d.URL)
		switch {
		case err != nil || v.Target != u.Target || v.LUN != u.LUN:
		case v == u:
			return d, true, nil
		default:
			found = append(found, d)
		}
	}
	switch len(found) {
	case 0:
		return Device{}, false, nil
	case 1:
		return found[0], true, nil
	}
	var paths []string
	for _, d := range found {
		paths = append(paths, d.Path)
	}
	return Device{}, false, fmt.Errorf("%s is attached several times, as %s: name the device", name, strings.Join(paths, " and "))
}

// Released waits until the process that served a detached device has ended, and removes the record if there was none.
func Released(ctx context.Context, d Device) error {
	for {
		f, err := os.Open(recordPath(d.Index))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			err = os.Remove(f.Name())
			return errors.Join(err, f.Close())
		}
		_ = f.Close()
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is detached, and process %d still runs: %w", d.Path, d.PID, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
