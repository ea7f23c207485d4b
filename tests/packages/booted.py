"""A Debian 12 with systemd as its PID 1 (boot.sh), in which packages are installed and services run."""

import json
import pathlib
import subprocess
import time

import pytest

from conftest import ROOT, System

# Its console is a file here, and nobody logs in.
MASKED = ["console-getty.service"]
OUT_OF_MEMORY = 2
AGENT = """[daemon]
dynamic-gpus = true
create-queue = true
queue = ["half=0.5", "big=1"]
sim-gpus = "3xA100-40GB"
"""


def until(what, check, seconds=240):
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.2)
    return found


def check_filled(seen, limit_bytes):
    """What fill_slice.py reported: it saw the limit, and got it but for its context."""
    assert (seen["total_bytes"], seen["refused_code"]) == (limit_bytes, OUT_OF_MEMORY), seen
    assert limit_bytes - (614 << 20) < seen["allocated_bytes"] <= limit_bytes, seen


class Booted(System):
    def __init__(self, tree, mode, dir):
        super().__init__(tree)
        self.mode, self.dir, self.booted = mode, pathlib.Path(dir), None
        for unit in MASKED:
            (self.tree / "etc/systemd/system" / unit).symlink_to("/dev/null")

    @property
    def groups(self):
        """Where the control groups of systemd's units are."""
        return "/sys/fs/cgroup" if self.mode == "v2" else "/sys/fs/cgroup/unified"

    def machine(self):
        """The command that is the running machine."""
        (self.dir / "pid").unlink(missing_ok=True)
        return [ROOT / "tests/packages/boot.sh", self.mode, self.tree, self.dir]

    def is_reachable(self):
        """Commands can be sent to it."""
        return (self.dir / "pid").exists()

    def boot(self):
        self.booted = subprocess.Popen(self.machine(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        until("systemd as PID 1", self.is_up)
        return self

    def is_up(self):
        if self.booted.poll() is not None:
            said = self.booted.stderr.read() + "".join(p.read_text() for p in self.dir.glob("log"))
            if self.booted.returncode == 77:
                pytest.skip(said.strip().splitlines()[-1].removeprefix("skipped: "))
            pytest.fail(f"systemd ended as PID 1: {said}")
        if not self.is_reachable():
            return False
        state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
        assert state not in ("degraded", "maintenance"), self.run("systemctl", "--failed").stdout
        return state == "running"

    def command(self, *words):
        pid = (self.dir / "pid").read_text().strip()
        return ["nsenter", "--target", pid, "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", *words]

    def sh(self, script, **options):
        return self.run("sh", "-euc", script, **options).stdout

    def reboot(self):
        self.run("systemctl", "reboot", check=False)
        self.booted.wait(240)
        return self.boot()

    def off(self):
        if self.booted and self.booted.poll() is None:
            self.booted.terminate()
            self.booted.wait(240)

    def configure(self, agent=AGENT):
        self.bring(ROOT / "examples/fill_slice.py")
        path = self.tree / "etc/cantle/agent.toml"
        path.write_text(agent)

    def drop_in(self, unit, text):
        """Changes a unit as an administrator does."""
        path = self.tree / f"etc/systemd/system/{unit}.service.d/test.conf"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        self.run("systemctl", "daemon-reload")

    def shown(self, unit, name):
        return self.run("systemctl", "show", "--value", "--property", name, unit).stdout.strip()

    def submit(self, script, name, queue="half"):
        return self.run("cantle", "submit", "--queue", queue, "--name", name, "--", "sh", "-c", script).stdout.strip()

    def tasks(self):
        """Of each task, by its name: its state and the reason of its end."""
        items = json.loads(self.run("cantle", "tasks", "-o", "json").stdout)["items"]
        return {item["name"]: item for item in items}

    def states(self):
        return {name: item["state"] for name, item in self.tasks().items()}

    def members(self):
        """The first process of each task's control group, which is below the service's own."""
        script = f"cd {self.groups}/system.slice/cantle-agent.service; for each in */; do head -1 $each/cgroup.procs; done"
        return sorted(self.sh(script, check=False).split())

    def log(self, unit):
        return self.run("journalctl", "--no-pager", "--output", "cat", "--unit", unit).stdout
