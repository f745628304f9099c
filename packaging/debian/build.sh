#!/bin/sh
# build.sh BIN OUT [VERSION]: a Debian package of the programs in BIN, written into the folder OUT. $COMPRESS has dpkg-deb's options.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
bin=$1 out=$2 version=${3:-0.0.0}
arch=${ARCH:-$(dpkg --print-architecture)}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

install -d "$root/DEBIAN" "$root/usr/share/man/man1" "$root/usr/share/man/man5" "$root/usr/share/man/man8" \
	"$root/usr/share/doc/goiwarp"
for p in iserd iser iwarp; do
	install -D -m 755 "$bin/$p" "$root/usr/bin/$p"
done
"$bin/iserd" man "$root/usr/share/man/man8"
"$bin/iser" man "$root/usr/share/man/man1"
"$bin/iwarp" man "$root/usr/share/man/man1"
bash=$root/usr/share/bash-completion/completions zsh=$root/usr/share/zsh/vendor-completions fish=$root/usr/share/fish/vendor_completions.d
install -d "$bash" "$zsh" "$fish"
for p in iserd iser iwarp; do
	"$bin/$p" completion bash >"$bash/$p"
	"$bin/$p" completion zsh >"$zsh/_$p"
	"$bin/$p" completion fish >"$fish/$p.fish"
done
install -m 644 "$here/man/iserd.toml.5" "$root/usr/share/man/man5/"
find "$root/usr/share/man" -type f -exec gzip -9n {} +
install -D -m 644 "$here/systemd/iserd.service" "$root/lib/systemd/system/iserd.service"
install -D -m 644 "$here/systemd/iserd.socket" "$root/lib/systemd/system/iserd.socket"
install -D -m 644 "$here/systemd/iser-attach@.service" "$root/lib/systemd/system/iser-attach@.service"
install -D -m 644 "$here/systemd/iserd.sysusers" "$root/usr/lib/sysusers.d/iserd.conf"
install -D -m 644 "$here/iserd.toml" "$root/etc/iserd/iserd.toml"
install -D -m 644 "$here/grafana/iserd.json" "$root/usr/share/goiwarp/grafana/iserd.json"
install -m 644 "$here/../LICENSE" "$root/usr/share/doc/goiwarp/copyright"
install -m 644 "$here/../docs/attach.md" "$root/usr/share/doc/goiwarp/"
[ ! -f "$here/../docs/admin.md" ] || install -m 644 "$here/../docs/admin.md" "$root/usr/share/doc/goiwarp/"

sed -e "s/@VERSION@/$version/" -e "s/@ARCH@/$arch/" -e "s/@SIZE@/$(du -ks "$root/usr" | cut -f1)/" "$here/debian/control" >"$root/DEBIAN/control"
echo /etc/iserd/iserd.toml >"$root/DEBIAN/conffiles"
for s in postinst prerm postrm; do
	install -m 755 "$here/debian/$s" "$root/DEBIAN/$s"
done
# shellcheck disable=SC2086
dpkg-deb --root-owner-group ${COMPRESS:--Zxz -z3} --build "$root" "$out/goiwarp_${version}_$arch.deb"
