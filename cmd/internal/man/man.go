// Package man writes manual pages of a program's commands, so that they say what --help says.
package man

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Command is the hidden command that packages call: it writes the pages of root and all that is below into a directory.
func Command(section int) *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages into a directory", Hidden: true, Args: cobra.ExactArgs(1),
		Example: "  program man ./man",
		RunE: func(cmd *cobra.Command, args []string) error {
			return Write(cmd.Root(), section, date(), args[0])
		},
	}
}

// date is the day of what the program was built from, or the one that SOURCE_DATE_EPOCH tells, so that the same source makes the same pages. "" if
// nobody knows.
func date() string {
	if n, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
		return time.Unix(n, 0).UTC().Format(time.DateOnly)
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if t, err := time.Parse(time.RFC3339, s.Value); s.Key == "vcs.time" && err == nil {
				return t.UTC().Format(time.DateOnly)
			}
		}
	}
	return ""
}

// Write writes the pages of c and of the commands below it into dir. day is their date, as in 2006-01-02.
func Write(c *cobra.Command, section int, day, dir string) error {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" && sub.Name() != "completion" {
			if err := Write(sub, section, day, dir); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s.%d", name(c), section)), Page(c, section, day), 0o644)
}

func name(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// Page is the manual page of one command.
func Page(c *cobra.Command, section int, day string) []byte {
	var b bytes.Buffer
	heading := func(h string) { fmt.Fprintf(&b, ".SH %s\n", h) }
	fmt.Fprintf(&b, ".TH \"%s\" \"%d\" \"%s\" \"goiwarp\"\n", strings.ToUpper(name(c)), section, day)
	heading("NAME")
	fmt.Fprintf(&b, "%s \\- %s\n", escape(name(c)), escape(c.Short))
	heading("SYNOPSIS")
	fmt.Fprintf(&b, ".nf\n%s\n.fi\n", escape(c.UseLine()))
	heading("DESCRIPTION")
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	paragraphs(&b, text)
	options := func(h string, f *pflag.FlagSet) {
		if !f.HasAvailableFlags() {
			return
		}
		heading(h)
		f.VisitAll(func(f *pflag.Flag) {
			if f.Hidden {
				return
			}
			value, usage := pflag.UnquoteUsage(f)
			if value != "" {
				value = "=" + value
			}
			short := ""
			if f.Shorthand != "" {
				short = `\fB\-` + escape(f.Shorthand) + `\fR, `
			}
			fmt.Fprintf(&b, ".TP\n%s\\fB\\-\\-%s\\fR%s\n%s\n", short, escape(f.Name), escape(value), filled(usage))
		})
	}
	options("OPTIONS", c.NonInheritedFlags())
	options("OPTIONS OF ALL COMMANDS", c.InheritedFlags())
	if c.Example != "" {
		heading("EXAMPLES")
		fmt.Fprintf(&b, ".nf\n%s\n.fi\n", escape(c.Example))
	}
	heading("EXIT STATUS")
	fmt.Fprintln(&b, filled("0 after success, 1 after an error, 2 after a mistake in how the program was called."))
	var also []string
	if c.HasParent() {
		also = append(also, name(c.Parent()))
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" && sub.Name() != "completion" {
			also = append(also, name(sub))
		}
	}
	if len(also) > 0 {
		heading("SEE ALSO")
		for i, n := range also {
			also[i] = fmt.Sprintf("\\fB%s\\fR(%d)", escape(n), section)
		}
		fmt.Fprintln(&b, strings.Join(also, ",\n"))
	}
	return b.Bytes()
}

// paragraphs writes text as people read it: what is indented stays as it is.
func paragraphs(b *bytes.Buffer, text string) {
	for i, p := range strings.Split(strings.Trim(text, "\n"), "\n\n") {
		if i > 0 { // the heading has begun the first one
			fmt.Fprintln(b, ".PP")
		}
		if strings.HasPrefix(p, "  ") {
			fmt.Fprintf(b, ".nf\n%s\n.fi\n", escape(p))
		} else {
			fmt.Fprintln(b, filled(p))
		}
	}
}

// filled is running text in lines that are not long: roff fills them anew.
func filled(text string) string {
	const width = 76
	var lines []string
	line := ""
	for _, w := range strings.Fields(escape(text)) {
		if line != "" && len(line)+1+len(w) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += w
	}
	return protect(strings.Join(append(lines, line), "\n"))
}

// escape protects what roff would take for its own.
func escape(s string) string {
	return protect(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s))
}

// protect keeps lines from being taken for requests.
func protect(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
