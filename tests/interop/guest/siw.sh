#!/usr/bin/env bash
# siw.sh SOURCE KBUILD RELEASE OUT: builds siw out of the Debian package SOURCE of a kernel's source, against the headers of the very
# same version below KBUILD, once for each thing that siw fixes at compile time: OUT gets siw.ko, siw-crc.ko, siw-p2p.ko, siw-rev1.ko.
set -euo pipefail
source=$1 kbuild=$2 release=$3 out=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tree"
dpkg --fsys-tarfile "$source" | tar -xO --wildcards '*.tar.xz' | xz -dc -T2 |
	tar -x -C "$work/tree" --strip-components=1 --wildcards '*/drivers/infiniband/sw/siw/*'
headers=$kbuild/usr/src/linux-headers-$release
sed -i "s#/usr/src/#$kbuild/usr/src/#" "$headers/Makefile"
for variant in "" -crc -p2p -rev1; do
	b=$work/siw$variant
	cp -r "$work/tree/drivers/infiniband/sw/siw" "$b"
	case $variant in
	-crc) edit='s/^const bool mpa_crc_required;/const bool mpa_crc_required = true;/; s/^const bool mpa_crc_strict;/const bool mpa_crc_strict = true;/' ;;
	-p2p) edit='s/^const bool peer_to_peer;/const bool peer_to_peer = true;/' ;;
	-rev1) edit='s/^u_char mpa_version = MPA_REVISION_2;/u_char mpa_version = MPA_REVISION_1;/' ;;
	*) edit= ;;
	esac
	if [ -n "$edit" ]; then
		cp "$b/siw_main.c" "$work/before"
		sed -i "$edit" "$b/siw_main.c"
		cmp -s "$work/before" "$b/siw_main.c" && { echo "siw$variant: the constant is not where it was" >&2; exit 1; }
	fi
	# Without its debug information, or it wants pahole.
	make -s -C "$headers" M="$b" CONFIG_RDMA_SIW=m CONFIG_DEBUG_INFO_BTF_MODULES= CONFIG_DEBUG_INFO= modules -j"$(nproc)" >"$work/make.log" 2>&1 ||
		{ cat "$work/make.log" >&2; exit 1; }
	strip --strip-debug "$b/siw.ko" -o "$out/siw$variant.ko"
done
