package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"goiwarp/tests/driver"
)

// Every peer serves these: one target for whoever comes, one that asks for CHAP, and one that can prove itself as well.
const (
	openTarget   = "iqn.2026-11.com.example:open"
	chapTarget   = "iqn.2026-11.com.example:chap"
	mutualTarget = "iqn.2026-11.com.example:mutual"

	user, secret             = "alice", "alice-secret-16"
	targetUser, targetSecret = "portal", "portal-secret16"
)

// kind is a target program.
type kind struct {
	name    string // and the table's column
	program string
	pkg     string // Debian's package; "" is one of ours
	start   func(ctx context.Context, bin, dir string) (*peer, error)
}

var kinds = []kind{
	{"iserd", "iserd", "", func(ctx context.Context, bin, dir string) (*peer, error) { return startIserd(ctx, bin, dir, "iscsi") }},
	{"iserd-iser", "iserd", "", func(ctx context.Context, bin, dir string) (*peer, error) { return startIserd(ctx, bin, dir, "iser") }},
	{"tgt", "tgtd", "tgt", startTgt},
	{"istgt", "istgt", "istgt", startIstgt},
}

// peer is a running target program.
type peer struct {
	scheme string // of URLs: iscsi or iser
	addr   string
	// guarded is a portal of a second instance, which asks for CHAP in discovery sessions too; "" if there is none.
	guarded string
	luns    []lun // of the open target; the others have one LUN, with the first one's number
	daemons []*daemon
}

// lun is a logical unit that the peer was told to serve.
type lun struct {
	number uint16
	size   int64
	block  int
}

func (p *peer) url(target string, lun uint16) string {
	return fmt.Sprintf("%s://%s/%s/%d", p.scheme, p.addr, target, lun)
}

func (p *peer) stop() error {
	var errs []error
	for _, d := range p.daemons {
		errs = append(errs, d.stop())
	}
	return errors.Join(errs...)
}

// daemon is one process.
type daemon struct {
	cmd  *exec.Cmd
	log  *syncBuffer
	end  func()        // what is to be done after it
	done chan struct{} // closed when it has ended
}

// syncBuffer is a program's output, read while it runs.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// launch starts a program and waits until ready says so.
func (p *peer) launch(ctx context.Context, ready func(*daemon) error, end func(), path string, args ...string) error {
	d := &daemon{cmd: exec.Command(path, args...), log: new(syncBuffer), end: end, done: make(chan struct{})}
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	if err := d.cmd.Start(); err != nil {
		return err
	}
	go func() {
		_ = d.cmd.Wait()
		close(d.done)
	}()
	p.daemons = append(p.daemons, d)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		err := ready(d)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-d.done:
			return fmt.Errorf("%s has ended: %s", filepath.Base(path), strings.TrimSpace(d.log.String()))
		case <-ctx.Done():
			return fmt.Errorf("%s does not get ready: %w: %s", filepath.Base(path), err, strings.TrimSpace(d.log.String()))
		}
	}
}

func (d *daemon) stop() error {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.done:
	case <-time.After(10 * time.Second): // tgtd wants its sessions ended first
		_ = d.cmd.Process.Kill()
		<-d.done
	}
	if d.end != nil {
		d.end()
	}
	return nil
}

// accepts waits for a listener.
func accepts(addr string) func(*daemon) error {
	return func(*daemon) error {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			err = c.Close()
		}
		return err
	}
}

