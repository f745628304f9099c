package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// leg is one boot: a script of legs/ and the setting that it runs in.
type leg struct {
	name     string
	programs []string  // ours, built for the guest: folders below the module's root
	verbs    bool      // they are built with the hardware provider, and so are its tests (verbs.test)
	long     bool      // with -full, or named, only
	reset    bool      // the guest resets itself once, and is booted again
	disk     bool      // wants a disk that outlives the guest
	memory   int       // of the guest, in MiB; 0 is 768
	also     []setting // what -full runs it in besides the first setting
	boots    int       // boots that did not come to the leg
	setting
}

// setting is what the guest's siw is like, and the MTU of what its packets cross.
type setting struct {
	siw string // "plain", "crc", "p2p", "rev1": what siw fixes when it is built
	mtu int
}

// variant is the suffix of the module's file.
func (s setting) variant() string {
	if s.siw == "plain" {
		return ""
	}
	return "-" + s.siw
}

func (l leg) String() string { return fmt.Sprintf("%s siw %s mtu %d", l.name, l.siw, l.mtu) }

var (
	first      = setting{"crc", 1500}
	crcJumbo   = setting{"crc", 65535}
	plain      = setting{"plain", 1500}
	plainJumbo = setting{"plain", 65535}
	p2p        = setting{"p2p", 1500}
	rev1       = setting{"rev1", 1500}

	// settings is the order in which -full goes through them.
	settings = []setting{first, plain, plainJumbo, crcJumbo, p2p, rev1}
)

// table is every leg, in the order in which they run. All run in the first setting. What a leg proves decides what else it is run
// in: frames and their sizes concern whatever moves data; peer-to-peer mode and revision 1 concern whoever sets up connections;
// recovery and durability (kill, reset) lie above all of it.
//
// A leg is added with a row here and a script in legs/ that begins with ". /host/lib.sh", records what it finds with check, pass
// and fail, and ends with finish; what it wants in the guest is named in guest/packages (programs) or guest/make.sh (modules).
var table = []leg{
	{name: "initiator", programs: []string{"cmd/iserd"}, also: []setting{plainJumbo, p2p, rev1}},
	{name: "lio", programs: []string{"cmd/iser", "tests/interop/peer"}, memory: 1536, also: []setting{plain, crcJumbo, p2p}},
	{name: "libiscsi", programs: []string{"cmd/iserd"}, also: []setting{plainJumbo, p2p}},
	{name: "kill", programs: []string{"cmd/iserd", "tests/interop/peer"}},
	{name: "reset", programs: []string{"cmd/iserd", "tests/interop/peer"}, disk: true, reset: true},
	{name: "faults", programs: []string{"cmd/iwarp", "cmd/iserd", "tests/interop/peer"}, also: []setting{plain}},
	{name: "chap", programs: []string{"cmd/iserd"}},
	{name: "persist", programs: []string{"cmd/iserd"}},
	{name: "reload", programs: []string{"cmd/iserd"}},
	{name: "multipath", programs: []string{"cmd/iserd"}, long: true},
	{name: "throughput", programs: []string{"cmd/iserd", "tests/interop/peer"}, long: true, also: []setting{plainJumbo}},
	{name: "rping", programs: []string{"cmd/iwarp"}, also: []setting{plain, plainJumbo, crcJumbo, p2p}},
	{name: "attach", programs: []string{"cmd/iserd", "cmd/iser", "tests/interop/peer"}},
	{name: "verbs", programs: []string{"cmd/iserd", "cmd/iser", "cmd/iwarp"}, verbs: true, also: []setting{plain}},
}

// maxBoots is how often a guest that does not come to its leg is booted again.
const maxBoots = 2

// bound is a guard against hanging: how long a guest may run. A busy machine starves guests.
const bound = 30 * time.Minute

// choose lists what the flags ask for.
func (o *options) choose() ([]leg, error) {
	var only []string
	if o.legs != "" {
		only = strings.Split(o.legs, ",")
	}
	for _, name := range only {
		if !slices.ContainsFunc(table, func(l leg) bool { return l.name == name }) {
			return nil, fmt.Errorf("no leg %q", name)
		}
	}
	var legs []leg
	for _, s := range settings {
		for _, l := range table {
			switch {
			case only != nil && !slices.Contains(only, l.name), only == nil && l.long && !o.full:
				continue
			case s != first && !slices.Contains(l.also, s):
				continue
			case o.siw != "" && s.siw != o.siw, o.mtu != 0 && s.mtu != o.mtu:
				continue
			case s != first && !o.full && o.siw == "" && o.mtu == 0:
				continue
			}
			l.setting = s
			legs = append(legs, l)
		}
	}
	if len(legs) == 0 {
		return nil, errors.New("no leg to run")
	}
	return legs, nil
}

