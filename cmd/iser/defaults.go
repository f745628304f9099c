package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// defaultsHelp is what --help says about the file of defaults.
const defaultsHelp = `Defaults for flags are read from ~/.config/goiwarp/iser.toml ($XDG_CONFIG_HOME/goiwarp/iser.toml, if that is set), or from where --config
says. Its keys are the names of flags; those of one command stand in a table with its name. What is given on the command line wins. Secrets do
not belong into it: chap-secret-file names the file that has one.

  chap-user = "alice"
  chap-secret-file = "/home/alice/.iser-secret"
  timeout = "5s"

  [bench]
  bs = "64k"
  iodepth = 16`

// noDefault are flags that are to be given each time.
var noDefault = []string{"help", "version", "config", "allow-overwrite"}

// alternatives are flags of which one on the command line takes the place of another in the file.
var alternatives = map[string]string{"chap-ask": "chap-secret-file", "chap-secret-file": "chap-ask"}

// defaultsPath is where defaults are read from unless --config says; "" if there is no home.
func defaultsPath() string {
	dir := os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) { // as the XDG Base Directory Specification wants it
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "goiwarp", "iser.toml")
}

// loadDefaults gives the flags of cmd that were not given their values from the file at path; if none is named, from the usual one, which
// need not exist.
func loadDefaults(cmd *cobra.Command, path string) error {
	named := path != ""
	if !named {
		path = defaultsPath()
	}
	if path == "" {
		return nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return nil
	}
	if err != nil {
		return err
	}
	return applyDefaults(cmd, path, b)
}

// applyDefaults is loadDefaults with the file's contents. All of the file is checked, whichever command runs.
func applyDefaults(cmd *cobra.Command, path string, text []byte) error {
	var all map[string]any
	if err := toml.Unmarshal(text, &all); err != nil { // finds what is no TOML, and keys given twice
		var e *toml.DecodeError
		if errors.As(err, &e) {
			row, _ := e.Position()
			return fmt.Errorf("%s:%d: %s", path, row, strings.TrimPrefix(e.Error(), "toml: "))
		}
		return fmt.Errorf("%s: %w", path, err)
	}
	given := make(map[string]bool)
	cmd.Flags().Visit(func(f *pflag.Flag) { given[f.Name] = true })
	owner := cmd.Root()
	var p unstable.Parser
	p.Reset(text)
	for p.NextExpression() {
		node := p.Expression()
		var names []string
		line := 0
		for it := node.Key(); it.Next(); {
			names = append(names, string(it.Node().Data))
			line = p.Shape(it.Node().Raw).Start.Line
		}
		key := strings.Join(names, ".")
		fail := func(format string, args ...any) error {
			return fmt.Errorf("%s:%d: %s: %s", path, line, key, fmt.Sprintf(format, args...))
		}
		if node.Kind == unstable.Table {
			c, rest, err := cmd.Root().Find(names)
			if err != nil || c == cmd.Root() || len(rest) > 0 {
				return fail("no command has that name")
			}
			owner = c
			continue
		}
		if node.Kind != unstable.KeyValue || len(names) != 1 {
			return fail("want NAME = VALUE, with the name of a flag, or the table of a command")
		}
		set := owner.LocalFlags()
		if owner == cmd.Root() {
			set = owner.PersistentFlags()
		}
		f := set.Lookup(key)
		switch {
		case f == nil:
			return fail("no flag of %s has that name; see '%s --help'", owner.CommandPath(), owner.CommandPath())
		case slices.Contains(noDefault, f.Name):
			return fail("has to be given on the command line")
		}
		v := node.Value()
		switch v.Kind {
		case unstable.String, unstable.Integer, unstable.Bool, unstable.Float:
		default:
			return fail("want text, a number, true or false")
		}
		if given[f.Name] || given[alternatives[f.Name]] {
			continue
		}
		if err := set.Set(f.Name, strings.ReplaceAll(string(v.Data), "_", underscore(v.Kind))); err != nil {
			return fail("%v", errors.Unwrap(err))
		}
	}
	return nil
}

// underscore is what an underscore stands for in a value: it may separate digits.
func underscore(k unstable.Kind) string {
	if k == unstable.String {
		return "_"
	}
	return ""
}
