#!/usr/bin/env bash
# The suite `postgres`: the store's and the server's own tests on a real PostgreSQL, and tasks handed out while its connections are
# killed; a server of the program with a database that is away, or cannot be used; docs/guide/fleet.md line by line. `--setup` installs Debian's
# packages, and does only that.
set -euo pipefail
cd "$(dirname "$0")/../.."
installed() { ls -d /usr/lib/postgresql/*/bin >/dev/null 2>&1 && command -v pgbouncer >/dev/null && command -v haproxy >/dev/null; }
if ! installed && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    # Its own cluster would take the memory of the tests; they start one themselves.
    mkdir -p /etc/postgresql-common
    [ -e /etc/postgresql-common/createcluster.conf ] || echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq postgresql >/dev/null || true
    # Their services are not needed: tests start their own.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq pgbouncer haproxy >/dev/null || true
fi
if ! ls -d /usr/lib/postgresql/*/bin >/dev/null 2>&1; then
    echo "skipped: PostgreSQL cannot be installed here"
    exit 77
fi
[ "${1:-}" != --setup ] || exit 0
nice cargo test --workspace --locked --no-run --quiet
tests/postgres/with-server.sh cargo test --workspace --locked --no-fail-fast --test store --test kills
tests/postgres/with-server.sh cargo test --workspace --locked --test copy -- --include-ignored
# Those of the server's tests whose statements differ between the databases.
tests/postgres/with-server.sh cargo test --workspace --locked --test api -- --include-ignored \
    flow:: batch:: lists:: quotas:: sessions:: agents:: accounts:: usage_days:: budgets:: pools:: wishes:: notices:: secrets:: replicas::
tests/postgres/with-server.sh .venv/bin/python -m pytest -q tests/postgres
