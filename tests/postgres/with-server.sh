#!/usr/bin/env bash
# Runs a command with a real PostgreSQL of its own: `with-server.sh COMMAND…`. fsync is on, passwords are asked for, and the
# data is in a temporary directory that belongs to the user postgres.
#
# The command gets CANTLE_TEST_POSTGRES (URL without a database) and CANTLE_TEST_PG_CTL (stops, starts and restarts it).
set -euo pipefail
bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1)
[ -n "$bin" ] || { echo "with-server.sh: there is no PostgreSQL here; tests/setup.sh installs it" >&2; exit 77; }
dir=$(mktemp -d /tmp/cantle-pg.XXXXXX)
as() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; else "$@"; fi; }
stop() {
    as "$bin/pg_ctl" -D "$dir/data" -m immediate -w -t 300 stop >/dev/null 2>&1 || true
    rm -rf "$dir"
}
trap stop EXIT
trap 'exit 130' INT TERM
[ "$(id -u)" != 0 ] || chown postgres: "$dir"
cd "$dir"
echo cantle >"$dir/password"
chmod 644 "$dir/password"
as "$bin/initdb" -D "$dir/data" -U cantle -A scram-sha-256 --pwfile="$dir/password" -E UTF8 --locale=C.UTF-8 >"$dir/initdb.log" ||
    { cat "$dir/initdb.log" >&2; exit 1; }
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >>"$dir/data/postgresql.conf" <<CONF
listen_addresses = '127.0.0.1'
port = $port
unix_socket_directories = '$dir'
max_connections = 200
CONF
cat >"$dir/ctl" <<CTL
#!/bin/sh
cd "$dir"
exec $([ "$(id -u)" = 0 ] && echo setpriv --reuid=postgres --regid=postgres --clear-groups) "$bin/pg_ctl" -D "$dir/data" -l "$dir/log" -w -t 300 "\$@"
CTL
chmod 755 "$dir" "$dir/ctl"
"$dir/ctl" start >/dev/null || { cat "$dir/log" >&2; exit 1; }
cd "$OLDPWD"
export CANTLE_TEST_POSTGRES="postgres://cantle:cantle@127.0.0.1:$port" CANTLE_TEST_PG_CTL="$dir/ctl"
"$@"
