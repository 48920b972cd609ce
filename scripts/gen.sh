#!/usr/bin/env bash
# Generates the Go code of proto/ into gen/. With --check it writes nothing and fails
# if gen/ is not what proto/ generates. Run through `make gen` and `make check`,
# which build the tools first.
set -euo pipefail
cd "$(dirname "$0")/.."

# Into a folder of its own first: a proto that does not compile leaves gen/ as it
# was, and a file whose proto is gone cannot survive in the new folder.
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
.tools/buf generate --output "$new"

# Only *.pb.go is generated; go.mod, go.sum and anything else in gen/ is ours.
generated() { (cd "$1" && find . -name '*.pb.go' | LC_ALL=C sort); }

if [[ ${1:-} == --check ]]; then
	stale=$(comm -3 <(generated gen) <(generated "$new/gen") | tr -d '\t')
	while IFS= read -r f; do
		[[ ! -f gen/$f ]] || cmp -s "gen/$f" "$new/gen/$f" || stale+=$'\n'$f
	done < <(generated "$new/gen")
	if [[ -n $stale ]]; then
		echo "gen/ is not what proto/ generates; run 'make gen'. Differing:" >&2
		sed '/^$/d; s|^\./|  gen/|' <<<"$stale" >&2
		exit 1
	fi
	exit 0
fi

while IFS= read -r f; do
	[[ -f $new/gen/$f ]] || rm -f "gen/$f"
done < <(generated gen)
while IFS= read -r f; do
	# An unchanged file keeps its time, for editors and make.
	cmp -s "gen/$f" "$new/gen/$f" || install -D -m 0644 "$new/gen/$f" "gen/$f"
done < <(generated "$new/gen")
find gen -mindepth 1 -type d -empty -delete
