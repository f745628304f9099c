// Package man writes manual pages of a program's commands, so that they say what --help says.
package man

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Command is the hidden command that packages call: it writes the pages of root and all that is below into a directory.
func Command(section int) *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages into a directory", Hidden: true, Args: cobra.ExactArgs(1),
		Example: "  program man ./man",
		RunE: func(cmd *cobra.Command, args []string) error {
			return Write(cmd.Root(), section, args[0])
		},
	}
}

// Write writes the pages of c and of the commands below it into dir.
func Write(c *cobra.Command, section int, dir string) error {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" && sub.Name() != "completion" {
			if err := Write(sub, section, dir); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s.%d", name(c), section)), Page(c, section), 0o644)
}

func name(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// Page is the manual page of one command.
func Page(c *cobra.Command, section int) []byte {
	var b bytes.Buffer
	heading := func(h string) { fmt.Fprintf(&b, ".SH %s\n", h) }
	fmt.Fprintf(&b, ".TH \"%s\" \"%d\"\n", strings.ToUpper(name(c)), section)
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
			fmt.Fprintf(&b, ".TP\n\\fB\\-\\-%s\\fR%s\n%s\n", escape(f.Name), escape(value), escape(usage))
		})
	}
	options("OPTIONS", c.NonInheritedFlags())
	options("OPTIONS OF ALL COMMANDS", c.InheritedFlags())
	if c.Example != "" {
		heading("EXAMPLES")
		fmt.Fprintf(&b, ".nf\n%s\n.fi\n", escape(c.Example))
	}
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
		fmt.Fprintln(&b, strings.Join(also, ", "))
	}
	return b.Bytes()
}

// paragraphs writes text as people read it: what is indented stays as it is.
func paragraphs(b *bytes.Buffer, text string) {
	for _, p := range strings.Split(text, "\n\n") {
		if strings.HasPrefix(p, "  ") {
			fmt.Fprintf(b, ".PP\n.nf\n%s\n.fi\n", escape(p))
			continue
		}
		fmt.Fprintf(b, ".PP\n%s\n", escape(p))
	}
}

// escape protects what roff would take for its own.
func escape(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
