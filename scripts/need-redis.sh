#!/usr/bin/env bash
# The tests start a redis-server of their own. This makes sure that there is one: a
# missing dependency never skips a test. Everything is printed to standard error.
set -euo pipefail
exec >&2

if command -v redis-server >/dev/null; then
	exit 0
fi

# Only as root, as on CI: a test run never asks a person for a password.
if command -v apt-get >/dev/null && [[ $(id -u) == 0 ]]; then
	echo "need-redis: installing redis-server with apt-get"
	log=$(mktemp)
	trap 'rm -f "$log"' EXIT
	# update first: a new machine's package list is empty or old. Without the
	# frontend variable debconf could wait for an answer that nobody gives.
	if { apt-get update && DEBIAN_FRONTEND=noninteractive \
		apt-get install -y --no-install-recommends redis-server; } </dev/null >"$log" 2>&1 &&
		command -v redis-server >/dev/null; then
		exit 0
	fi
	tail -n 20 "$log"
fi

cat <<'END'
need-redis: the tests need redis-server (7 or later) on PATH. Install it with one of

  apt-get update && apt-get install -y redis-server      # Debian, Ubuntu, as root
  brew install redis                                     # macOS

END
exit 1
