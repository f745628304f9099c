package config

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"goiwarp/iscsi/scsi"
)

// Source is where a configuration comes from.
type Source struct {
	// File is the path of a TOML file; empty: none.
	File string
	// Sets are assignments in TOML, "limits.window = 64", which replace what the file says.
	Sets []string
}

// Load reads a configuration and checks it as a whole. The error is an Errors with every mistake, or the file cannot be read. What
// it names, such as disks and secrets, is not opened.
func Load(src Source) (*Config, error) {
	c, errs, err := src.load()
	if err != nil {
		return nil, err
	}
	if errs = append(errs, c.Check()...); len(errs) > 0 {
		return nil, sorted(errs)
	}
	return c, nil
}

// load reads without the checks that the parts need of each other.
func (src Source) load() (*Config, Errors, error) {
	var d document
	if src.File != "" {
		text, err := os.ReadFile(src.File)
		if err != nil {
			return nil, nil, fmt.Errorf("configuration: %w", err)
		}
		d.files = append(d.files, src.File)
		d.read(src.File, text)
	}
	for _, s := range src.Sets {
		if !strings.Contains(s, "=") {
			d.errs = append(d.errs, &Error{Pos{File: "--set"}, fmt.Sprintf("%q: want KEY=VALUE, for example limits.window=64", s)})
			continue
		}
		d.read("--set", []byte(s))
	}
	c := New()
	if len(d.errs) == 0 { // else half of it would be missing, and every reference to that half a further error
		c.decode(d.top())
	}
	return c, d.errs, nil
}

// Parse reads a configuration's text and checks it.
func Parse(file string, text []byte) (*Config, error) {
	d := document{files: []string{file}}
	d.read(file, text)
	c := New()
	if len(d.errs) == 0 {
		c.decode(d.top())
	}
	if errs := append(d.errs, c.Check()...); len(errs) > 0 {
		return nil, sorted(errs)
	}
	return c, nil
}

// sorted are errors in the order of their lines, each once.
func sorted(errs Errors) Errors {
	errs.Sort()
	return slices.CompactFunc(errs, func(a, b *Error) bool { return *a == *b })
}

// Sort brings the mistakes into the order of their lines.
func (e Errors) Sort() {
	slices.SortStableFunc(e, func(a, b *Error) int {
		if a.File != b.File {
			return strings.Compare(b.File, a.File) // flags come last
		}
		return a.Line - b.Line
	})
}

const many = 1 << 20

func (c *Config) decode(t *table) {
	t.string("log-level", &c.LogLevel)
	c.logPos = t.d.pos["log-level"]
	t.string("control", &c.Control)
	if m := t.table("metrics"); m != nil {
		c.Metrics.Pos = m.pos()
		m.string("listen", &c.Metrics.Listen)
		m.bool("sessions", &c.Metrics.Sessions)
		m.end()
	}
	if r := t.table("rdma"); r != nil {
		c.RDMA.Pos = r.pos()
		r.string("device", &c.RDMA.Device)
		r.bool("crc", &c.RDMA.CRC)
		r.int("max-fpdu", &c.RDMA.MaxFPDU, 0, 65535)
		r.end()
	}
	if l := t.table("limits"); l != nil {
		v := &c.Limits
		v.Pos = l.pos()
		l.int("sessions", &v.Sessions, 1, 65535)
		l.int("initiator-sessions", &v.InitiatorSessions, 1, 65535)
		l.int("connections", &v.Connections, 1, many)
		l.int("logins", &v.Logins, 1, many)
		l.int("commands", &v.Commands, 0, many)
		l.int("window", &v.Window, 1, 1<<16)
		l.int("workers", &v.Workers, 1, 4096)
		l.size("memory", &v.Memory)
		l.size("session-memory", &v.SessionMemory)
		l.end()
	}
	if l := t.table("timers"); l != nil {
		v := &c.Timers
		v.Pos = l.pos()
		l.duration("login", &v.Login, false)
		l.duration("ping", &v.Ping, true)
		l.duration("dead", &v.Dead, false)
		l.duration("logout", &v.Logout, false)
		l.duration("drain", &v.Drain, false)
		l.end()
	}
	if a := t.table("discovery"); a != nil {
		c.Discovery.decode(a)
		a.end()
	}
	for _, p := range t.tables("portal") {
		v := Portal{Pos: p.pos()}
		p.string("listen", &v.Listen)
		p.string("advertise", &v.Advertise)
		p.int("group", &v.Group, 1, 65535)
		p.bool("rdma", &v.RDMA)
		p.end()
		c.Portals = append(c.Portals, v)
	}
	for _, e := range t.tables("target") {
		v := Target{Pos: e.pos()}
		v.decode(e)
		c.Targets = append(c.Targets, v)
	}
	t.end()
}

