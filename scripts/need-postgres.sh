#!/usr/bin/env bash
# The bench, and its tests, start a PostgreSQL server of their own. This makes sure that
# there is one to start: a missing dependency never skips a test. Everything is printed to
# standard error.
set -euo pipefail
exec >&2

# On PATH, or where Debian keeps it: bench/postgres.go looks in the same places.
found() {
	{ command -v postgres && command -v initdb; } >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

if found; then
	exit 0
fi

# Only as root, as on CI: a test run never asks a person for a password.
if command -v apt-get >/dev/null && [[ $(id -u) == 0 ]]; then
	echo "need-postgres: installing postgresql with apt-get"
	log=$(mktemp)
	trap 'rm -f "$log"' EXIT
	export DEBIAN_FRONTEND=noninteractive
	# The package would start a server of its own, on the usual port. postgresql-common
	# brings the setting that prevents it, so that one comes first.
	if { apt-get update &&
		apt-get install -y --no-install-recommends postgresql-common &&
		sed -i 's/^#* *create_main_cluster *=.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf &&
		apt-get install -y --no-install-recommends postgresql; } </dev/null >"$log" 2>&1 && found; then
		exit 0
	fi
	tail -n 20 "$log"
fi

cat <<'END'
need-postgres: the bench needs postgres and initdb (PostgreSQL 15 or later) on PATH. Install them with one of

  apt-get update && apt-get install -y postgresql        # Debian, Ubuntu, as root
  brew install postgresql                                # macOS

END
exit 1
