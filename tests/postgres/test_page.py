"""Runs docs/guide/fleet.md line by line, on a machine for each prompt: PostgreSQL and its standby, three servers, HAProxy, an agent."""

import json
import os
import re
import shutil
import sys
import warnings

import pytest

from machines import ROOT, Machines

sys.path += [str(ROOT / "tests/e2e"), str(ROOT / "tests/cluster")]
from page import Page  # noqa: E402

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="machines of their own need root"),
    pytest.mark.skipif(not shutil.which("pg_createcluster") or not shutil.which("haproxy"), reason="no postgresql or haproxy of Debian here; tests/setup.sh installs them"),
]

# What the test types in place of a line. The packages are on the test's machine, which has no systemd and no SSH; people type passwords.
INSTEAD = {
    "apt-get install postgresql": "pg_lsclusters --no-header | grep online",
    "apt-get install haproxy": "haproxy -v",
    "systemctl restart haproxy": "(haproxy -db -f /etc/haproxy/haproxy.cfg >/var/log/haproxy.log 2>&1 &); curl -sk --retry 60 --retry-delay 1 --retry-all-errors https://localhost/readyz",
}
PASSWORDS = (
    (re.compile(r"(.*createuser.*--pwprompt.*)"), r"printf 'SECRET\nSECRET\n' | setsid --wait \1"),
    (re.compile(r"(.*pg_basebackup.*)"), r"PGPASSWORD=SECRET \1"),
)
# The page gives a server a second for this answer. One that starts on a slow machine takes connections and answers later; HAProxy cuts them.
TOO_SLOW = re.compile(r"is DOWN, reason: Layer\d timeout")
LINE = re.compile(r"(?:(\$)|([a-z]+\d*)#) (.*)")


@pytest.fixture
def machines():
    with Machines("db", "db2", "s1", "s2", "s3", "lb", "gpu1", "laptop") as found:
        found.point("fleet", "lb")
        # What the package does, at the same time on both.
        made = "{ pg_dropcluster --stop 15 main 2>/dev/null; pg_createcluster 15 main --start -- --no-sync >made 2>&1; }"
        found["db2"].run(f"{made} &")
        found["db"].run(made)
        found["db2"].until("pg_lsclusters", "online")
        yield found


class Reader:
    """Types the lines of blocks on the machine of their prompt."""

    def __init__(self, machines, page):
        self.machines, self.page = machines, page

    def block(self, begins, **filled):
        """What each line of the next block printed, after a comparison with the page's own output."""
        printed = []
        for line in self.page.next(begins).splitlines():
            found = LINE.fullmatch(line)
            if not found:
                assert same(line, printed[-1]), f"no «{line}» in:\n{printed[-1]}"
                continue
            command = found[3]
            for word, value in filled.items():
                command = command.replace(word, value)
            printed.append(self.type("laptop" if found[1] else found[2], command))
        return printed

    def type(self, machine, command):
        if machine not in self.machines.boxes:
            machine = next(name for name, at in self.machines.hosts.items() if at == self.machines.hosts[machine] and name != machine)
        box = self.machines[machine]
        for pattern, to in PASSWORDS:
            command = pattern.sub(to, command)
        if command.startswith("scp "):
            return self.copy(box, command)
        command = INSTEAD.get(command, command)
        if re.match(r"cantle (server|daemon)\b", command):
            return box.start(command)
        return box.run(command)

    def copy(self, box, command):
        """`scp FILE HOST:DIR`, and what follows it."""
        for part in command.split(" && "):
            if words := re.fullmatch(r"scp (\S+) (\S+):(\S+)", part):
                content = box.run(f"base64 --wrap=0 {words[1]}").strip()
                self.machines[words[2]].run(f"mkdir -p {words[3]}; echo {content} | base64 -d >{words[3]}{words[1]}")
            else:
                box.run(part)
        return ""


def same(line, printed):
    squeezed = lambda text: re.sub(" +", " ", text)  # noqa: E731
    return re.search(".*".join(re.escape(part.strip()) for part in squeezed(line).split("…")), squeezed(printed))