func startIserd(ctx context.Context, bin, dir, scheme string) (p *peer, err error) {
	p = &peer{scheme: scheme, luns: []lun{{0, 64 << 20, 512}, {1, 16 << 20, 512}, {2, 16 << 20, 4096}}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.stop())
		}
	}()
	users, mutual := filepath.Join(dir, "users"), filepath.Join(dir, "mutual")
	if err := errors.Join(os.WriteFile(users, []byte(user+" "+secret+"\n"), 0o600), os.WriteFile(mutual, []byte(targetUser+" "+targetSecret+"\n"), 0o600)); err != nil {
		return p, err
	}
	config := fmt.Sprintf(`
[[portal]]
listen = "127.0.0.1:0"

[[target]]
name = %q
[[target.lun]]
store = "mem:64MiB"
[[target.lun]]
store = "mem:16MiB"
[[target.lun]]
store = "mem:16MiB"
block = 4096

[[target]]
name = %q
[[target.access]]
chap = %q
[[target.lun]]
store = "mem:16MiB"

[[target]]
name = %q
[[target.access]]
chap = %q
mutual-chap = %q
[[target.lun]]
store = "mem:16MiB"
`, openTarget, chapTarget, users, mutualTarget, users, mutual)
	file := filepath.Join(dir, "iserd.toml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return p, err
	}
	iserd := filepath.Join(bin, "iserd")
	where := func(addr *string) func(*daemon) error {
		return func(d *daemon) error {
			for line := range strings.Lines(d.log.String()) {
				if _, at, ok := strings.Cut(line, " on "); ok && strings.HasPrefix(line, "ready: ") {
					*addr = strings.Fields(at)[0]
					return nil
				}
			}
			return errors.New("not ready")
		}
	}
	if err := p.launch(ctx, where(&p.addr), nil, iserd, "--config", file); err != nil {
		return p, err
	}
	return p, p.launch(ctx, where(&p.guarded), nil, iserd, "--listen", "127.0.0.1:0", "--target", openTarget, "--lun", "mem:1MiB", "--discovery-chap-file", users)
}

// startTgt runs Debian's tgtd with files. It needs root, for the control socket's folder. Its LUN 0 is a controller.
func startTgt(ctx context.Context, _, dir string) (p *peer, err error) {
	p = &peer{scheme: "iscsi", luns: []lun{{1, 64 << 20, 512}, {2, 16 << 20, 512}, {3, 16 << 20, 4096}}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.stop())
		}
	}()
	if err := os.MkdirAll("/run/tgtd", 0o755); err != nil {
		return p, err
	}
	var control string // names the socket of one tgtd
	admin := func(args ...string) error {
		args = append([]string{"-C", control, "--lld", "iscsi"}, args...)
		if out, err := exec.CommandContext(ctx, "tgtadm", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("tgtadm %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
		}
		return nil
	}
	account := func(name, secret string) error {
		return admin("--mode", "account", "--op", "new", "--user", name, "--password", secret)
	}
	start := func(addr string) error {
		control = fmt.Sprint(1000 + os.Getpid()%15000*2 + len(p.daemons))
		socket := "/run/tgtd/socket." + control
		answers := func(*daemon) error { return admin("--mode", "target", "--op", "show") }
		gone := func() { _, _ = os.Remove(socket), os.Remove(socket+".lock") }
		if err := p.launch(ctx, answers, gone, "tgtd", "-f", "-C", control, "--iscsi", "portal="+addr); err != nil {
			return err
		}
		return account(user, secret)
	}
	// The second one asks in discovery, too.
	if p.guarded, err = driver.FreePort(); err != nil {
		return p, err
	}
	if err := start(p.guarded); err != nil {
		return p, err
	}
	err = errors.Join(
		admin("--mode", "account", "--op", "bind", "--user", user),
		admin("--mode", "target", "--op", "new", "--tid", "1", "--targetname", openTarget),
		admin("--mode", "target", "--op", "bind", "--tid", "1", "--initiator-address", "ALL"))
	if err != nil {
		return p, err
	}
	if p.addr, err = driver.FreePort(); err != nil {
		return p, err
	}
	if err := start(p.addr); err != nil {
		return p, err
	}
	disk := func(tid, name string, l lun) error {
		file := filepath.Join(dir, name)
		if err := sparse(file, l.size); err != nil {
			return err
		}
		n := fmt.Sprint(l.number)
		return errors.Join(
			admin("--mode", "logicalunit", "--op", "new", "--tid", tid, "--lun", n, "--backing-store", file, "--blocksize", fmt.Sprint(l.block)),
			admin("--mode", "logicalunit", "--op", "update", "--tid", tid, "--lun", n, "--params", "thin_provisioning=1"))
	}
	err = account(targetUser, targetSecret)
	for i, t := range []string{openTarget, chapTarget, mutualTarget} {
		tid := fmt.Sprint(i + 1)
		err = errors.Join(err, admin("--mode", "target", "--op", "new", "--tid", tid, "--targetname", t))
		for _, l := range p.luns {
			if i == 0 || l.number == 1 {
				err = errors.Join(err, disk(tid, fmt.Sprintf("disk%s.%d", tid, l.number), l))
			}
		}
		if i > 0 {
			err = errors.Join(err, admin("--mode", "account", "--op", "bind", "--tid", tid, "--user", user))
		}
		if i == 2 {
			err = errors.Join(err, admin("--mode", "account", "--op", "bind", "--tid", tid, "--user", targetUser, "--outgoing"))
		}
		for _, digest := range []string{"HeaderDigest", "DataDigest"} { // taken when asked for
			err = errors.Join(err, admin("--mode", "target", "--op", "update", "--tid", tid, "--name", digest, "--value", "CRC32C,None"))
		}
		err = errors.Join(err, admin("--mode", "target", "--op", "bind", "--tid", tid, "--initiator-address", "ALL"))
	}
	return p, err
}