func (v *Target) decode(t *table) {
	t.string("name", &v.Name)
	t.string("alias", &v.Alias)
	t.tags("groups", &v.Groups)
	for _, s := range t.tables("alua") {
		g := GroupState{Group: 1, Pos: s.pos()}
		s.int("group", &g.Group, 1, 65535)
		name := g.State.String()
		s.string("state", &name)
		var err error
		if g.State, err = scsi.ParseAccessState(name); err != nil {
			s.fail("state", "%v", strings.TrimPrefix(err.Error(), "scsi: "))
		}
		s.end()
		v.States = append(v.States, g)
	}
	if r := t.table("redirect"); r != nil {
		v.Redirect.Pos = r.pos()
		r.string("address", &v.Redirect.Address)
		r.bool("permanent", &v.Redirect.Permanent)
		r.tags("groups", &v.Redirect.Groups)
		r.end()
		if v.Redirect.Address == "" {
			r.d.fail(r.path, "a redirection needs an address")
		}
	}
	t.bool("hidden", &v.Access.Hidden)
	v.Access.decode(t)
	next := 0
	for _, l := range t.tables("lun") {
		lun := LUN{Number: next, Pos: l.pos()}
		lun.decode(l)
		next = lun.Number + 1
		v.LUNs = append(v.LUNs, lun)
	}
	t.end()
	slices.SortStableFunc(v.LUNs, func(a, b LUN) int { return a.Number - b.Number })
}

// decode reads what is not a number or a store as an option of that name.
func (l *LUN) decode(t *table) {
	t.int("number", &l.Number, 0, 1<<14-1)
	t.string("store", &l.Store)
	readOnly := false
	t.bool("read-only", &readOnly)
	if readOnly {
		l.Options = append(l.Options, Option{Name: "ro"})
	}
	for _, k := range t.rest() {
		o := Option{Name: k}
		switch v := t.m[k].(type) {
		case string:
			o.Value = v
		case int64:
			o.Value = strconv.FormatInt(v, 10)
		case bool:
			o.Value = map[bool]string{true: "on", false: "off"}[v]
			if k == "ro" {
				t.d.fail(join(t.path, k), "ro: it is called read-only here")
				continue
			}
		default:
			t.d.fail(join(t.path, k), "%s: want text, a number, true or false", k)
			continue
		}
		l.Options = append(l.Options, o)
	}
}

// decode reads the keys of an access list, which share a table with others.
func (a *Access) decode(t *table) {
	a.Pos = t.pos()
	t.strings("chap-algorithms", &a.Algorithms)
	for _, e := range t.tables("access") {
		r := Rule{Pos: e.pos()}
		e.string("name", &r.Name)
		e.strings("initiators", &r.Initiators)
		e.strings("networks", &r.Networks)
		e.string("chap", &r.CHAP)
		e.string("mutual-chap", &r.MutualCHAP)
		e.bool("read-only", &r.ReadOnly)
		if v, ok := e.get("luns"); ok {
			r.LUNs = []Mapping{}
			mappings(e, v, &r.LUNs)
		}
		e.end()
		a.Rules = append(a.Rules, r)
	}
}

// mappings reads a list of LUNs: numbers, or tables that give one another number or make it read-only.
func mappings(t *table, v any, to *[]Mapping) {
	array, ok := v.([]any)
	if !ok {
		t.fail("luns", "want a list such as [0, 1, {lun = 2, as = 0, read-only = true}]")
		return
	}
	for i, e := range array {
		path := fmt.Sprintf("%s[%d]", join(t.path, "luns"), i)
		switch e := e.(type) {
		case int64:
			if e < 0 || e > 1<<14-1 {
				t.d.fail(path, "luns: %d: want 0 to 16383", e)
				continue
			}
			*to = append(*to, Mapping{LUN: int(e), As: int(e)})
		case map[string]any:
			m := &table{d: t.d, path: path, m: e}
			x := Mapping{As: -1}
			m.int("lun", &x.LUN, 0, 1<<14-1)
			m.int("as", &x.As, 0, 1<<14-1)
			m.bool("read-only", &x.ReadOnly)
			m.end()
			if x.As < 0 {
				x.As = x.LUN
			}
			*to = append(*to, x)
		default:
			t.d.fail(path, "luns: want a list such as [0, 1, {lun = 2, as = 0, read-only = true}]")
		}
	}
}
