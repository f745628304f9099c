#!/usr/bin/env bash
# make.sh KERNEL CACHE: makes the guest of a Debian kernel series (6.1, 6.12) unless CACHE has it, and prints its folder:
# vmlinuz and initramfs.cpio.zst. A guest is kept under the versions of all its packages and this recipe's own text.
#
# Debian builds its kernels without siw: siw.sh makes the module.
set -euo pipefail
kernel=$1 cache=$2
here=$(cd "$(dirname "$0")" && pwd)
say() { echo "guest: $*" >&2; }

tools=(qemu-system-x86 seabios cpio zstd xz-utils make gcc-12 gcc libc6-dev binutils libelf1 tshark libibverbs-dev librdmacm-dev pkg-config)
missing=()
for p in "${tools[@]}"; do dpkg -s "$p" >/dev/null 2>&1 || missing+=("$p"); done
fresh=
refresh() { [ -n "$fresh" ] || apt-get update -qq >&2; fresh=1; }
if [ ${#missing[@]} -gt 0 ]; then
	say "installing ${missing[*]}"
	refresh
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# The package names of this kernel's parts, and the version of all of them.
names() {
	local meta=linux-image-$kernel-amd64
	[ "$kernel" = 6.1 ] && meta=linux-image-amd64
	image=$(apt-cache depends "$meta" 2>/dev/null | awk '/Depends:/ { print $2; exit }')
	[ -n "$image" ] || return 1
	release=${image#linux-image-}
	version=$(apt-cache policy "$image" | awk '/Candidate/ { print $2 }')
	kbuild=linux-kbuild-${release%-amd64}
	[ "$kernel" = 6.1 ] && kbuild=linux-kbuild-6.1
	parts=("$image=$version" "linux-headers-$release=$version" "linux-headers-${release%-amd64}-common=$version"
		"$kbuild=$version" "linux-source-$kernel=$version")
	user=($(sed 's/#.*//' "$here/packages"))
	files=$(apt-get download --print-uris "${parts[@]}" "${user[@]}" 2>/dev/null)
}
names || { refresh; names; } || { say "no Debian kernel $kernel in this machine's package lists (want Debian 12)"; exit 1; }

key=$({ awk '{ print $2, $4 }' <<<"$files" | sort; cat "$here"/{make.sh,siw.sh,init,packages,libiscsi.c}; } | sha256sum | cut -c1-16)
out=$cache/guest-$release-$key
if [ -e "$out/complete" ]; then
	say "$release from $out"
	echo "$out"
	exit
fi

mkdir -p "$cache/debs"
exec 9>"$cache/lock"
flock 9 # one maker at a time
[ -e "$out/complete" ] && { echo "$out"; exit; }
work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf "$work"' EXIT

say "downloading $release and its user land"
download() {
	while read -r _ file _; do
		[ -s "$cache/debs/$file" ] && continue
		# Several by one call; apt checks their sums.
		echo "$file"
	done <<<"$files" >"$work/absent"
	[ -s "$work/absent" ] || return 0
	(cd "$cache/debs" && apt-get -o APT::Sandbox::User=root download -qq "${parts[@]}" "${user[@]}" >&2)
}
if ! download; then
	refresh
	names
	download
fi
deb() { # the file of a package
	local f
	f=$(awk -v p="$1_" 'index($2, p) == 1 { print $2; exit }' <<<"$files")
	[ -n "$f" ] && echo "$cache/debs/$f"
}
each() { sed 's/=.*//' <<<"$1"; }

say "unpacking"
mkdir -p "$work"/{image,kbuild,stage,out}
dpkg -x "$(deb "$image")" "$work/image"
for p in "${parts[@]:1:3}"; do dpkg -x "$(deb "$(each "$p")")" "$work/kbuild"; done
stage=$work/stage
mkdir -p "$stage"/usr/{bin,sbin,lib,lib64}
for d in bin sbin lib lib64; do ln -s "usr/$d" "$stage/$d"; done
for p in "${user[@]}"; do
	f=$(deb "$p") || { say "no package $p"; exit 1; }
	dpkg --fsys-tarfile "$f" | tar -x -C "$stage" --keep-directory-symlink --exclude='./usr/share/doc' --exclude='./usr/share/man' \
		--exclude='./usr/share/locale' --exclude='./usr/share/info' --exclude='./usr/share/lintian' --exclude='./lib/udev/hwdb.d'
done

# siw takes the longest: it is kept apart, so that a change of the user land does not build it again.
modules_key=$({ echo "$release $version"; cat "$here/siw.sh"; } | sha256sum | cut -c1-16)
built=$cache/siw-$release-$modules_key
if [ ! -e "$built" ]; then
	say "building siw"
	mkdir "$work/siw.out"
	"$here/siw.sh" "$(deb "linux-source-$kernel")" "$work/kbuild" "$release" "$work/siw.out"
	mv "$work/siw.out" "$built"
fi
mkdir -p "$stage/siw"
cp "$built"/*.ko "$stage/siw/"
gcc-12 -O2 -fno-builtin -shared -fPIC -o "$stage/usr/lib/libiscsi-mend.so" "$here/libiscsi.c"

# fio wants the libraries of its engines for other storage, Ceph to persistent memory, which are large. Empty ones stand in for
# them, with the names and versions of what it looks for.
for l in librados.so.2:rados librbd.so.1:rbd libgfapi.so.0:glfs libnbd.so.0:nbd libpmem.so.1:pmem libpmemblk.so.1:pmemblk; do
	nm -D --undefined-only "$stage/usr/bin/fio" | awk -v p="^${l#*:}_" '$NF ~ p { print $NF }' >"$work/symbols"
	awk -F @ '{ print "void " $1 "(void) {}" }' "$work/symbols" >"$work/engine.c"
	awk -F '@+' 'NF > 1 { v[$2] = v[$2] " " $1 ";" } END { for (n in v) print n " { global:" v[n] " };" }' "$work/symbols" >"$work/engine.map"
	script=
	[ ! -s "$work/engine.map" ] || script=-Wl,--version-script=$work/engine.map
	gcc-12 -O2 -shared -fPIC -Wl,-soname="${l%:*}" $script -o "$stage/usr/lib/${l%:*}" "$work/engine.c"
done

say "assembling the initramfs"
mkdir -p "$stage"/{proc,sys,dev,run,tmp,root,host,mnt,var/lib}
ln -sf bash "$stage/usr/bin/sh"
for a in awk cat clear cmp cut egrep find free grep gzip head hexdump hostname id kill killall less ls md5sum mount nc od pidof ps pgrep sed seq \
	sleep sort sysctl tail tar top tr umount uniq uptime vi wc which xargs; do
	[ -e "$stage/usr/bin/$a" ] || ln -s busybox "$stage/usr/bin/$a"
done
for a in poweroff reboot; do [ -e "$stage/usr/sbin/$a" ] || ln -s ../bin/busybox "$stage/usr/sbin/$a"; done
echo 'root:x:0:0:root:/root:/bin/bash' >"$stage/etc/passwd"
echo 'root:x:0:' >"$stage/etc/group"
echo '127.0.0.1 localhost guest' >"$stage/etc/hosts"
echo 'hosts: files' >"$stage/etc/nsswitch.conf"

# The modules that the legs use and all that these need; uncompressed, since emulation unpacks slowly.
modules="ib_iser ib_isert iscsi_tcp iscsi_target_mod target_core_mod target_core_file rdma_ucm ib_uverbs rdma_cm iw_cm rdma_rxe sd_mod sg dummy veth
	9p 9pnet_virtio virtio_pci virtio_blk virtio_rng virtio_console crc32c_generic crc32c-intel crc32c libcrc32c crc32_generic af_packet ext4 configfs tcp_diag
	nbd xfs dm_multipath dm_round_robin dm_service_time scsi_dh_alua"
kmods=$work/kmods
mkdir -p "$kmods/lib/modules/$release/extra" "$stage/usr/lib/modules/$release"
cp -a "$work/image/lib/modules/$release/." "$kmods/lib/modules/$release/"
cp "$stage/siw/siw.ko" "$kmods/lib/modules/$release/extra/"
mkdir "$work/bin"
for n in depmod modprobe; do ln -s "$stage/usr/bin/kmod" "$work/bin/$n"; done
export LD_LIBRARY_PATH=$stage/usr/lib/x86_64-linux-gnu
"$work/bin/depmod" -b "$kmods" "$release" 2>/dev/null || true
for m in siw $modules; do
	"$work/bin/modprobe" -d "$kmods" -S "$release" --show-depends "$m" 2>/dev/null | awk '$1 == "insmod" { print $2 }' || true
done | sort -u | grep -v /extra/ >"$work/modules"
while read -r f; do
	rel=${f#"$kmods/lib/modules/$release/"}
	mkdir -p "$stage/usr/lib/modules/$release/$(dirname "$rel")"
	cp "$f" "$stage/usr/lib/modules/$release/$rel"
done <"$work/modules"
unset LD_LIBRARY_PATH
find "$stage/usr/lib/modules" -name '*.ko.xz' -exec xz -d {} +
cp "$work/image/lib/modules/$release"/modules.{builtin,builtin.modinfo,order} "$stage/usr/lib/modules/$release/"
LD_LIBRARY_PATH=$stage/usr/lib/x86_64-linux-gnu "$work/bin/depmod" -b "$stage/usr" "$release" 2>/dev/null ||
	LD_LIBRARY_PATH=$stage/usr/lib/x86_64-linux-gnu "$work/bin/depmod" -b "$stage" "$release"

install -m 755 "$here/init" "$stage/init"
(cd "$stage" && find . | cpio -o -H newc -R 0:0 --quiet) | zstd -q -3 -T2 -f -o "$work/out/initramfs.cpio.zst"
cp "$work/image/boot/vmlinuz-$release" "$work/out/vmlinuz"
echo "$release $version" >"$work/out/complete"
rm -rf "$out"
mv "$work/out" "$out"
say "made $release in $out"
echo "$out"