// startIstgt runs Debian's istgt with files, and a second one whose discovery asks for CHAP.
func startIstgt(ctx context.Context, _, dir string) (p *peer, err error) {
	p = &peer{scheme: "iscsi", luns: []lun{{0, 64 << 20, 512}, {1, 16 << 20, 512}}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.stop())
		}
	}()
	auth := filepath.Join(dir, "auth.conf")
	text := fmt.Sprintf("[AuthGroup1]\n  Auth %q %q %q %q\n", user, secret, targetUser, targetSecret)
	if err := os.WriteFile(auth, []byte(text), 0o600); err != nil {
		return p, err
	}
	start := func(name, discovery string) (addr string, err error) {
		if addr, err = driver.FreePort(); err != nil {
			return "", err
		}
		at := filepath.Join(dir, name)
		var c strings.Builder
		fmt.Fprintf(&c, `[Global]
  NodeBase "iqn.2026-11.com.example"
  PidFile %[1]s.pid
  AuthFile %[2]s
  MediaDirectory %[3]s
  LogFacility "local7"
  Timeout 30
  NopInInterval 20
  DiscoveryAuthMethod %[4]s
  DiscoveryAuthGroup AuthGroup1
  MaxSessions 16
  MaxConnections 4
  MaxR2T 32
  MaxOutstandingR2T 16
  DefaultTime2Wait 2
  DefaultTime2Retain 60
  FirstBurstLength 262144
  MaxBurstLength 1048576
  MaxRecvDataSegmentLength 262144
  InitialR2T Yes
  ImmediateData Yes
  DataPDUInOrder Yes
  DataSequenceInOrder Yes
  ErrorRecoveryLevel 0
[UnitControl]
  AuthMethod CHAP Mutual
  AuthGroup AuthGroup1
[PortalGroup1]
  Portal A %[5]s
[InitiatorGroup1]
  InitiatorName "ALL"
  Netmask 127.0.0.0/8
`, at, auth, dir, discovery, addr)
		for i, t := range []struct{ target, auth string }{{openTarget, "None"}, {chapTarget, "CHAP"}, {mutualTarget, "CHAP Mutual"}} {
			fmt.Fprintf(&c, `[LogicalUnit%d]
  TargetName %q
  Mapping PortalGroup1 InitiatorGroup1
  AuthMethod %s
  AuthGroup AuthGroup1
  UseDigest Auto
  UnitType Disk
  QueueDepth 32
`, i+1, t.target, t.auth)
			for _, l := range p.luns {
				if i > 0 && l.number > 0 {
					break
				}
				fmt.Fprintf(&c, "  LUN%d Storage %s.%d.%d %dMB\n", l.number, at, i, l.number, l.size>>20)
			}
		}
		file := at + ".conf"
		if err := os.WriteFile(file, []byte(c.String()), 0o600); err != nil {
			return "", err
		}
		return addr, p.launch(ctx, accepts(addr), nil, "istgt", "-D", "-q", "-c", file, "-p", at+".pid")
	}
	if p.addr, err = start("open", "None"); err != nil {
		return p, err
	}
	p.guarded, err = start("guarded", "CHAP")
	return p, err
}

func sparse(file string, size int64) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}