def test_from_nothing_to_three_servers_and_back(machines):
    page = Page("guide/fleet.md")
    reader = Reader(machines, page)
    servers = [machines[name] for name in ("s1", "s2", "s3")]
    laptop = machines["laptop"]
    reader.block("db# apt-get install postgresql")
    reader.block("s1# export CANTLE_DATABASE")
    assert reader.block("s1# curl")[0].strip().endswith("ok")
    reader.block("s1# cd /var/lib/cantle")
    machines["s1"].run("cd")
    reader.block("s1# cantle db status")
    config = page.next("defaults")
    machines["lb"].write("/etc/haproxy/haproxy.cfg", f"{config}\n")
    certificate = Page("guide/tls-and-login.md").next("openssl req").replace("gpu1", "fleet")
    machines["lb"].block(certificate)
    reader.block("lb# apt-get install haproxy")
    authority = machines["lb"].run("cat ca.crt")
    pair = json.loads(machines["s1"].run("cantle credentials -o json"))["items"][0]
    for name in ("gpu1", "laptop"):
        machines[name].write("/etc/cantle/ca.crt", authority)
    given = {"ACCESS_KEY=…": f"ACCESS_KEY={pair['access_key']}", "SECRET_KEY=…": f"SECRET_KEY={pair['secret_key']}"}
    reader.block("s1# cantle credentials", **given)
    laptop.run(f"export CANTLE_SERVER=https://fleet CANTLE_CA_FILE=/etc/cantle/ca.crt CLEARML_API_ACCESS_KEY={pair['access_key']} CLEARML_API_SECRET_KEY={pair['secret_key']}")
    reader.block("$ cantle submit --queue small --name first")
    the_loss_of_a_server(machines, reader)
    upgrades_in_turns(machines, reader, servers)
    a_lost_database(machines, reader, servers)
    for box in servers:
        box.stop()
    backup_and_restore(machines, reader)
    page.next("s1# cantle db copy")
    page.next("$ kubectl create secret")
    page.next("$ CANTLE_BENCH_TASKS")
    page.end()


STATUS = "cantle db status postgres://cantle@db/cantle"
# The database notices the end of a server, and another one leads, a moment later.
STATUS_OF_TWO = f"for n in $(seq 120); do {STATUS} | tee status | grep -qE ' 2 +s[23]/' && break; sleep 0.5; done; cat status"


def the_loss_of_a_server(machines, reader):
    long, _, _, status, _ = reader.block("$ cantle submit --queue small --name long", **{STATUS: STATUS_OF_TWO})
    assert re.search(r" 2 +s[23]/", status), "two servers, one of which leads"
    machines["laptop"].until(f"cantle tasks {long.strip()}", "completed")
    assert machines["laptop"].run(f"cantle logs {long.strip()}").strip() == "done"


def upgrades_in_turns(machines, reader, servers):
    """Nobody notices: calls in a row, each of which must succeed."""
    laptop = machines["laptop"]
    laptop.run("(while [ ! -e stop ]; do cantle tasks >/dev/null 2>>failed; done) & calls=$!")
    kill, start, wait = (LINE.fullmatch(line)[3] for line in reader.page.next("s1# kill $(pidof cantle)").splitlines())
    for name in ("s1", "s2", "s3"):
        reader.type(name, kill)
        machines[name].run("wait $stays || true")
        reader.type(name, start)
        reader.type(name, wait.replace("s1", name))
        if name != "s3":
            machines["lb"].run("sleep 2")
    laptop.run("touch stop; wait $calls; rm stop")
    failed, checks = laptop.run("cat failed"), machines["lb"].run("cat /var/log/haproxy.log")
    if failed and TOO_SLOW.search(checks):
        warnings.warn(f"not judged: this machine did not answer HAProxy's own question within a second\n{failed}\n{checks}")
    else:
        assert failed == "", f"{failed}\n{checks}"


def a_lost_database(machines, reader, servers):
    reader.block("db# su postgres -c \"createuser --replication")
    machines["db"].until("su postgres -c 'psql -Atc \"select sync_state from pg_stat_replication\"' | grep -x sync", "sync")
    refused = machines["s1"].run("cantle db check postgres://cantle@db2/cantle", code=1)
    assert "is read-only, as a standby is" in refused and "hint: " in refused
    task = reader.machines["laptop"].run("cantle submit --queue small -- sh -c 'sleep 3; echo survived'").strip()
    machines.lose("db")
    servers[0].until("curl -s http://localhost:8008/readyz", "does not answer")
    reader.block("db2# pg_ctlcluster 15 main promote")
    machines.point("db", "db2")
    for box in servers:
        box.until("curl -s http://localhost:8008/readyz", "ok")
    laptop = machines["laptop"]
    laptop.until(f"cantle tasks {task} 2>&1", "completed")
    laptop.until(f"cantle logs {task} 2>&1", "survived")


def backup_and_restore(machines, reader):
    reader.block("s1# pg_dump")
    reader.block("db# su postgres -c \"createdb --owner cantle --encoding UTF8 --template template0 restored")
    shown = machines["laptop"].until("cantle tasks 2>&1", "first")
    assert all(name in shown for name in ("first", "long", "second"))
