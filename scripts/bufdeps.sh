#!/usr/bin/env bash
# Puts validate.proto where buf.yaml looks for it: .bufdeps/protovalidate.
#
# The proto ships inside the Go module of the same name, so it comes through the Go
# module proxy and is checked against sum.golang.org like any other module.
# The pin lives here and not in tools/go.mod because that module holds no Go
# package, and `go mod tidy` drops a requirement that nothing imports.
set -euo pipefail
cd "$(dirname "$0")/.."

# Keep in step with buf.build/go/protovalidate in internal/go.mod: a rule that the
# proto offers and the library is too old to know fails when a message is checked,
# not when it is compiled. v1.2.2 is, descriptor for descriptor, what v1.4.0 of
# the library was generated from.
module=github.com/bufbuild/protovalidate
version=v1.2.2

# From tools/, whose go.mod asks for no more than this Go; GOWORK=off so that
# go.work need not resolve for a file to be copied.
dir=$(cd tools && GOWORK=off go mod download -json "$module@$version" |
	sed -n 's/^[[:space:]]*"Dir": "\(.*\)",\{0,1\}$/\1/p')
src=$dir/proto/protovalidate/buf/validate/validate.proto
if [[ ! -f $src ]]; then
	echo "bufdeps: $module@$version has no proto/protovalidate/buf/validate/validate.proto" >&2
	exit 1
fi

dst=.bufdeps/protovalidate/buf/validate/validate.proto
mkdir -p "${dst%/*}"
# install and not cp: the module cache is read-only and a copy would be too.
install -m 0644 "$src" "$dst"
