package config

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"goiwarp/iscsi/scsi"
	"goiwarp/iscsi/store"
)

// LUN is a logical unit: a store, and options, as --lun has them.
type LUN struct {
	Number int
	// Store is a path, or mem:SIZE or null:SIZE.
	Store string
	// Options are the options of store and logical unit by name, as in a specification: "size", "ro", "block" and the others.
	Options []Option
	Pos
}

// Option is one option; a bare word has no value.
type Option struct{ Name, Value string }

// LUNOptions are the names of the options that say something of the logical unit rather than of its store.
func LUNOptions() []string {
	names := make([]string, len(lunOptions))
	for i, o := range lunOptions {
		names[i] = o.name
	}
	return names
}

// lunOption is one option of a logical unit.
type lunOption struct {
	name string
	set  func(c *scsi.LUConfig, v string) error
}

var lunOptions = []lunOption{
	{"block", func(c *scsi.LUConfig, v string) (err error) {
		switch v {
		case "512":
			c.BlockSize = 512
		case "4096":
			c.BlockSize = 4096
		default:
			err = errors.New("want 512 or 4096")
		}
		return err
	}},
	{"physical", func(c *scsi.LUConfig, v string) error {
		n, err := store.ParseSize(v)
		block := int64(max(c.BlockSize, 512))
		for c.PhysicalExponent = 0; err == nil && block<<c.PhysicalExponent < n && c.PhysicalExponent < 7; {
			c.PhysicalExponent++
		}
		if err != nil || block<<c.PhysicalExponent != n {
			return fmt.Errorf("want %d octets times a power of two up to 128", block)
		}
		return nil
	}},
	{"wce", func(c *scsi.LUConfig, v string) error {
		on, err := onOff(v)
		c.WriteThrough = !on
		return err
	}},
	{"thin", func(c *scsi.LUConfig, v string) error {
		on, err := onOff(v)
		c.Provisioning = scsi.ProvisionFull
		if on {
			c.Provisioning = scsi.ProvisionThin
		}
		return err
	}},
	{"rotational", func(c *scsi.LUConfig, v string) (err error) {
		if rpm, notANumber := strconv.Atoi(v); notANumber == nil {
			c.RotationRate = rpm
			if rpm <= 0x400 || rpm >= 0xffff {
				err = errors.New("want 1025 to 65534 revolutions per minute, on or off")
			}
			return err
		}
		c.Rotational, err = onOff(v)
		return err
	}},
	{"removable", func(c *scsi.LUConfig, v string) (err error) {
		c.Removable = true // the bare word
		if v != "" {
			c.Removable, err = onOff(v)
		}
		return err
	}},
	{"iops", func(c *scsi.LUConfig, v string) (err error) {
		c.IOPS, err = strconv.ParseInt(v, 10, 64)
		if err != nil || c.IOPS < 1 {
			return errors.New("want commands per second, at least 1")
		}
		return nil
	}},
	{"bw", func(c *scsi.LUConfig, v string) (err error) {
		c.Bandwidth, err = store.ParseSize(strings.TrimSuffix(v, "/s"))
		return err
	}},
	{"threshold", func(c *scsi.LUConfig, v string) (err error) {
		c.SpaceThreshold, err = store.ParseSize(v)
		return err
	}},
	{"reservations", func(c *scsi.LUConfig, v string) error { return keep(&c.Reservations, v) }},
	{"sanitize", func(c *scsi.LUConfig, v string) error { return keep(&c.Sanitizing, v) }},
	{"vendor", func(c *scsi.LUConfig, v string) error { return text(&c.Vendor, v, 8) }},
	{"product", func(c *scsi.LUConfig, v string) error { return text(&c.Product, v, 16) }},
	{"revision", func(c *scsi.LUConfig, v string) error { return text(&c.Revision, v, 4) }},
	{"serial", func(c *scsi.LUConfig, v string) error { return text(&c.Serial, v, 36) }},
	{"naa", func(c *scsi.LUConfig, v string) (err error) {
		c.NAA, err = hex.DecodeString(v)
		if n := len(c.NAA); err != nil || n != 8 && n != 16 || (n == 16) != (c.NAA[0]>>4 == 6) {
			return errors.New("want 16 hexadecimal digits, or 32 that begin with 6")
		}
		return nil
	}},
	{"max-transfer", func(c *scsi.LUConfig, v string) error {
		n, err := store.ParseSize(v)
		if err != nil || n > 1<<30 || n%4096 != 0 {
			return errors.New("want a multiple of 4KiB up to 1GiB")
		}
		c.MaxTransfer = int(n)
		return nil
	}},
}

// keep names the file that a piece of a disk's state is kept in.
func keep(to *scsi.StateStore, v string) error {
	switch v {
	case "":
		return errors.New("want a file to keep that in, or off")
	case "off":
		*to = nil
	default:
		*to = store.StateFile(v)
	}
	return nil
}

