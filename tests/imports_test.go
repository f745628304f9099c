package tests

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// allowed names, for each layer, every package of this module that it may reach, directly or not.
// An import goes down the house and never up: a layer that is not listed below may reach nothing.
var allowed = map[string][]string{
	"mpa":                   {"internal/sock"},
	"ddp":                   {"mpa", "internal/sock"},
	"rdmap":                 {"ddp", "mpa", "internal/sock"},
	"rnic":                  {},
	"rnic/rnictest":         {"rnic"},
	"rnic/soft":             {"rnic", "rdmap", "ddp", "mpa", "internal/sock"},
	"rnic/verbs":            {"rnic"},
	"iscsi":                 {},
	"iscsi/datamovertest":   {"iscsi"},
	"iscsi/portaltest":      {"iscsi", "iser", "rnic"},
	"iscsi/tcp":             {"iscsi", "internal/sock"},
	"iser":                  {"iscsi", "rnic"},
	"iscsi/store":           {},
	"iscsi/store/storetest": {"iscsi/store"},
	"iscsi/scsi":            {"iscsi/store"},
	"iscsi/target":          {"iscsi", "iscsi/scsi", "iscsi/store"},
	"iscsi/initiator":       {"iscsi", "iscsi/scsi", "iscsi/store"},
	"internal/sock":         {},
	"internal/faultproxy":   {},
}

const module = "goiwarp/"

func goList(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = ".."
	out, err := cmd.Output()
	require.NoError(t, err, "go list %v", args)
	return strings.Fields(string(out))
}

// TestImportsGoDown holds the layering of the module: what a package pulls in, tests left out, is
// exactly what its place in the house lets it see.
func TestImportsGoDown(t *testing.T) {
	for _, pkg := range goList(t, "./...") {
		name := strings.TrimPrefix(pkg, module)
		if name == "tests" || strings.HasPrefix(name, "tests/") || strings.HasPrefix(name, "cmd/") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			may, known := allowed[name]
			require.True(t, known, "package %s has no place in the house: add it to the table", name)
			ok := map[string]bool{name: true}
			for _, m := range may {
				ok[m] = true
			}
			for _, dep := range goList(t, "-deps", pkg) {
				if d, ours := strings.CutPrefix(dep, module); ours && !ok[d] {
					t.Errorf("%s must not reach %s", name, d)
				}
			}
		})
	}
}

// TestNoCommandIsImported keeps programs at the top: nothing imports them.
func TestNoCommandIsImported(t *testing.T) {
	for _, line := range strings.Split(strings.Join(goList(t, "-f", "{{.ImportPath}}={{join .Imports \",\"}}", "./..."), "\n"), "\n") {
		pkg, imports, _ := strings.Cut(line, "=")
		for _, i := range strings.Split(imports, ",") {
			if strings.HasPrefix(i, module+"cmd/") && !strings.HasPrefix(pkg, module+"cmd/") {
				t.Errorf("%s imports the program %s", pkg, i)
			}
		}
	}
}

// TestNetlinkStaysOnLinux keeps packages that exist for one system out of files that every system builds.
func TestNetlinkStaysOnLinux(t *testing.T) {
	for _, system := range []string{"darwin", "windows", "freebsd"} {
		cmd := exec.Command("go", "list", "-deps", "./...")
		cmd.Dir = ".."
		cmd.Env = append(cmd.Environ(), "GOOS="+system, "CGO_ENABLED=0")
		out, err := cmd.Output()
		require.NoError(t, err)
		require.NotContains(t, string(out), "github.com/vishvananda/netlink", system)
	}
}
