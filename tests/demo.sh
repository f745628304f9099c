#!/usr/bin/env bash
# A disk over iSER and over iSCSI on loopback: writes a random file to it over iSER, reads it back
# over both, and compares. Takes the folder of the built programs; leaves nothing behind.
set -euo pipefail
bin=$(cd "$1" && pwd)
size=${DEMO_SIZE_MIB:-256}

dir=$(mktemp -d "${TMPDIR:-/tmp}/goiwarp-demo.XXXXXX")
server=
cleanup() {
	status=$?
	if [ -n "$server" ] && kill "$server" 2>/dev/null; then wait "$server" || true; fi
	rm -rf "$dir"
	exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

echo "== a random file of $size MiB, and a sparse disk of the same size"
head -c "${size}M" /dev/urandom >"$dir/in"

# The first line says where the daemon listens; its end of the pipe closing says that it could not.
mkfifo "$dir/ready"
"$bin/iserd" --lun "$dir/disk.img,size=${size}MiB" --listen 127.0.0.1:0 >"$dir/ready" 2>"$dir/log" &
server=$!
exec 3<"$dir/ready"
if ! read -r _ iqn _ addr <&3; then
	cat "$dir/log" >&2
	exit 1
fi
echo "iserd serves $iqn on $addr, iSER and iSCSI on the same port"
"$bin/iser" ls "iser://$addr/$iqn"

copy() { # title, source, destination
	echo
	echo "== $1"
	"$bin/iser" cp --facts "$2" "$3"
}
copy "in over iSER" "$dir/in" "iser://$addr/$iqn/0"
copy "out over iSER" "iser://$addr/$iqn/0" "$dir/out-iser"
copy "out over iSCSI" "iscsi://$addr/$iqn/0" "$dir/out-iscsi"

echo
echo "== SHA-256"
want=$(sha256sum <"$dir/in")
for out in out-iser out-iscsi; do
	got=$(sha256sum <"$dir/$out")
	echo "${got%% *}  $out"
	if [ "$got" != "$want" ]; then
		echo "$out differs from what was written: ${want%% *}" >&2
		exit 1
	fi
done
kill "$server"
wait "$server"
server=
if [ "$(sha256sum <"$dir/disk.img")" != "$want" ]; then
	echo "the disk's file differs from what was written" >&2
	exit 1
fi
echo verified
