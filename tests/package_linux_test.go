package tests

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// inChroot installs, uses, removes and purges a package in a root of its own: this system's, with what is written kept apart in memory (overlayfs), in a
// mount namespace that ends with the script. Nothing is downloaded. $1 is the package, $2 an empty folder.
const inChroot = `set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs "$2"
mkdir "$2/up" "$2/work" "$2/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$2/up,workdir=$2/work" "$2/root" || { echo no overlay; exit 77; }
mount -t proc proc "$2/root/proc" || true
cp "$1" "$2/root/goiwarp.deb"
chroot "$2/root" sh -eu -c '
export DEBIAN_FRONTEND=noninteractive
mkdir -p /tmp && chmod 1777 /tmp
dpkg --purge goiwarp >/dev/null 2>&1 || true
dpkg --install /goiwarp.deb
echo "user $(getent passwd iserd | cut -d: -f1,6,7)"
echo "group $(getent group iserd | cut -d: -f1)"
echo "folder $(stat -c "%U:%G %a" /etc/iserd)"
echo "file $(stat -c "%U:%G %a" /etc/iserd/iserd.toml)"
setpriv --reuid nobody --regid nogroup --clear-groups cat /etc/iserd/iserd.toml >/dev/null 2>&1 || echo "closed to others"
setpriv --reuid iserd --regid iserd --clear-groups iserd check /etc/iserd/iserd.toml
dpkg --install /goiwarp.deb >/dev/null && echo "installed again"
touch /etc/iserd/iserd.toml.old
mkdir -p /var/lib/iserd && touch /var/lib/iserd/disk.img
dpkg --remove goiwarp
test ! -e /usr/bin/iserd && test -e /etc/iserd/iserd.toml && echo removed
dpkg --purge goiwarp
test ! -e /etc/iserd && test -e /var/lib/iserd/disk.img && echo purged
dpkg-query -W goiwarp 2>/dev/null || echo forgotten
'
`

// TestPackageInChroot: the maintainer scripts make the user, give it the configuration and nobody else, bear being run twice, and take away what they brought.
func TestPackageInChroot(t *testing.T) {
	for _, tool := range []string{"dpkg-deb", "dpkg", "unshare", "chroot", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("dpkg installs as root only")
	}
	deb := debianPackage(t, t.TempDir())
	cmd := exec.Command("unshare", "--mount", "sh", "-c", inChroot, "sh", deb, t.TempDir())
	b, err := cmd.CombinedOutput()
	out := string(b)
	if strings.Contains(out, "no overlay") || strings.Contains(out, "unshare failed") || strings.Contains(out, "mount: ") && !strings.Contains(out, "Unpacking") {
		t.Skipf("no mount namespace with an overlay here: %s", out)
	}
	require.NoError(t, err, out)
	for _, line := range []string{
		"user iserd:/var/lib/iserd:/usr/sbin/nologin", "group iserd", "folder root:iserd 750", "file root:iserd 644", "closed to others",
		"/etc/iserd/iserd.toml: 0 targets, 0 LUNs, 1 portals: good", "installed again", "removed", "purged", "forgotten",
	} {
		require.Contains(t, "\n"+out, "\n"+line+"\n")
	}
}
