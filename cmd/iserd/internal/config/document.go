package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"goiwarp/iscsi/store"
)

// MaxFile bounds a configuration file, in octets.
const MaxFile = 4 << 20

// document is a TOML text as a tree, with the line of each key, so that every mistake can be told with its place and all of them
// at once.
type document struct {
	root  map[string]any
	pos   map[string]Pos // by path, such as target[0].lun[1].size
	errs  Errors
	files []string
}

// read adds a text to the document; what it says replaces what an earlier one said under the same key.
func (d *document) read(file string, text []byte) {
	if d.root == nil {
		d.root, d.pos = make(map[string]any), make(map[string]Pos)
	}
	if len(text) > MaxFile {
		d.errs = append(d.errs, &Error{Pos{file, 1}, fmt.Sprintf("the file has more than %d octets", MaxFile)})
		return
	}
	var tree map[string]any
	if err := toml.Unmarshal(text, &tree); err != nil {
		var at *toml.DecodeError
		pos := Pos{File: file, Line: 1}
		if errors.As(err, &at) {
			pos.Line, _ = at.Position()
		}
		d.errs = append(d.errs, &Error{pos, strings.TrimPrefix(err.Error(), "toml: ")})
		return
	}
	d.locate(file, text)
	merge(d.root, tree)
}

// merge lays from over into: tables are merged, everything else is replaced.
func merge(into, from map[string]any) {
	for k, v := range from {
		if t, ok := v.(map[string]any); ok {
			if old, ok := into[k].(map[string]any); ok {
				merge(old, t)
				continue
			}
		}
		into[k] = v
	}
}

// locate notes the line of each key. The text is known to be well formed.
func (d *document) locate(file string, text []byte) {
	var p unstable.Parser
	p.Reset(text)
	arrays := make(map[string]int) // arrays of tables: how many elements so far
	// enter is the path of a table's header.
	enter := func(keys []string, array bool) string {
		path := ""
		for i, k := range keys {
			path = join(path, k)
			if array && i == len(keys)-1 {
				arrays[path]++
			}
			if n := arrays[path]; n > 0 {
				path += "[" + strconv.Itoa(n-1) + "]"
			}
		}
		return path
	}
	table := ""
	for p.NextExpression() {
		e := p.Expression()
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			keys, line := keysOf(&p, e)
			table = enter(keys, e.Kind == unstable.ArrayTable)
			d.pos[table] = Pos{file, line}
		case unstable.KeyValue:
			d.locateValue(&p, file, table, e)
		}
	}
}

func (d *document) locateValue(p *unstable.Parser, file, table string, kv *unstable.Node) {
	keys, line := keysOf(p, kv)
	path := table
	for _, k := range keys {
		path = join(path, k)
		d.pos[path] = Pos{file, line}
	}
	d.locateInside(p, file, path, line, kv.Value())
}

func (d *document) locateInside(p *unstable.Parser, file, path string, line int, v *unstable.Node) {
	switch v.Kind {
	case unstable.InlineTable:
		for it := v.Children(); it.Next(); {
			if kv := it.Node(); kv.Kind == unstable.KeyValue {
				d.locateValue(p, file, path, kv)
			}
		}
	case unstable.Array:
		i := 0
		for it := v.Children(); it.Next(); {
			n := it.Node()
			if n.Kind == unstable.Comment {
				continue
			}
			if n.Raw.Length > 0 {
				line = p.Shape(n.Raw).Start.Line
			}
			element := path + "[" + strconv.Itoa(i) + "]"
			d.pos[element] = Pos{file, line}
			d.locateInside(p, file, element, line, n)
			i++
		}
	}
}

