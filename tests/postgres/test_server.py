"""A server and its real PostgreSQL, as an operator sees them: the database is away, comes back, or cannot be used.

`with-server.sh` starts the PostgreSQL; run.sh runs these tests after those of the store.
"""

import contextlib
import itertools
import json
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CANTLE = os.environ.get("CANTLE", str(ROOT / "dist/bin/cantle"))
PG = os.environ.get("CANTLE_TEST_POSTGRES", "")
CTL = os.environ.get("CANTLE_TEST_PG_CTL", "")
PATIENCE_S = 180

pytestmark = pytest.mark.skipif(not PG, reason="tests/postgres/with-server.sh starts the PostgreSQL")
numbers = itertools.count()


def psql(statement, database="postgres"):
    program = sorted(Path("/usr/lib/postgresql").glob("*/bin/psql"))[-1]
    return subprocess.run([program, f"{PG}/{database}", "-XAtqc", statement], check=True, capture_output=True, text=True).stdout.strip()


def control(*words):
    subprocess.run([CTL, *words], check=True, stdout=subprocess.DEVNULL)


def until(what, is_so):
    end = time.monotonic() + PATIENCE_S
    while not (found := is_so()):
        assert time.monotonic() < end, what
        time.sleep(0.1)
    return found


@pytest.fixture
def url():
    """A fresh database."""
    name = f"s{os.getpid()}_{next(numbers)}"
    psql(f"CREATE DATABASE {name}")
    return f"{PG}/{name}"


@pytest.fixture
def home(tmp_path):
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CANTLE_STATE_DIR": str(tmp_path / "state")}


def cantle(home, *words):
    return subprocess.run([CANTLE, *words], env=home, capture_output=True, text=True, timeout=PATIENCE_S)


