"""An upgrade of the Debian package under running tasks. No service manager: the test starts the agent again, as the service's
`Restart=` does."""

import subprocess
import time

from conftest import ROOT, only

TASKS = 20
# Both versions in one system that stays up: each step is a line of this script, run in it.
SCRIPT = """
set -eu
start() {
    cantle --config /etc/cantle/agent.toml up --sim-gpus 3xA100-40GB >>/root/up.log 2>&1 &
    agent=$!
    for _ in $(seq 600); do cantle nodes --no-headers 2>/dev/null | grep -q . && return; sleep 0.2; done
    cat /root/up.log; exit 1
}
printf '[up]\\nqueue = ["shares=0.125"]\\nkeep-tasks = %(keep)s\\n' >/etc/cantle/agent.toml
start
for each in $(seq %(tasks)d); do
    cantle submit --queue shares --name "task-$each" -- sh -c 'echo started >>/root/start-'"$each"'; while [ ! -e /root/go ]; do sleep 0.2; done; cantle limits -o json >/root/limit-'"$each"
done >/root/ids
for _ in $(seq 1500); do [ "$(ls /root/start-* 2>/dev/null | wc -l)" = %(tasks)d ] && break; sleep 0.2; done
# Each has words of its own: a shell that forks for `sleep` is there twice for a moment.
running() { cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep '^echo started' | sort -u | wc -l; }
before=$(running)
[ "$before" = %(tasks)d ]
dpkg --install /root/next.deb >/dev/null
kill -TERM "$agent"; wait "$agent" || true
after=$(running) || true
[ "$before" = "$after" ] || { echo "before $before, after $after tasks run"; exit 1; }
start
cantle --version
touch /root/go
for _ in $(seq 1500); do [ "$(cantle tasks --no-headers | grep -c completed)" = %(tasks)d ] && break; sleep 0.2; done
cantle tasks --no-headers
starts=$(cat /root/start-* | wc -l)
[ "$starts" = %(tasks)d ] || { echo "$starts starts"; exit 1; }
kill -TERM "$agent"; wait "$agent" || true
"""


def next_version(package, tmp_path):
    """The same package as the version that comes after it."""
    tree = tmp_path / "next"
    subprocess.run(["dpkg-deb", "-R", package, tree], check=True)
    control = tree / "DEBIAN/control"
    control.write_text(control.read_text().replace("Version: 0.1.0", "Version: 0.1.1"))
    subprocess.run(["dpkg-deb", "-Znone", "-b", tree, tmp_path / "next.deb"], check=True, capture_output=True)
    return tmp_path / "next.deb"


def upgrade(debian, tmp_path, tasks, keep):
    debian.run("dpkg", "--install", debian.bring(only("*.deb")))
    debian.bring(next_version(only("*.deb"), tmp_path))
    (debian.tree / "root/script").write_text(SCRIPT % {"tasks": tasks, "keep": keep})
    return debian.run("sh", "/root/script", check=False, timeout=900)


def test_twenty_tasks_do_not_notice_an_upgrade(debian, tmp_path):
    began = time.monotonic()
    done = upgrade(debian, tmp_path, TASKS, "true")
    assert done.returncode == 0, done.stdout + done.stderr
    states = [line for line in done.stdout.splitlines() if "task-" in line]
    assert len(states) == TASKS and all("completed" in line for line in states), done.stdout
    limits = [path.read_text() for path in (debian.tree / "root").glob("limit-*")]
    assert len(limits) == TASKS and all("5368709120" in text for text in limits), limits[:1]
    assert "0.1.1" in debian.run("dpkg-query", "--show", "cantle").stdout
    print(f"{TASKS} tasks over an upgrade: {time.monotonic() - began:.1f} s")


def test_without_the_option_the_agent_stops_its_tasks(debian, tmp_path):
    """The control: the test above notices a task that ends with its agent."""
    done = upgrade(debian, tmp_path, 2, "false")
    assert done.returncode != 0 and "after 0 tasks run" in done.stdout, done.stdout + done.stderr
