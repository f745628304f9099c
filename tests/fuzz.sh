#!/usr/bin/env bash
# Fuzzes every target of the module one after the other, for SECONDS_IN_ALL in all (building them
# comes on top). A crash leaves its input in the package's testdata/fuzz and fails the run.
set -euo pipefail
cd "$(dirname "$0")/.."
total=${1:-240}

targets=()
while read -r pkg; do
	while read -r name; do targets+=("$pkg $name"); done < <(go test -run '^$' -list '^Fuzz' "$pkg" | grep '^Fuzz' || true)
done < <(grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -n1 dirname | sort -u)

n=${#targets[@]}
[ "$n" -gt 0 ] || { echo "no fuzz target found"; exit 1; }
each=$((total / n))
[ "$each" -gt 0 ] || each=1
echo "$n fuzz targets, ${each}s each"
failed=0
out=$(mktemp)
trap 'rm -f "$out"' EXIT
for t in "${targets[@]}"; do
	read -r pkg name <<<"$t"
	if go test -run '^$' -fuzz "^$name\$" -fuzztime "${each}s" "$pkg" >"$out" 2>&1; then
		echo "ok   $pkg $name: $(grep -oE 'execs: [0-9]+' "$out" | tail -n 1)"
	elif grep -q 'context deadline exceeded' "$out" && ! grep -qE 'Failing input|panic:' "$out"; then
		# The toolchain's fuzzer says this when a busy machine lets its own end come late: no input failed.
		echo "ok   $pkg $name: $(grep -oE 'execs: [0-9]+' "$out" | tail -n 1), ended late"
	else
		echo "FAIL $pkg $name"
		cat "$out"
		failed=$((failed + 1))
	fi
done
echo "$((n - failed)) passed, $failed failed"
[ "$failed" = 0 ]
