package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"goiwarp/iscsi/scsi"
)

const whole = `# everything
log-level = "info"
control = "/run/iserd/control"

[metrics]
listen = "127.0.0.1:9860"
sessions = false

[rdma]
device = "verbs:siw0"
crc = false
max-fpdu = 9000

[limits]
sessions = 100
window = 32
memory = "256MiB"
session-memory = 8388608

[timers]
ping = "-1s"
drain = "1m"

[[discovery.access]]
networks = ["192.0.2.0/24"]

[[portal]]
listen = "[::]:3260"
group = 1

[[portal]]
listen = "192.0.2.10:3261"
group = 2
rdma = true

[[target]]
name = "IQN.2026-11.com.example:store1"
alias = "a disk"
groups = [1, 2]
alua = [{group = 2, state = "standby"}]
  [[target.access]]
  name = "hosts"
  initiators = ["iqn.2026-11.com.example:host*"]
  networks = ["192.0.2.0/24", "2001:db8::1"]
  chap = "/etc/iserd/users"
  mutual-chap = "/etc/iserd/self"
  luns = [0, {lun = 3, as = 1, read-only = true}]

  [[target.lun]]
  store = "/srv/a,b.img"
  size = "10GiB"
  block = 4096
  wce = false

  [[target.lun]]
  number = 3
  store = "mem:1MiB"
  read-only = true
  vendor = "EXAMPLE"

[[target]]
name = "iqn.2026-11.com.example:moved"
redirect = {address = "192.0.2.11:3260", permanent = true}
hidden = true
`

func TestWholeFile(t *testing.T) {
	c, err := Parse("iserd.toml", []byte(whole))
	require.NoError(t, err)
	require.Equal(t, "info", c.LogLevel)
	require.Equal(t, "127.0.0.1:9860", c.Metrics.Listen)
	require.False(t, c.Metrics.Sessions)
	require.Equal(t, "verbs:siw0", c.RDMA.Device)
	require.Equal(t, 32, c.Limits.Window)
	require.EqualValues(t, 256<<20, c.Limits.Memory)
	require.EqualValues(t, 8<<20, c.Limits.SessionMemory)
	require.Equal(t, 2048, c.Limits.Connections, "a default")
	require.Equal(t, -time.Second, c.Timers.Ping)
	require.Len(t, c.Portals, 2)
	require.Equal(t, Portal{Listen: "192.0.2.10:3261", Group: 2, RDMA: true, Pos: Pos{"iserd.toml", 31}}, c.Portals[1])
	require.Len(t, c.Targets, 2)
	one := c.Targets[0]
	require.Equal(t, "iqn.2026-11.com.example:store1", one.Name)
	require.Equal(t, []GroupState{{2, scsi.Standby, Pos{"iserd.toml", 40}}}, one.States)
	require.Equal(t, []Mapping{{LUN: 0, As: 0}, {LUN: 3, As: 1, ReadOnly: true}}, one.Access.Rules[0].LUNs)
	require.Equal(t, "/srv/a,,b.img,block=4096,size=10GiB,wce=off", one.LUNs[0].Spec())
	require.Equal(t, 49, one.LUNs[0].Line)
	require.Equal(t, "mem:1MiB,ro,vendor=EXAMPLE", one.LUNs[1].Spec())
	require.Equal(t, 3, one.LUNs[1].Number)
	require.True(t, c.Targets[1].Redirect.Permanent)
	require.True(t, c.Targets[1].Access.Hidden)

	again, err := Parse("saved", c.Encode())
	require.NoError(t, err, "%s", c.Encode())
	require.Equal(t, strip(c), strip(again))
}

// strip takes the positions off, which differ between a file and what is saved of it.
func strip(c *Config) *Config {
	n := c.Clone()
	n.logPos = Pos{}
	n.Metrics.Pos, n.RDMA.Pos, n.Limits.Pos, n.Timers.Pos, n.Discovery.Pos = Pos{}, Pos{}, Pos{}, Pos{}, Pos{}
	rules := func(rs []Rule) (out []Rule) {
		for _, r := range rs {
			r.Pos = Pos{}
			out = append(out, r)
		}
		return out
	}
	n.Discovery.Rules = rules(n.Discovery.Rules)
	for i := range n.Portals {
		n.Portals[i].Pos = Pos{}
	}
	for i := range n.Targets {
		t := &n.Targets[i]
		t.Pos, t.Redirect.Pos, t.Access.Pos = Pos{}, Pos{}, Pos{}
		t.Access.Rules = rules(t.Access.Rules)
		for j := range t.States {
			t.States[j].Pos = Pos{}
		}
		for j := range t.LUNs {
			t.LUNs[j].Pos = Pos{}
		}
	}
	return n
}

