package tests

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestUnits has systemd look at the units.
func TestUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	dir := t.TempDir()
	units := []string{"iserd.service", "iserd.socket", "iser-attach@.service"}
	for _, name := range units {
		b, err := os.ReadFile("../packaging/systemd/" + name)
		require.NoError(t, err)
		text := strings.NewReplacer("/usr/bin/iserd", program(t, "iserd"), "/usr/bin/iser", program(t, "iser")).Replace(string(b))
		name = strings.Replace(name, "@.", "@nbd0.", 1)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	guide, err := os.ReadFile("../docs/admin.md") // its drop-in, too
	require.NoError(t, err)
	dropIn := regexp.MustCompile("(?s)\n```ini\n(.*?)\n```").FindSubmatch(guide)
	require.NotNil(t, dropIn)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "iserd.service.d"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "iserd.service.d", "guide.conf"), dropIn[1], 0o644))
	for _, name := range units {
		name = strings.Replace(name, "@.", "@nbd0.", 1)
		out, err := exec.Command(analyze, "verify", "--man=no", filepath.Join(dir, name)).CombinedOutput()
		for _, line := range strings.Split(string(out), "\n") {
			assert.NotContains(t, line, "iserd.s", "%s", line)
			assert.NotContains(t, line, "iser-attach", "%s", line) // other units of the host are not ours to judge
		}
		if err != nil {
			t.Logf("%s: %v\n%s", name, err, out)
		}
	}
}

