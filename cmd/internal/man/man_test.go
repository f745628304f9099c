package man

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// TestPages: each command has its page, with what --help tells, and nothing in it is taken for a request of roff's.
func TestPages(t *testing.T) {
	root := &cobra.Command{Use: "prog", Short: "Do things", Long: "First.\n\n  .indented -x\n\n'quoted\nback\\slash"}
	root.Flags().StringP("file", "f", "", "read `path`")
	sub := &cobra.Command{Use: "sub ARG", Short: "Do less", Example: "  prog sub x", Run: func(*cobra.Command, []string) {}}
	hidden := &cobra.Command{Use: "hidden", Hidden: true, Run: func(*cobra.Command, []string) {}}
	root.AddCommand(sub, hidden)
	dir := t.TempDir()
	require.NoError(t, Write(root, 8, "2026-11-02", dir))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2)
	b, err := os.ReadFile(filepath.Join(dir, "prog.8"))
	require.NoError(t, err)
	page := string(b)
	for _, want := range []string{
		".TH \"PROG\" \"8\" \"2026-11-02\" \"goiwarp\"\n", "prog \\- Do things\n", ".nf\n  .indented \\-x\n.fi\n", ".PP\n\\&'quoted back\\eslash\n",
		"\\fB\\-f\\fR, \\fB\\-\\-file\\fR=path\nread path\n", "\\fBprog\\-sub\\fR(8)",
	} {
		require.Contains(t, page, want)
	}
	b, err = os.ReadFile(filepath.Join(dir, "prog-sub.8"))
	require.NoError(t, err)
	require.Contains(t, string(b), ".SH EXAMPLES\n.nf\n  prog sub x\n.fi\n")
}