// keysOf are the parts of an expression's key, and its line.
func keysOf(p *unstable.Parser, e *unstable.Node) (keys []string, line int) {
	for it := e.Key(); it.Next(); {
		n := it.Node()
		if line == 0 {
			line = p.Shape(n.Raw).Start.Line
		}
		keys = append(keys, string(n.Data))
	}
	return keys, line
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// at is where a path was written, or the nearest table around it.
func (d *document) at(path string) Pos {
	for path != "" {
		if p, ok := d.pos[path]; ok {
			return p
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	if len(d.files) > 0 {
		return Pos{d.files[0], 1}
	}
	return Pos{}
}

func (d *document) fail(path, format string, args ...any) {
	d.errs = append(d.errs, &Error{d.at(path), fmt.Sprintf(format, args...)})
}

// table is one table of the document while it is read. What is not asked for is an unknown key.
type table struct {
	d     *document
	path  string
	m     map[string]any
	known []string
}

func (d *document) top() *table { return &table{d: d, m: d.root} }

func (t *table) pos() Pos { return t.d.at(t.path) }

func (t *table) get(key string) (any, bool) {
	t.known = append(t.known, key)
	v, ok := t.m[key]
	return v, ok
}

func (t *table) fail(key, format string, args ...any) {
	t.d.fail(join(t.path, key), "%s: %s", key, fmt.Sprintf(format, args...))
}

// read reads a value of one type; want says what it should have been.
func read[T any](t *table, key, want string, to *T) bool {
	v, ok := t.get(key)
	if !ok {
		return false
	}
	x, ok := v.(T)
	if !ok {
		t.fail(key, "want %s", want)
		return false
	}
	*to = x
	return true
}

func (t *table) string(key string, to *string) { read(t, key, "text in quotation marks", to) }
func (t *table) bool(key string, to *bool)     { read(t, key, "true or false", to) }

func (t *table) int(key string, to *int, least, most int) {
	var v int64
	if !read(t, key, "a number", &v) {
		return
	}
	if v < int64(least) || v > int64(most) {
		t.fail(key, "%d: want %d to %d", v, least, most)
		return
	}
	*to = int(v)
}

// size reads octets: a number, or text with a unit.
func (t *table) size(key string, to *int64) {
	v, ok := t.get(key)
	if !ok {
		return
	}
	var n int64
	var err error
	switch v := v.(type) {
	case int64:
		n, err = store.ParseSize(strconv.FormatInt(v, 10))
	case string:
		n, err = store.ParseSize(v)
	default:
		err = errors.New(`want octets, or text such as "1GiB"`)
	}
	if err != nil {
		t.fail(key, "%v", err)
		return
	}
	*to = n
}

func (t *table) duration(key string, to *time.Duration, negative bool) {
	var s string
	if !read(t, key, `text such as "30s"`, &s) {
		return
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		t.fail(key, "%q: want a time such as 30s or 1m30s", s)
	case d == 0, d < 0 && !negative:
		t.fail(key, "%s: want more than 0", s)
	default:
		*to = d
	}
}

// list reads an array whose elements have one type.
func list[T any](t *table, key, want string) (all []T, ok bool) {
	v, ok := t.get(key)
	if !ok {
		return nil, false
	}
	array, ok := v.([]any)
	if !ok {
		t.fail(key, "want a list of %s in brackets", want)
		return nil, false
	}
	all = []T{}
	for i, e := range array {
		x, ok := e.(T)
		if !ok {
			t.d.fail(fmt.Sprintf("%s[%d]", join(t.path, key), i), "%s: want a list of %s", key, want)
			continue
		}
		all = append(all, x)
	}
	return all, true
}

func (t *table) strings(key string, to *[]string) {
	if all, ok := list[string](t, key, "texts"); ok {
		*to = all
	}
}

func (t *table) tags(key string, to *[]int) {
	all, ok := list[int64](t, key, "numbers")
	if !ok {
		return
	}
	for _, n := range all {
		if n < 1 || n > 65535 {
			t.fail(key, "%d: a portal group tag is 1 to 65535", n)
			continue
		}
		*to = append(*to, int(n))
	}
}

// table is the table of a key; nil if there is none.
func (t *table) table(key string) *table {
	v, ok := t.get(key)
	if !ok {
		return nil
	}
	m, ok := v.(map[string]any)
	if !ok {
		t.fail(key, "want a table: [%s]", join(t.path, key))
		return nil
	}
	return &table{d: t.d, path: join(t.path, key), m: m}
}

// tables are the elements of an array of tables.
func (t *table) tables(key string) (all []*table) {
	v, ok := t.get(key)
	if !ok {
		return nil
	}
	array, ok := v.([]any)
	if !ok {
		t.fail(key, "want an array of tables: [[%s]]", key)
		return nil
	}
	for i, e := range array {
		path := fmt.Sprintf("%s[%d]", join(t.path, key), i)
		m, ok := e.(map[string]any)
		if !ok {
			t.d.fail(path, "%s: want an array of tables: [[%s]]", key, key)
			continue
		}
		all = append(all, &table{d: t.d, path: path, m: m})
	}
	return all
}

// rest are the keys that were not asked for.
func (t *table) rest() []string {
	var keys []string
	for k := range t.m {
		if !slices.Contains(t.known, k) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// end refuses what was not asked for.
func (t *table) end() {
	for _, k := range t.rest() {
		known := slices.Clone(t.known)
		slices.Sort(known)
		t.d.fail(join(t.path, k), "unknown key %q (known here: %s)", k, strings.Join(slices.Compact(known), ", "))
	}
}