// TestPackagedConfiguration: what is installed has no mistake.
func TestPackagedConfiguration(t *testing.T) {
	r := run(t, nil, program(t, "iserd"), "check", "../packaging/iserd.toml")
	require.Zero(t, r.status, r.stderr)
	b, err := os.ReadFile("../packaging/iserd.toml")
	require.NoError(t, err)
	// The example in its comments is one, too.
	text := regexp.MustCompile(`(?m)^#( {3,}| ?\[\[target\]\]| ?name)`).ReplaceAllString(string(b), "$1")
	text = regexp.MustCompile(`(?m)^ *# Who may.*$`).ReplaceAllString(text, "")
	text = strings.ReplaceAll(text, `chap = "/etc/iserd/users"`, "")
	file := filepath.Join(t.TempDir(), "iserd.toml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	r = run(t, nil, program(t, "iserd"), "check", file)
	require.Zero(t, r.status, r.stderr+text)
	require.Contains(t, r.stdout, "1 targets, 1 LUNs")
}

// TestDashboard: every figure that the dashboard asks for is one that iserd tells.
func TestDashboard(t *testing.T) {
	b, err := os.ReadFile("../packaging/grafana/iserd.json")
	require.NoError(t, err)
	require.True(t, json.Valid(b))
	source, err := os.ReadFile("../cmd/iserd/internal/metrics/metrics.go")
	require.NoError(t, err)
	for _, name := range regexp.MustCompile(`iserd_[a-z_]+`).FindAllString(string(b), -1) {
		name = strings.TrimPrefix(name, "iserd_")
		for _, kind := range []string{"_count", "_sum", "_bucket"} {
			name = strings.TrimSuffix(name, kind)
		}
		name = strings.TrimPrefix(strings.TrimPrefix(name, "lun"), "session_")
		assert.Contains(t, string(source), name+`"`, "figure %s", name)
	}
}

// debianPackage builds the package into a folder.
func debianPackage(t *testing.T, out string) string {
	t.Helper()
	t.Setenv("COMPRESS", "-Zgzip -z1") // what takes long proves nothing
	b, err := exec.Command("../packaging/debian/build.sh", filepath.Dir(program(t, "iserd")), out, "1.2.3").CombinedOutput()
	require.NoError(t, err, "%s", b)
	debs, err := filepath.Glob(filepath.Join(out, "goiwarp_1.2.3_*.deb"))
	require.NoError(t, err)
	require.Len(t, debs, 1)
	return debs[0]
}

// TestPackage builds the Debian package, installs it into an empty root, and purges it again.
func TestPackage(t *testing.T) {
	for _, tool := range []string{"dpkg-deb", "dpkg"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("dpkg installs as root only")
	}
	out := t.TempDir()
	command := func(name string, args ...string) string {
		t.Helper()
		b, err := exec.Command(name, args...).CombinedOutput()
		require.NoError(t, err, "%s %v: %s", name, args, b)
		return string(b)
	}
	deb := debianPackage(t, out)

	root := t.TempDir()
	for _, d := range []string{"info", "updates", "triggers"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, "var/lib/dpkg", d), 0o755))
	}
	for _, f := range []string{"status", "available"} {
		require.NoError(t, os.WriteFile(filepath.Join(root, "var/lib/dpkg", f), nil, 0o644))
	}
	dpkg := func(args ...string) {
		t.Helper()
		command("dpkg", append([]string{"--root=" + root, "--force-script-chrootless", "--log=/dev/null"}, args...)...)
	}
	dpkg("--install", deb)
	for _, f := range []string{
		"usr/bin/iserd", "usr/bin/iser", "usr/bin/iwarp", "lib/systemd/system/iserd.service", "lib/systemd/system/iserd.socket",
		"lib/systemd/system/iser-attach@.service", "usr/share/doc/goiwarp/attach.md",
		"usr/lib/sysusers.d/iserd.conf", "etc/iserd/iserd.toml", "usr/share/man/man8/iserd.8.gz", "usr/share/man/man8/iserd-ctl-lun-resize.8.gz",
		"usr/share/man/man5/iserd.toml.5.gz", "usr/share/man/man1/iser.1.gz", "usr/share/man/man1/iser-serve-nbd.1.gz", "usr/share/man/man1/iwarp-rping.1.gz",
		"usr/share/bash-completion/completions/iser", "usr/share/zsh/vendor-completions/_iserd", "usr/share/fish/vendor_completions.d/iwarp.fish",
		"usr/share/goiwarp/grafana/iserd.json", "usr/share/doc/goiwarp/copyright",
	} {
		assert.FileExists(t, filepath.Join(root, f))
	}
	r := run(t, nil, filepath.Join(root, "usr/bin/iserd"), "check", filepath.Join(root, "etc/iserd/iserd.toml"))
	require.Zero(t, r.status, r.stderr)

	data := filepath.Join(root, "var/lib/iserd")
	require.NoError(t, os.MkdirAll(data, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(data, "disk.img"), []byte("data"), 0o600))
	dpkg("--remove", "goiwarp")
	assert.NoFileExists(t, filepath.Join(root, "usr/bin/iserd"))
	assert.FileExists(t, filepath.Join(root, "etc/iserd/iserd.toml"), "configuration outlives removal")
	dpkg("--purge", "goiwarp")
	assert.NoFileExists(t, filepath.Join(root, "etc/iserd/iserd.toml"))
	assert.NoDirExists(t, filepath.Join(root, "etc/iserd"))
	assert.FileExists(t, filepath.Join(data, "disk.img"), "disks outlive everything")
}

// TestEveryOptionIsDocumented: the guide and the manual page name each key that iserd knows, and each option of a LUN.
func TestEveryOptionIsDocumented(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.toml")
	text := "x = 1\n"
	for _, table := range []string{
		"[metrics]", "[rdma]", "[limits]", "[timers]", "[[portal]]", "[[target]]", "[target.redirect]", "[[target.access]]", "[[discovery.access]]",
	} {
		text += table + "\nx = 1\n"
	}
	text += "[[target.lun]]\nstore = \"mem:1MiB\"\nx = 1\n"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	r := run(t, nil, program(t, "iserd"), "check", file)
	lists := regexp.MustCompile(`\(known(?: here)?: ([^)]*)\)`).FindAllStringSubmatch(r.stderr, -1)
	require.Len(t, lists, 11, r.stderr)
	for _, doc := range []string{"../docs/admin.md", "../packaging/man/iserd.toml.5"} {
		b, err := os.ReadFile(doc)
		require.NoError(t, err)
		for _, l := range lists {
			for _, key := range strings.Split(l[1], ", ") {
				if key == "ro" {
					key = "read-only"
				}
				named := regexp.MustCompile(`(^|[^a-z-]|\\f[BR])` + regexp.QuoteMeta(key) + `([^a-z-]|$)`)
				assert.True(t, named.Match(b), "%s does not tell of %s", doc, key)
			}
		}
	}
}