func onOff(v string) (bool, error) {
	switch v {
	case "on":
		return true, nil
	case "off":
		return false, nil
	}
	return false, errors.New("want on or off")
}

func text(to *string, v string, most int) error {
	if v == "" || len(v) > most {
		return fmt.Errorf("want 1 to %d characters", most)
	}
	for i := range len(v) {
		if v[i] < 0x20 || v[i] > 0x7e {
			return errors.New("want printable ASCII")
		}
	}
	*to = v
	return nil
}

// ParseLUN takes a specification apart, as --lun has it.
func ParseLUN(spec string, number int, pos Pos) (LUN, error) {
	l := LUN{Number: number, Pos: pos}
	fields := splitCommas(spec)
	l.Store = fields[0]
	for _, f := range fields[1:] {
		name, value, _ := strings.Cut(f, "=")
		l.Options = append(l.Options, Option{name, value})
	}
	_, _, err := l.Parse()
	return l, err
}

// splitCommas splits at single commas; two are one in the text.
func splitCommas(s string) []string {
	const comma = "\x00"
	fields := strings.Split(strings.ReplaceAll(s, ",,", comma), ",")
	for i := range fields {
		fields[i] = strings.ReplaceAll(fields[i], comma, ",")
	}
	return fields
}

// Spec is the specification as --lun has it.
func (l *LUN) Spec() string {
	var b strings.Builder
	b.WriteString(strings.ReplaceAll(l.Store, ",", ",,"))
	for _, o := range l.Options {
		b.WriteByte(',')
		b.WriteString(o.Name)
		if o.Value != "" || o.Name != "ro" {
			b.WriteByte('=')
			b.WriteString(strings.ReplaceAll(o.Value, ",", ",,"))
		}
	}
	return b.String()
}

// Parse checks the specification. The logical unit's identity and log are left to the caller.
func (l *LUN) Parse() (*store.Spec, scsi.LUConfig, error) {
	var cfg scsi.LUConfig
	spec, err := store.Parse(l.Spec(), LUNOptions()...)
	if err != nil {
		return nil, cfg, err
	}
	cfg.ReadOnly = spec.ReadOnly
	cfg.Reservations, cfg.Sanitizing = beside(spec, ".pr"), beside(spec, ".sanitize")
	for _, o := range lunOptions {
		v, ok := spec.Options[o.name]
		if !ok {
			continue
		}
		if err := o.set(&cfg, v); err != nil {
			return nil, cfg, fmt.Errorf("%s: %s=%s: %w", l.Spec(), o.name, v, err)
		}
	}
	if block := int64(max(cfg.BlockSize, 512)); spec.Size > 0 && spec.Size < block {
		return nil, cfg, fmt.Errorf("%s: %d octets hold no block of %d", l.Spec(), spec.Size, block) // before a file is made of that size
	}
	return spec, cfg, nil
}

// beside keeps what is to outlive a restart in a file beside the image. Block devices have no such place, and memory ends with the process
// anyway: nil.
func beside(spec *store.Spec, suffix string) scsi.StateStore {
	if spec.Kind != "file" {
		return nil
	}
	if fi, err := os.Stat(spec.Path); err == nil && !fi.Mode().IsRegular() {
		return nil
	}
	return store.StateFile(spec.Path + suffix)
}

// Option is the value of an option.
func (l *LUN) Option(name string) (string, bool) {
	for _, o := range l.Options {
		if o.Name == name {
			return o.Value, true
		}
	}
	return "", false
}

// With is the logical unit with an option set or, if on is false, taken away.
func (l *LUN) With(name, value string, on bool) LUN {
	n := *l
	n.Options = nil
	for _, o := range l.Options {
		if o.Name != name {
			n.Options = append(n.Options, o)
		}
	}
	if on {
		n.Options = append(n.Options, Option{name, value})
	}
	return n
}

// Resized is the logical unit with another size.
func (l *LUN) Resized(size int64) LUN {
	if kind, _, ok := strings.Cut(l.Store, ":"); ok && (kind == "mem" || kind == "null") {
		n := *l
		n.Store = kind + ":" + formatSize(size)
		return n
	}
	return l.With("size", formatSize(size), true)
}

// Limited is the logical unit with other limits of commands and octets per second; 0 is none, and nil leaves one as it is.
func (l *LUN) Limited(iops, bandwidth *int64) LUN {
	n := *l
	if iops != nil {
		n = n.With("iops", strconv.FormatInt(*iops, 10), *iops > 0)
	}
	if bandwidth != nil {
		n = n.With("bw", formatSize(*bandwidth), *bandwidth > 0)
	}
	return n
}

// formatSize is a size as ParseSize reads it.
func formatSize(n int64) string {
	if s := store.FormatSize(n); !strings.HasSuffix(s, " octets") {
		return s
	}
	return strconv.FormatInt(n, 10)
}