// prepare fills the folder that the guest sees as /host.
func (l leg) prepare(dir, programs string, full bool) error {
	if l.verbs {
		programs = filepath.Join(programs, "verbs")
	}
	env := fmt.Sprintf("VARIANT=%s\nMTU=%d\nFULL=%d\n", l.variant(), l.mtu, map[bool]int{true: 1}[full])
	if err := os.WriteFile(filepath.Join(dir, "env"), []byte(env), 0o644); err != nil {
		return err
	}
	entries, err := os.ReadDir(programs)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		if err := os.Link(filepath.Join(programs, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			if err := copyFile(filepath.Join(dir, e.Name()), filepath.Join(programs, e.Name()), 0o755); err != nil {
				return err
			}
		}
	}
	if err := copyFile(filepath.Join(dir, "lib.sh"), "lib.sh", 0o644); err != nil {
		return err
	}
	return copyFile(filepath.Join(dir, "leg.sh"), filepath.Join("legs", l.name+".sh"), 0o644)
}

func copyFile(dst, src string, mode fs.FileMode) error {
	data, err := os.ReadFile(src)
	if err != nil {
		return err
	}
	return os.WriteFile(dst, data, mode)
}

// boot runs the guest to its end, and says how much processor time it took, which tells more than wall-clock time on a busy machine.
// Emulation, not KVM: it works in any container, and slowness finds races. The processor says that it has no fast string operations:
// QEMU emulates those octet by octet, and kernel and Go copy several times faster by words.
func boot(ctx context.Context, l leg, guest, dir string) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("the guest did not end within %v", bound))
	defer cancel()
	console, err := os.OpenFile(filepath.Join(dir, "console.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return 0, err
	}
	defer console.Close()
	args := []string{
		"-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm", "-smp", "2", "-m", strconv.Itoa(cmp.Or(l.memory, 768)),
		"-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio",
		"-kernel", filepath.Join(guest, "vmlinuz"), "-initrd", filepath.Join(guest, "initramfs.cpio.zst"),
		"-append", "console=ttyS0 panic=-1 loglevel=4 mitigations=off nokaslr random.trust_cpu=on tsc=reliable rdinit=/init",
		"-virtfs", "local,path=" + dir + ",mount_tag=host,security_model=none",
		"-device", "virtio-rng-pci",
	}
	if l.disk {
		image := filepath.Join(dir, "disk.img")
		if f, err := os.OpenFile(image, os.O_CREATE|os.O_RDWR, 0o644); err != nil {
			return 0, err
		} else if err := errors.Join(f.Truncate(diskSize), f.Close()); err != nil {
			return 0, err
		}
		args = append(args, "-drive", "file="+image+",format=raw,if=virtio,cache=writeback")
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	cmd.Stdout, cmd.Stderr = console, console
	err = cmd.Run()
	var cpu time.Duration
	if p := cmd.ProcessState; p != nil {
		cpu = p.UserTime() + p.SystemTime()
	}
	switch {
	case ctx.Err() != nil:
		return cpu, context.Cause(ctx)
	case err != nil:
		return cpu, fmt.Errorf("qemu: %w", err)
	}
	finished := filepath.Join(dir, "finished")
	if _, err := os.Stat(finished); err == nil {
		return cpu, nil
	}
	if reset := filepath.Join(dir, "reset"); l.reset {
		if _, err := os.Stat(reset); err == nil {
			l.reset = false
			more, err := boot(ctx, l, guest, dir)
			return cpu + more, err
		}
	}
	// Emulated kernels die now and then while they patch their own code: a guest that never came to its leg is booted again.
	if _, err := os.Stat(filepath.Join(dir, "results")); errors.Is(err, fs.ErrNotExist) && l.boots < maxBoots {
		l.boots++
		more, err := boot(ctx, l, guest, dir)
		return cpu + more, err
	}
	return cpu, errors.New("the guest went down before the leg had finished")
}

const diskSize = 256 << 20

// check is one line of a leg's results.
type check struct {
	ok   bool
	name string
}

// results reads what the guest recorded.
func results(dir string) (checks []check, notes []string) {
	f, err := os.Open(filepath.Join(dir, "results"))
	if err != nil {
		return nil, nil
	}
	defer f.Close()
	in := bufio.NewReader(f)
	for {
		line, err := in.ReadString('\n')
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "PASS", "FAIL":
			checks = append(checks, check{word == "PASS", rest})
		case "NOTE":
			notes = append(notes, rest)
		}
		if errors.Is(err, io.EOF) {
			return checks, notes
		}
		if err != nil {
			return append(checks, check{false, err.Error()}), notes
		}
	}
}
