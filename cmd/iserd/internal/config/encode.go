package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Encode writes c as a TOML file that Parse reads as the same configuration. What has its default is left out.
func (c *Config) Encode() []byte {
	var w writer
	def := New()
	w.string("log-level", c.LogLevel, def.LogLevel)
	w.string("control", c.Control, "")
	w.table("metrics", func() {
		w.string("listen", c.Metrics.Listen, "")
		w.bool("sessions", c.Metrics.Sessions, def.Metrics.Sessions)
	})
	w.table("rdma", func() {
		w.string("device", c.RDMA.Device, def.RDMA.Device)
		w.bool("crc", c.RDMA.CRC, def.RDMA.CRC)
		w.int("max-fpdu", c.RDMA.MaxFPDU, 0)
	})
	w.table("limits", func() {
		l, d := &c.Limits, &def.Limits
		w.int("sessions", l.Sessions, d.Sessions)
		w.int("initiator-sessions", l.InitiatorSessions, d.InitiatorSessions)
		w.int("connections", l.Connections, d.Connections)
		w.int("logins", l.Logins, d.Logins)
		w.int("commands", l.Commands, d.Commands)
		w.int("window", l.Window, d.Window)
		w.int("workers", l.Workers, d.Workers)
		w.size("memory", l.Memory, d.Memory)
		w.size("session-memory", l.SessionMemory, d.SessionMemory)
	})
	w.table("timers", func() {
		l, d := &c.Timers, &def.Timers
		w.duration("login", l.Login, d.Login)
		w.duration("ping", l.Ping, d.Ping)
		w.duration("dead", l.Dead, d.Dead)
		w.duration("logout", l.Logout, d.Logout)
		w.duration("drain", l.Drain, d.Drain)
	})
	w.table("discovery", func() { w.strings("chap-algorithms", c.Discovery.Algorithms) })
	w.rules("discovery", c.Discovery.Rules)
	for _, p := range c.Portals {
		w.header("[[portal]]")
		w.string("listen", p.Listen, "")
		w.string("advertise", p.Advertise, "")
		w.int("group", p.Group, 0)
		w.bool("rdma", p.RDMA, false)
	}
	for i := range c.Targets {
		w.target(&c.Targets[i])
	}
	return w.b
}

func (w *writer) target(t *Target) {
	w.header("[[target]]")
	w.string("name", t.Name, "")
	w.string("alias", t.Alias, "")
	w.ints("groups", t.Groups)
	if len(t.States) > 0 {
		states := make([]string, len(t.States))
		for i, s := range t.States {
			states[i] = fmt.Sprintf("{group = %d, state = %s}", s.Group, quote(s.State.String()))
		}
		w.line("alua", "["+strings.Join(states, ", ")+"]")
	}
	w.strings("chap-algorithms", t.Access.Algorithms)
	w.bool("hidden", t.Access.Hidden, false)
	w.table("target.redirect", func() {
		w.string("address", t.Redirect.Address, "")
		w.bool("permanent", t.Redirect.Permanent, false)
		w.ints("groups", t.Redirect.Groups)
	})
	w.rules("target", t.Access.Rules)
	for _, l := range t.LUNs {
		w.header("[[target.lun]]")
		w.line("number", strconv.Itoa(l.Number))
		w.string("store", l.Store, "")
		for _, o := range l.Options {
			if o.Name == "ro" {
				w.bool("read-only", true, false)
				continue
			}
			w.line(quoteKey(o.Name), quote(o.Value))
		}
	}
}

func (w *writer) rules(table string, rules []Rule) {
	for _, r := range rules {
		w.header("[[" + table + ".access]]")
		w.string("name", r.Name, "")
		w.strings("initiators", r.Initiators)
		w.strings("networks", r.Networks)
		w.string("chap", r.CHAP, "")
		w.string("mutual-chap", r.MutualCHAP, "")
		w.bool("read-only", r.ReadOnly, false)
		if r.LUNs == nil {
			continue
		}
		luns := make([]string, len(r.LUNs))
		for i, m := range r.LUNs {
			luns[i] = strconv.Itoa(m.LUN)
			if m.As != m.LUN || m.ReadOnly {
				luns[i] = fmt.Sprintf("{lun = %d, as = %d, read-only = %v}", m.LUN, m.As, m.ReadOnly)
			}
		}
		w.line("luns", "["+strings.Join(luns, ", ")+"]")
	}
}

// writer writes TOML.
type writer struct{ b []byte }

func (w *writer) header(h string) {
	if len(w.b) > 0 {
		w.b = append(w.b, '\n')
	}
	w.b = append(append(w.b, h...), '\n')
}

// table writes a table if f has something for it.
func (w *writer) table(name string, f func()) {
	before := len(w.b)
	w.header("[" + name + "]")
	empty := len(w.b)
	if f(); len(w.b) == empty {
		w.b = w.b[:before]
	}
}

func (w *writer) line(key, value string) {
	w.b = append(w.b, key+" = "+value+"\n"...)
}

func (w *writer) string(key, v, def string) {
	if v != def {
		w.line(key, quote(v))
	}
}

func (w *writer) bool(key string, v, def bool) {
	if v != def {
		w.line(key, strconv.FormatBool(v))
	}
}

func (w *writer) int(key string, v, def int) {
	if v != def {
		w.line(key, strconv.Itoa(v))
	}
}

func (w *writer) size(key string, v, def int64) {
	if v != def {
		w.line(key, quote(formatSize(v)))
	}
}

func (w *writer) duration(key string, v, def time.Duration) {
	if v != def {
		w.line(key, quote(v.String()))
	}
}

func (w *writer) strings(key string, v []string) {
	if len(v) == 0 {
		return
	}
	quoted := make([]string, len(v))
	for i := range v {
		quoted[i] = quote(v[i])
	}
	w.line(key, "["+strings.Join(quoted, ", ")+"]")
}

func (w *writer) ints(key string, v []int) {
	if len(v) > 0 {
		w.line(key, strings.ReplaceAll(fmt.Sprint(slices.Clone(v)), " ", ", "))
	}
}

// quote writes a basic string.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, "\\u%04X", r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// quoteKey writes a key, bare where it can be.
func quoteKey(k string) string {
	if k != "" && strings.Trim(k, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == "" {
		return k
	}
	return quote(k)
}
