package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"goiwarp/tests/driver"
)

const targetName = "iqn.2026-11.com.example:suite"

// target is a running target with one logical unit.
type target interface {
	urls() []string // one for each portal
	stop() error
}

// iserd is the daemon under test.
type iserd struct {
	cmd   *exec.Cmd
	log   bytes.Buffer
	addrs []string
	tail  chan struct{} // closed at the end of its output
}

// startIserd runs iserd and waits until it says that all its portals are ready.
func startIserd(path string, p profile) (*iserd, error) {
	args := []string{"--lun", p.spec, "--target", targetName}
	for range p.portals {
		args = append(args, "--listen", "127.0.0.1:0")
	}
	d := &iserd{cmd: exec.Command(path, args...), tail: make(chan struct{})}
	d.cmd.Stderr = &d.log
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w (make build builds it)", err)
	}
	lines := bufio.NewScanner(out)
	for len(d.addrs) < p.portals && lines.Scan() {
		if _, addr, ok := strings.Cut(lines.Text(), " on "); ok && strings.HasPrefix(lines.Text(), "ready: ") {
			d.addrs = append(d.addrs, strings.Fields(addr)[0])
		}
	}
	if len(d.addrs) < p.portals {
		err := d.cmd.Wait()
		return nil, fmt.Errorf("iserd %s: %w: %s", strings.Join(args, " "), errors.Join(err, errors.New("not ready")), bytes.TrimSpace(d.log.Bytes()))
	}
	go func() {
		for lines.Scan() {
		}
		close(d.tail)
	}()
	return d, nil
}

func (d *iserd) urls() []string { return urls(d.addrs, 0) }

func urls(addrs []string, lun int) []string {
	var u []string
	for _, a := range addrs {
		u = append(u, fmt.Sprintf("iscsi://%s/%s/%d", a, targetName, lun))
	}
	return u
}

// stop ends it as a service manager does; it has to end well.
func (d *iserd) stop() error {
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("iserd has gone: %w: %s", err, d.log.Bytes())
	}
	<-d.tail
	if err := d.cmd.Wait(); err != nil {
		return fmt.Errorf("iserd: %w: %s", err, d.log.Bytes())
	}
	return nil
}

// tgt is Debian's tgtd with a sparse file.
type tgt struct {
	cmd     *exec.Cmd
	log     bytes.Buffer
	control string
	dir     string
	addrs   []string
}

// tgtControl numbers the control sockets, which tell several tgtd apart.
var tgtControl atomic.Int32

// startTgt runs a tgtd of its own and gives it a target. It needs root, for the control socket's folder.
func startTgt(ctx context.Context, p profile) (t *tgt, err error) {
	dir, err := os.MkdirTemp("", "suites-tgt")
	if err != nil {
		return nil, err
	}
	t = &tgt{dir: dir, control: fmt.Sprint(100 + tgtControl.Add(1))}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.stop())
		}
	}()
	if err := os.MkdirAll("/run/tgtd", 0o755); err != nil {
		return t, err
	}
	disk := filepath.Join(dir, "disk")
	if out, err := exec.CommandContext(ctx, "truncate", "-s", p.size, disk).CombinedOutput(); err != nil {
		return t, fmt.Errorf("truncate: %w: %s", err, out)
	}
	args := []string{"-f", "-C", t.control}
	for range p.portals {
		addr, err := driver.FreePort()
		if err != nil {
			return t, err
		}
		t.addrs = append(t.addrs, addr)
	}
	args = append(args, "--iscsi", "portal="+strings.Join(t.addrs, ",portal="))
	t.cmd = exec.Command("tgtd", args...)
	t.cmd.Stdout, t.cmd.Stderr = &t.log, &t.log
	if err := t.cmd.Start(); err != nil {
		return t, err
	}
	if err := t.ready(ctx); err != nil {
		return t, err
	}
	for _, args := range [][]string{
		{"--mode", "target", "--op", "new", "--tid", "1", "--targetname", targetName},
		{"--mode", "logicalunit", "--op", "new", "--tid", "1", "--lun", "1", "--backing-store", disk},
		{"--mode", "logicalunit", "--op", "update", "--tid", "1", "--lun", "1", "--params", strings.Join(p.tgt, ",")},
		{"--mode", "target", "--op", "bind", "--tid", "1", "--initiator-address", "ALL"},
	} {
		if err := t.admin(ctx, args...); err != nil {
			return t, err
		}
	}
	return t, nil
}

// ready waits until tgtd answers its control socket.
func (t *tgt) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if t.admin(ctx, "--mode", "target", "--op", "show") == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("tgtd does not answer: %s", t.log.Bytes())
		}
	}
}

func (t *tgt) admin(ctx context.Context, args ...string) error {
	args = append([]string{"-C", t.control, "--lld", "iscsi"}, args...)
	if out, err := exec.CommandContext(ctx, "tgtadm", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("tgtadm %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

func (t *tgt) urls() []string { return urls(t.addrs, 1) }

func (t *tgt) stop() error {
	defer os.RemoveAll(t.dir)
	if t.cmd == nil || t.cmd.Process == nil {
		return nil
	}
	_ = t.cmd.Process.Kill() // it has nothing worth keeping
	_ = t.cmd.Wait()
	return os.Remove("/run/tgtd/socket." + t.control)
}
