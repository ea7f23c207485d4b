"""Servers behind PgBouncer: one that keeps sessions works, one that does not is refused."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from test_server import CTL, PG, cantle, home, psql, refused, start, until, url  # noqa: F401

BOUNCER = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")

pytestmark = [
    pytest.mark.skipif(not PG, reason="tests/postgres/with-server.sh starts the PostgreSQL"),
    pytest.mark.skipif(not BOUNCER, reason="PgBouncer is not installed; tests/postgres/run.sh --setup does that"),
]


@pytest.fixture
def pooled(url):  # noqa: F811
    """Makes a URL of the fresh database behind a PgBouncer with this pool_mode."""
    started = []
    # Its own user can look into this one.
    files = Path(CTL).parent

    def pooled(mode):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (files / "users.txt").write_text('"cantle" "cantle"\n')
        (files / "pgbouncer.ini").write_text(f"""[databases]
* = host=127.0.0.1 port={PG.rpartition(":")[2]}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {files}/users.txt
pool_mode = {mode}
default_pool_size = 100
# A client may set these as it connects; without this PgBouncer ends the connection.
ignore_startup_parameters = extra_float_digits
""")
        words = [BOUNCER, files / "pgbouncer.ini"]
        as_other = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
        with (files / "pgbouncer.log").open("w") as log:
            started.append(subprocess.Popen([*as_other, *words], stdout=log, stderr=log))
        until("PgBouncer listens", lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        return f"postgres://cantle:cantle@127.0.0.1:{port}/{url.rpartition('/')[2]}"

    yield pooled
    for one in started:
        one.terminate()
        one.wait()


def test_a_server_works_behind_a_pooler_that_keeps_sessions(home, start, pooled):  # noqa: F811
    behind = pooled("session")
    start(behind).until(200)
    leader = "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database WHERE locktype = 'advisory' AND datname = current_database()"
    until("it leads", lambda: psql(leader, behind.rpartition("/")[2]) == "1")
    assert cantle(home, "db", "check", behind).returncode == 0


def test_a_pooler_that_does_not_keep_sessions_is_refused(home, pooled):  # noqa: F811
    line = refused(cantle(home, "server", "--listen", "127.0.0.1:0", "--database", pooled("transaction")))
    assert line.endswith("does not keep sessions"), line