// TestAllMistakesAtOnce: each has its line, and none hides another.
func TestAllMistakesAtOnce(t *testing.T) {
	_, err := Parse("bad.toml", []byte(`log-level = "loud"
colour = "red"
[metrics]
listen = "nowhere"
[limits]
window = 0
memory = "lots"
sessions = "many"
[timers]
login = "soon"
[[portal]]
listen = "here"
[[portal]]
advertise = "192.0.2.1:0"
[[target]]
name = "my disk"
[[target]]
name = "iqn.2026-11.com.example:a"
groups = [7]
[[target.lun]]
store = "mem:1MiB"
colour = "red"
[[target.lun]]
number = 0
store = "/srv/a.img"
[[target]]
name = "iqn.2026-11.com.example:A"
[[target.access]]
networks = ["192.0.2.1/24"]
luns = [4]
mutual-chap = "/etc/iserd/self"
[[target.lun]]
store = "/srv/a.img"
block = 1024
[[target.lun]]
store = "/srv/a.img"
`))
	var errs Errors
	require.ErrorAs(t, err, &errs)
	var lines []string
	for _, e := range errs {
		lines = append(lines, e.Error())
	}
	require.Equal(t, []string{
		`bad.toml:1: log-level "loud": want debug, info, warn or error`,
		`bad.toml:2: unknown key "colour" (known here: control, discovery, limits, log-level, metrics, portal, rdma, target, timers)`,
		`bad.toml:3: metrics: "nowhere": want ADDRESS:PORT, with an IPv6 address in brackets`,
		`bad.toml:6: window: 0: want 1 to 65536`,
		`bad.toml:7: memory: bad size "lots" (for example 1GiB)`,
		`bad.toml:8: sessions: want a number`,
		`bad.toml:10: login: "soon": want a time such as 30s or 1m30s`,
		`bad.toml:11: "here": want ADDRESS:PORT, with an IPv6 address in brackets`,
		`bad.toml:13: a portal needs an address to listen on, such as listen = "192.0.2.10:3260"`,
		`bad.toml:15: target name "my disk": iscsi: not an iSCSI name: "my disk": character ' '`,
		`bad.toml:17: target iqn.2026-11.com.example:a: no portal has the group 7`,
		`bad.toml:20: mem:1MiB,colour=red: unknown option "colour" (known: size, ro, block, physical, wce, thin, rotational, removable, iops, bw, threshold, reservations, sanitize, vendor, product, revision, serial, naa, max-transfer)`,
		`bad.toml:23: LUN 0 is there twice`,
		`bad.toml:26: target iqn.2026-11.com.example:a is there twice (before: bad.toml:17)`,
		`bad.toml:28: networks: 192.0.2.1/24: bits are set behind the prefix; did you mean 192.0.2.0/24?`,
		`bad.toml:28: mutual-chap needs chap: the target proves itself to users alone`,
		`bad.toml:28: luns: the target has no LUN 4`,
		`bad.toml:32: /srv/a.img,block=1024: block=1024: want 512 or 4096`,
		`bad.toml:35: /srv/a.img: the same file is named twice`,
	}, lines)
}

func TestBrokenTOML(t *testing.T) {
	_, err := Parse("bad.toml", []byte("a = 1\nb = = 2\n"))
	require.ErrorContains(t, err, "bad.toml:2: ")
	_, err = Parse("bad.toml", []byte("[limits]\nwindow = 1\nwindow = 2\n"))
	require.ErrorContains(t, err, "bad.toml:3: ")
}

