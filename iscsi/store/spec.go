package store

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Spec is a store as a person names it on a command line.
type Spec struct {
	Kind     string // "file" (a block device, too), "memory" or "null"
	Path     string // of a file
	Size     int64  // in octets; 0 if it was not given
	ReadOnly bool
	// Options are the further options that the caller of Parse knows, by name; a bare word has an
	// empty value.
	Options map[string]string

	text string
}

// MaxMemory is the largest memory store that a specification may ask for, in octets: a mistake rather than a wish is larger, since
// processors address less.
const MaxMemory = 1 << 46

// Parse reads a store specification:
//
//	disk.img                    an existing file or block device
//	disk.img,size=1GiB          the same, created sparse with that size if it is missing
//	file:disk.img,ro            read-only; "file:" is for names that look like one of the others
//	mem:64MiB                   memory
//	null:1TiB                   reads zeros, drops writes
//
// A comma in a file's name is written twice. Words in options name further options that the caller
// understands, such as "block" for block=4096; they come back in Spec.Options.
func Parse(text string, options ...string) (*Spec, error) {
	s := &Spec{text: text}
	fields := splitCommas(text)
	kind, rest, ok := strings.Cut(fields[0], ":")
	switch {
	case ok && kind == "mem":
		s.Kind = "memory"
	case ok && kind == "null":
		s.Kind = "null"
	case ok && kind == "file":
		s.Kind, s.Path = "file", rest
	default:
		s.Kind, s.Path = "file", fields[0]
	}
	if s.Kind == "file" && s.Path == "" {
		return nil, s.errorf("no file name")
	}
	if s.Kind != "file" {
		size, err := ParseSize(rest)
		if err != nil {
			return nil, s.errorf("%w", err)
		}
		if s.Kind == "memory" && size > MaxMemory {
			return nil, s.errorf("no memory holds more than %s (null:SIZE may be larger)", FormatSize(MaxMemory))
		}
		s.Size = size
	}
	for _, f := range fields[1:] {
		if err := s.option(f, options); err != nil {
			return nil, s.errorf("%w", err)
		}
	}
	return s, nil
}

func (s *Spec) option(field string, known []string) error {
	name, value, hasValue := strings.Cut(field, "=")
	switch {
	case name == "size":
		if s.Kind != "file" {
			return fmt.Errorf("the size is given as %s", s.text[:strings.IndexByte(s.text, ':')+1]+"SIZE")
		}
		if s.Size != 0 {
			return errors.New("size is given twice")
		}
		size, err := ParseSize(value)
		s.Size = size
		return err
	case name == "ro" && hasValue:
		return errors.New("ro takes no value")
	case name == "ro":
		s.ReadOnly = true
	case slices.Contains(known, name):
		if _, twice := s.Options[name]; twice {
			return fmt.Errorf("%s is given twice", name)
		}
		if s.Options == nil {
			s.Options = make(map[string]string)
		}
		s.Options[name] = value
	default:
		return fmt.Errorf("unknown option %q (known: %s)", name, strings.Join(append([]string{"size", "ro"}, known...), ", "))
	}
	return nil
}

func (s *Spec) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: "+format, append([]any{s.text}, args...)...)
}

// String is the specification as it was written.
func (s *Spec) String() string { return s.text }

// splitCommas splits at single commas; two are one in the text.
func splitCommas(text string) []string {
	var fields []string
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] != ',':
			b.WriteByte(text[i])
		case i+1 < len(text) && text[i+1] == ',':
			b.WriteByte(',')
			i++
		default:
			fields = append(fields, b.String())
			b.Reset()
		}
	}
	return append(fields, b.String())
}