class Server:
    def __init__(self, home, url):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = Path(home["HOME"]) / "server.log"
        words = [CANTLE, "server", "--listen", f"127.0.0.1:{self.port}", "--database", url]
        self.process = subprocess.Popen(words, env=home, stdout=subprocess.DEVNULL, stderr=self.log.open("w"))

    def ready(self):
        """Status and text of /readyz; None while nothing listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as answer:
            return answer.code, answer.read().decode()
        except OSError:
            return None

    def until(self, status):
        return until(f"/readyz answers {status}", lambda: (found := self.ready()) and found[0] == status and found)[1]


@pytest.fixture
def start(home):
    with contextlib.ExitStack() as stack:

        def start(url):
            server = Server(home, url)
            stack.callback(server.process.wait, PATIENCE_S)
            stack.callback(server.process.terminate)
            return server

        yield start


@pytest.fixture
def stopped():
    """Stops PostgreSQL; it runs again after the test."""
    yield lambda: control("-m", "immediate", "stop")
    if subprocess.run([CTL, "status"], stdout=subprocess.DEVNULL).returncode != 0:
        control("start")


def test_a_server_waits_for_its_database_and_goes_on_when_it_is_back(start, stopped, url):
    stopped()
    server = start(url)
    place = url.rpartition("@")[2]
    # It answers before it has tried the database.
    until("it says what it waits for", lambda: (found := server.ready()) and found[0] == 503 and f"waiting for the database at postgres://{place}" in found[1])
    until("its log says so", lambda: "waiting for the database at" in server.log.read_text())
    assert server.process.poll() is None
    control("start")
    server.until(200)
    control("-m", "immediate", "stop")
    server.until(503)
    assert server.process.poll() is None, "a server outlives its database"
    control("start")
    server.until(200)
    assert "cantle:cantle" not in server.log.read_text(), "the password is in the log"


def test_a_server_whose_session_is_ended_while_it_starts_waits_as_well(start, url):
    """It checks the tables under a lock. Another session has the lock, so that it is known where the server is."""
    name = url.rpartition("/")[2]
    # sqlx's, by the name of the database.
    lock = 0x3D32AD9E * zlib.crc32(name.encode())
    program = sorted(Path("/usr/lib/postgresql").glob("*/bin/psql"))[-1]
    holder = subprocess.Popen([program, url, "-XAtqc", f"SELECT pg_advisory_lock({lock}), pg_sleep(600)"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        of_database = f"FROM pg_stat_activity WHERE datname = '{name}' AND"
        until("the lock is taken", lambda: psql(f"SELECT count(*) {of_database} query LIKE '%pg_sleep%'") == "1")
        server = start(url)
        waiting = f"{of_database} application_name LIKE 'cantle%' AND wait_event = 'advisory'"
        until("the server waits for the lock", lambda: psql(f"SELECT count(*) {waiting}") == "1")
        psql(f"SELECT pg_terminate_backend(pid) {waiting}")
        until("its log says so", lambda: "waiting for the database at" in server.log.read_text() or server.process.poll() is not None)
        assert server.process.poll() is None, server.log.read_text()
    finally:
        holder.kill()
        psql(f"SELECT pg_terminate_backend(pid) {of_database} query LIKE '%pg_sleep%'")
    server.until(200)


def refused(result):
    """Its one line; below it are hints only."""
    assert result.returncode != 0 and result.stdout == ""
    line, *hints = result.stderr.strip().splitlines()
    assert line.startswith("cantle: ") and hints and all(hint.startswith("hint: ") for hint in hints), result.stderr
    assert "secret" not in result.stderr, "the password is on the screen"
    return line


WRONG = {
    "scheme": (lambda url: "mysql://u:secret@h/d", 2, "--database mysql is not supported"),
    "password": (lambda url: url.replace("cantle:cantle@", "cantle:secret@"), 1, "refuses the connection: .*password"),
    "user": (lambda url: url.replace("cantle:cantle@", "nobody:secret@"), 1, "refuses the connection: "),
    "name": (lambda url: f"{PG}/no_such", 1, "refuses the connection: .*no_such.*does not exist"),
}


@pytest.mark.parametrize("words", [("server", "--listen", "127.0.0.1:0", "--database"), ("db", "check"), ("db", "status"), ("db", "migrate")], ids=" ".join)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_database_that_cannot_be_used_is_refused(home, url, words, wrong):
    change, code, said = WRONG[wrong]
    result = cantle(home, *words, change(url))
    line = refused(result)
    assert (result.returncode, bool(re.search(said, line))) == (code, True), line


def test_a_newer_database_is_refused_and_left_as_it_is(home, url):
    assert cantle(home, "db", "migrate", url).returncode == 0
    name = url.rpartition("/")[2]
    psql("UPDATE _sqlx_migrations SET version = 9999 WHERE version = (SELECT MAX(version) FROM _sqlx_migrations)", name)
    before = psql("SELECT string_agg(version::text, ' ' ORDER BY version) FROM _sqlx_migrations", name)
    for words in (("server", "--listen", "127.0.0.1:0", "--database"), ("db", "migrate"), ("db", "check")):
        assert "was written by a newer version of cantle (its tables are of version 9999)" in refused(cantle(home, *words, url))
    assert psql("SELECT string_agg(version::text, ' ' ORDER BY version) FROM _sqlx_migrations", name) == before


def test_a_standby_is_refused(home, url):
    """A real one: PostgreSQL in recovery, without a primary that it follows."""
    data = Path(CTL).parent / "data"
    signal = data / "standby.signal"
    signal.touch()
    os.chown(signal, data.stat().st_uid, data.stat().st_gid)
    try:
        control("restart")
        assert psql("SELECT pg_is_in_recovery()") == "t"
        for words in (("server", "--listen", "127.0.0.1:0", "--database"), ("db", "migrate"), ("db", "check")):
            assert refused(cantle(home, *words, url)).endswith("is read-only, as a standby is")
    finally:
        signal.unlink()
        control("restart")


def test_the_status_names_servers_and_leader_and_the_check_finds_what_is_broken(home, start, url):
    def status():
        [found] = json.loads(cantle(home, "db", "status", url, "-o", "json").stdout)["items"]
        return found

    empty = status()
    assert (empty["schema"], empty["tasks"], empty["servers"]) == (0, {}, []) and empty["pending"]
    server = start(url)
    server.until(200)
    until("a leader", lambda: any(one["leads"] for one in status()["servers"]))
    found = status()
    assert (found["kind"], found["pending"], found["schema"]) == ("PostgreSQL", [], empty["pending"][-1])
    assert found["version"] in psql("SELECT version()") and "cantle:cantle" not in found["database"]
    [one] = found["servers"]
    assert one["name"] == f"{socket.gethostname()[:44]}/{server.process.pid}" and one["address"] == "127.0.0.1"
    assert cantle(home, "db", "check", url).returncode == 0
    psql("INSERT INTO queue_entries (task, queue, position, added_us) VALUES ('t', 'q', 1, 1)", url.rpartition("/")[2])
    broken = cantle(home, "db", "check", url)
    assert broken.returncode == 1 and "wait in a queue, and are not queued" in broken.stdout
    assert "records do not fit together" in broken.stderr


INDEX = "SELECT count(*) FROM pg_indexes WHERE indexname = 'tasks_by_text'"


@pytest.mark.parametrize("may_make_extensions", [True, False])
def test_names_are_indexed_by_their_trigrams_where_the_user_may_add_the_extension(start, may_make_extensions):
    """A user who owns the database may, as the guide makes one; a user with a schema alone has no index, and a server all the same."""
    name = f"s{os.getpid()}_{next(numbers)}"
    psql(f"CREATE ROLE {name} LOGIN PASSWORD 'own'")
    psql(f"CREATE DATABASE {name}" + (f" OWNER {name}" if may_make_extensions else ""))
    psql(f"CREATE SCHEMA own AUTHORIZATION {name}", name)
    at = PG.rpartition("@")[2]
    server = start(f"postgres://{name}:own@{at}/{name}?options=-c%20search_path%3Down")
    server.until(200)
    assert psql(INDEX, name) == str(int(may_make_extensions))