// TestSet: an assignment replaces what the file says, whole arrays included, and errs with its own name.
func TestSet(t *testing.T) {
	file := filepath.Join(t.TempDir(), "iserd.toml")
	require.NoError(t, os.WriteFile(file, []byte(whole), 0o600))
	c, err := Load(Source{File: file, Sets: []string{
		"limits.window=64", `log-level = "debug"`, `target=[{name="iqn.2026-11.com.example:x", lun=[{store="mem:1MiB"}]}]`,
	}})
	require.NoError(t, err)
	require.Equal(t, 64, c.Limits.Window)
	require.Equal(t, 100, c.Limits.Sessions)
	require.Equal(t, "debug", c.LogLevel)
	require.Len(t, c.Targets, 1)
	require.Equal(t, "mem:1MiB", c.Targets[0].LUNs[0].Spec())
	for set, want := range map[string]string{
		"limits.window=0": "--set:1: window: 0", "nonsense": "want KEY=VALUE", "limits.colour=1": "--set:1: unknown key",
		"limits.window=": "--set:1: ",
	} {
		_, err = Load(Source{File: file, Sets: []string{set}})
		require.ErrorContains(t, err, want, set)
	}
	_, err = Load(Source{File: filepath.Join(t.TempDir(), "none")})
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestLUNSpec: what is taken apart becomes the same specification again, and the same file.
func TestLUNSpec(t *testing.T) {
	for _, spec := range []string{
		"disk.img", "disk.img,size=1GiB", "/srv/a,,b.img,ro", "mem:64MiB,block=4096,wce=off",
		"null:1TiB,vendor=A,product=B C,serial=1,naa=3000000000000001,rotational=on,thin=off,physical=4KiB,max-transfer=1MiB",
	} {
		l, err := ParseLUN(spec, 3, Pos{})
		require.NoError(t, err)
		require.Equal(t, spec, l.Spec())
	}
	for _, bad := range []string{
		"", "mem:1MiB,ro=yes", "mem:1MiB,physical=5000", "mem:1MiB,naa=12", "mem:1MiB,wce=maybe", "mem:1MiB,iops=0", "mem:1MiB,bw=fast", "mem:1MiB,rotational=1", "mem:1MiB,removable=1",
		"mem:1MiB,reservations=", "mem:1MiB,serial=",
		"mem:1MiB,max-transfer=1000", "x.img,size=100",
	} {
		_, err := ParseLUN(bad, 0, Pos{})
		require.Error(t, err, bad)
	}
	l, err := ParseLUN("mem:1MiB,ro", 0, Pos{})
	require.NoError(t, err)
	l = l.Resized(2 << 20)
	require.Equal(t, "mem:2MiB,ro", l.Spec())
	l = l.With("ro", "", false)
	require.Equal(t, "mem:2MiB", l.Spec())
	l, err = ParseLUN("a.img,size=1MiB", 0, Pos{})
	require.NoError(t, err)
	l = l.Resized(1000001)
	require.Equal(t, "a.img,size=1000001", l.Spec())
}

// TestEncodeIsParse: what is written reads as it was.
func TestEncodeIsParse(t *testing.T) {
	text := rapid.StringMatching(`[ -~äöü]{1,20}`)
	rapid.Check(t, func(t *rapid.T) {
		c := New()
		c.Portals = []Portal{{Listen: "127.0.0.1:0", Group: rapid.IntRange(0, 9).Draw(t, "group")}}
		c.Limits.Window = rapid.IntRange(1, 1<<16).Draw(t, "window")
		c.Timers.Drain = time.Duration(rapid.Int64Range(1, 1<<50).Draw(t, "drain"))
		tg := Target{Name: "iqn.2026-11.com.example:a", Alias: text.Draw(t, "alias")}
		for i := range rapid.IntRange(0, 4).Draw(t, "luns") {
			l := LUN{Number: i * 3, Store: "/srv/" + text.Draw(t, "path")}
			if rapid.Bool().Draw(t, "ro") {
				l.Options = append(l.Options, Option{Name: "ro"})
			}
			tg.LUNs = append(tg.LUNs, l)
			tg.Access.Rules = append(tg.Access.Rules, Rule{Name: text.Draw(t, "rule"), CHAP: text.Draw(t, "file"), LUNs: []Mapping{{LUN: i * 3, As: i}}})
		}
		c.Targets = []Target{tg}
		if len(c.Check()) > 0 {
			t.Skip("the same file twice")
		}
		again, err := Parse("saved", c.Encode())
		if err != nil {
			t.Fatalf("%v\n%s", err, c.Encode())
		}
		require.Equal(t, strip(c), strip(again))
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("target = [{lun = [1, {}]}]\n[limits]\nwindow = 1e9\n"))
	f.Add([]byte("a.b.c = 1\n[[a.d]]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse("f", text)
		var errs Errors
		if err != nil {
			if !errors.As(err, &errs) || len(errs) == 0 {
				t.Fatal("an error without a place")
			}
			return
		}
		if _, err := Parse("saved", c.Encode()); err != nil {
			t.Fatalf("what was saved does not parse: %v\n%s", err, c.Encode())
		}
	})
}

// TestShares: the three uses of memory are never more than what was set, and none is without.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Limits{Memory: rapid.Int64Range(LeastMemory, 1<<40).Draw(t, "memory")}
		tcp, data, receives := l.Shares()
		require.Equal(t, l.Memory, tcp+data+receives)
		require.Zero(t, tcp%memoryPiece)
		require.GreaterOrEqual(t, min(tcp, data, receives), int64(8<<20))
	})
	l := New().Limits
	tcp, data, receives := l.Shares()
	require.Equal(t, []int64{512 << 20, 256 << 20, 256 << 20}, []int64{tcp, data, receives})
}