// Open opens the store, creating a file that is missing if a size was given. An existing file is
// never resized or overwritten: one of another size than was given is refused as it stands. Errors
// are one line that names the specification.
func (s *Spec) Open() (Store, error) {
	switch s.Kind {
	case "memory":
		return s.readOnly(NewMemory(s.Size))
	case "null":
		return s.readOnly(NewNull(s.Size))
	}
	f, err := OpenFile(s.Path, FileOptions{ReadOnly: s.ReadOnly})
	switch {
	case errors.Is(err, fs.ErrNotExist) && s.Size == 0:
		return nil, s.errorf("no such file (size=SIZE creates it)")
	case errors.Is(err, fs.ErrNotExist) && s.ReadOnly:
		return nil, s.errorf("no such file, and ro creates none")
	case errors.Is(err, fs.ErrNotExist):
		f, err = CreateFile(s.Path, s.Size)
	}
	switch {
	case errors.Is(err, ErrLocked) && openHere(s.Path):
		return nil, s.errorf("the same file is named twice")
	case errors.Is(err, ErrLocked):
		return nil, s.errorf("in use by another process")
	case errors.Is(err, fs.ErrPermission):
		return nil, s.errorf("permission denied")
	case err != nil:
		return nil, s.errorf("%s", strings.TrimPrefix(err.Error(), "store: "))
	}
	if size := f.Size(); s.Size != 0 && size != s.Size {
		f.Close()
		return nil, s.errorf("the existing %s has %s, not %s; it is left as it is (leave size out to use it)",
			f.info.Kind, FormatSize(size), FormatSize(s.Size))
	}
	if f.Size() == 0 {
		f.Close()
		return nil, s.errorf("the existing %s is empty", f.info.Kind)
	}
	return f, nil
}

// openHere tells whether this process itself has the file open.
func openHere(path string) bool {
	fi, err := os.Stat(path)
	if err != nil {
		return false
	}
	openFiles.mu.Lock()
	defer openFiles.mu.Unlock()
	return slices.ContainsFunc(openFiles.list, func(s *File) bool { return os.SameFile(s.key, fi) })
}

// readOnly protects a store that knows no read-only mode of its own.
func (s *Spec) readOnly(st Store, err error) (Store, error) {
	switch {
	case err != nil:
		return nil, s.errorf("%w", err)
	case s.ReadOnly:
		return &protected{Store: st}, nil
	}
	return st, nil
}

// protected refuses writes.
type protected struct{ Store }

func (p *protected) WriteAt([]byte, int64) (int, error) { return 0, ErrReadOnly }

func (p *protected) Info() Info {
	info := p.Store.Info()
	info.ReadOnly, info.DiscardGranularity, info.AtomicWrite = true, 0, 0
	return info
}

// Open parses and opens a specification that has no further options.
func Open(text string) (Store, error) {
	s, err := Parse(text)
	if err != nil {
		return nil, err
	}
	return s.Open()
}

var units = []struct {
	name  string
	shift uint
}{{"EiB", 60}, {"PiB", 50}, {"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}}

// decimal units count in thousands.
var decimal = map[string]int64{"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "pb": 1e15, "eb": 1e18}

// ParseSize reads a size in octets, above 0: a number, or one with a unit. KiB, MiB, GiB, TiB, PiB, EiB and
// the bare letters K, M, G, T, P, E count in 1024s; kB, MB, GB and so on in 1000s. Case does not
// matter.
func ParseSize(text string) (int64, error) {
	n, err := ParseOctets(text)
	if err == nil && n == 0 {
		return 0, fmt.Errorf("size %q is zero", text)
	}
	return n, err
}

// ParseOctets is ParseSize for what may be 0, an offset say.
func ParseOctets(text string) (int64, error) {
	digits := 0
	for digits < len(text) && text[digits] >= '0' && text[digits] <= '9' {
		digits++
	}
	n, err := strconv.ParseInt(text[:digits], 10, 64)
	unit := strings.ToLower(strings.TrimSpace(text[digits:]))
	factor := int64(0)
	switch {
	case unit == "" || unit == "b":
		factor = 1
	case decimal[unit] != 0:
		factor = decimal[unit]
	default:
		for _, u := range units {
			if name := strings.ToLower(u.name); unit == name || unit == name[:1] {
				factor = 1 << u.shift
			}
		}
	}
	switch {
	case digits == 0 || err != nil && !errors.Is(err, strconv.ErrRange) || factor == 0:
		return 0, fmt.Errorf("bad size %q (for example 1GiB)", text)
	case err != nil || n > math.MaxInt64/factor:
		return 0, fmt.Errorf("size %q is too large", text)
	}
	return n * factor, nil
}

// FormatSize writes a size the short way that is exact.
func FormatSize(n int64) string {
	for _, u := range units {
		if n != 0 && n%(1<<u.shift) == 0 {
			return strconv.FormatInt(n>>u.shift, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10) + " octets"
}
