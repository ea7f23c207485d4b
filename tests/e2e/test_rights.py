"""People with keys of their own, with the CLI as they have it: what is wrong with a name, a right or a key is one line that says what to
do, and a server of the first release lets its people in after the upgrade."""

import json
import os
import sqlite3
import subprocess

import pytest

from conftest import CANTLE, ROOT, wait_until


class Server:
    """`cantle server` with a state directory of its own."""

    def __init__(self, home):
        self.state = home / "state"
        self.log = home / "server.log"
        self.child = None

    def start(self):
        out = open(self.log, "wb")
        words = [CANTLE, "server", "--listen", "127.0.0.1:0", "--state", self.state]
        self.child = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, env=self.env())
        wait_until(lambda: b"server is up: " in self.log.read_bytes() or self.child.poll() is not None, 60, "the server")
        self.url = self.log.read_text().split("server is up: ")[1].split()[0]
        return self

    def stop(self):
        if self.child:
            self.child.terminate()
            self.child.wait(30)

    def env(self, **more):
        return {"PATH": os.environ["PATH"], "HOME": str(self.state.parent), "CANTLE_STATE_DIR": str(self.state)} | more

    def cli(self, *words, keys=None, code=0):
        """As root of the server, or as the user with these keys on another machine."""
        env = self.env()
        if keys:
            pair = {"CLEARML_API_ACCESS_KEY": keys["access_key"], "CLEARML_API_SECRET_KEY": keys["secret_key"]}
            env = self.env(CANTLE_STATE_DIR=str(self.state.parent / "none"), CANTLE_SERVER=self.url, **pair)
        done = subprocess.run([CANTLE, *words], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *words):
        return json.loads(self.cli("-o", "json", *words).stdout)["items"]

    def refused(self, *words, keys=None, code):
        """The line and its hints."""
        done = self.cli(*words, keys=keys, code=code)
        assert done.stdout == ""
        line, *hints = done.stderr.strip().splitlines()
        assert line.startswith("cantle: ") and all(hint.startswith("hint: ") for hint in hints), done.stderr
        return line.removeprefix("cantle: "), " ".join(hints)


@pytest.fixture
def server(tmp_path):
    found = Server(tmp_path)
    yield found
    found.stop()


def test_what_is_wrong_is_one_line_that_says_what_to_do(server):
    server.start()
    server.cli("quota", "set", "vision", "--gpu", "2")
    [anna] = server.json("users", "add", "anna", "--role", "member", "--project", "vision")

    line, hints = server.refused("users", "add", "ben", "--role", "boss", code=2)
    assert "'boss'" in line and "admin, manager, member, viewer, agent" in line
    assert server.refused("users", "add", "ben", "--role", "member", "--project", "nosuch", code=3) == (
        "there is no project nosuch",
        "hint: cantle projects lists them",
    )
    for words in (["users", "role", "ben", "--role", "member"], ["users", "remove", "ben"], ["users", "session", "list", "ben"]):
        assert server.refused(*words, code=3) == ('there is no user "ben"', "hint: cantle users list lists them"), words
    line, _ = server.refused("users", "session", "end", "nosuch", code=1)
    assert line == "session: nosuch is none of yours"

    # A right that is missing: which, where, and who grants it.
    for words, right, ask in [
        (["users", "list"], '"administer" everywhere', "ask an administrator"),
        (["users", "session", "list", "--all"], '"administer" everywhere', "ask an administrator"),
        (["quota", "set", "vision", "--gpu", "1"], '"manage" everywhere', "ask an administrator"),
    ]:
        line, hints = server.refused(*words, keys=anna, code=4)
        assert f"needs the right {right}; anna lacks it; {ask}" in line and "cantle users role USER" in hints, words

    server.cli("users", "key", "revoke", anna["access_key"])
    line, hints = server.refused("tasks", keys=anna, code=4)
    assert f"the key {anna['access_key']} of anna was revoked" in line and "cantle users key add" in hints
    line, hints = server.refused("tasks", keys=anna | {"secret_key": "wrong"}, code=4)
    assert "(invalid credentials)" in line and hints == "hint: check access key and secret key"


def test_a_server_of_the_first_release_lets_its_people_in(server):
    """Its database and both of its key pairs, as 0.1.0 left them."""
    folder = server.state / "server"
    folder.mkdir(parents=True)
    database = sqlite3.connect(folder / "cantle.db")
    database.executescript((ROOT / "crates/service/store/tests/databases/0.1.0.sql").read_text())
    database.close()
    pair = lambda name: {"url": "http://127.0.0.1:1", "access_key": name, "secret_key": name.lower() * 8}  # noqa: E731
    for file, name in [("credentials", "OLDADMIN"), ("viewer", "OLDVIEWER")]:
        (folder / f"{file}.json").write_text(json.dumps(pair(name)))
    server.start()
    assert "is the administrator's; give each person a pair of their own: cantle users add NAME" in server.log.read_text()

    old, looks = pair("OLDADMIN"), pair("OLDVIEWER")
    tasks = json.loads(server.cli("-o", "json", "tasks", keys=old).stdout)["items"]
    assert {task["name"]: task["user"] for task in tasks}["runs"] == "admin" and len(tasks) == 6
    server.cli("users", "list", keys=old)
    assert len(json.loads(server.cli("-o", "json", "tasks", keys=looks).stdout)["items"]) == 6
    line, _ = server.refused("stop", "t-runs", keys=looks, code=4)
    assert 'needs the right "manage"' in line
    # It is said once, not at each start.
    server.stop()
    server.start()
    assert "give each person" not in server.log.read_text()
