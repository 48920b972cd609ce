#!/usr/bin/env bash
# Everything that can be said about the code without running it; `make check` builds the
# tools and calls this. One line for each check, and after a failed one what to
# do about it. All of them run, so that one look tells everything there is to mend.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=0

# check NAME COMMAND...: the command's output, or as much of it as is read, is shown
# only if it fails. bash turns `set -e` off inside a condition, as here, so the
# functions below join their steps with && or look at each one's result.
check() {
	local name=$1 out
	shift
	if out=$("$@" 2>&1); then
		echo "ok    $name"
		return
	fi
	echo "FAIL  $name"
	# awk and not head, which would end the writer with SIGPIPE.
	awk 'NR <= 60 {print "      " $0} END {if (NR > 60) print "      (" NR - 60 " more lines)"}' <<<"$out"
	failed=1
}

# The folders of go.work's modules, relative so that a person can type them.
workspace_modules() { go list -m -f '{{.Dir}}' | sed "s|^$PWD/||"; }

# each COMMAND...: in every module's folder, tools/ too (which is not in go.work), and
# with GOWORK=off: a module that works only beside its siblings does not work in
# a Dockerfile's build, and its go.mod says less than it uses.
each() {
	local dir bad=0
	for dir in $(workspace_modules) tools; do
		(cd "$dir" && GOWORK=off "$@") || { echo "^ in $dir: GOWORK=off $*"; bad=1; }
	done
	return "$bad"
}

# -modpath: gofumpt takes a path without a dot for the standard library's, unless it is
# the module's own, and weir/gen is another module's.
formatted() {
	local files
	files=$(.tools/gofumpt -modpath weir -l .) || { echo "$files"; return 1; }
	[[ -z $files ]] || { echo "run 'make fmt' for"; echo "$files"; return 1; }
	.tools/buf format --diff --exit-code proto || { echo "run 'make fmt'"; return 1; }
}

# staticcheck hands its patterns to go list, so `work` means every module here too.
# Which of its checks are off, and why: staticcheck.conf.
vetted() { go vet work && (cd tools && GOWORK=off go vet ./...); }
staticchecked() { .tools/staticcheck work && (cd tools && GOWORK=off ../.tools/staticcheck ./...); }

linted() { .tools/buf lint proto; }

# With the protos as last released; `make release-image` writes the file. Between
# releases protos may change as they like.
unbroken() { .tools/buf breaking proto --against release/weir.binpb; }

generated() { scripts/gen.sh --check; }
tidy() { each go mod tidy -diff; }
# CI takes its word for what passed.
counted() { (cd tools && GOWORK=off go test ./testsum); }
# -o /dev/null: a module of one program would leave its binary in the folder.
builds_alone() { each go build -o /dev/null ./...; }

check "formatting (gofumpt, buf format)" formatted
check "go vet" vetted
check "staticcheck" staticchecked
check "buf lint" linted
if [[ -f release/weir.binpb ]]; then
	check "buf breaking, against release/weir.binpb" unbroken
else
	echo "--    buf breaking: nothing released yet, so nothing to break"
fi
check "gen/ is what proto/ generates" generated
check "testsum counts right" counted
check "every module is tidy" tidy
check "every module builds with GOWORK=off" builds_alone

exit "$failed"
