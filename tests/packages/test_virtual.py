"""The Debian package on a virtual machine with Debian 12 as its installer leaves it: bootloader aside, a system with a kernel of its own, control
groups of version 2, systemd as their manager, AppArmor, Docker and Podman from Debian. GPUs and driver are simulated; they are there from the
first process on, and cantle knows of no simulation (virtual.py). In `make soak`, because the processor is emulated."""

import json
import os
import subprocess

import pytest

from booted import check_filled, until
from conftest import ROOT, only
from virtual import Virtual, made

pytestmark = pytest.mark.skipif(not os.environ.get("CANTLE_TEST_ALL"), reason="in make soak: CANTLE_TEST_ALL=yes")
AGENT = """[daemon]
dynamic-gpus = true
create-queue = true
gpus = "0-2"
queue = ["dual_gpus=2", "quarter_gpu=0.25", "half_gpu=0.5", "single_gpu=1"]
docker = true
docker-image = "base:1"
"""
CONFINED = """
for name in ("cpu.max", "memory.max", "pids.max"):
    print(name, open("/sys/fs/cgroup/" + name).read().strip())
print("profile", open("/proc/self/attr/current").read().strip())
"""
LIMITS = "--cpus=0.5 --memory=256m --pids-limit=40"
CONFINED_TO = ["cpu.max 50000 100000", "memory.max 268435456", "pids.max 40"]
HUNGRY = "x = b'x' * (1 << 28)"
HALF, QUARTER = 20 << 30, 10 << 30


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    box = Virtual(made(), tmp_path_factory.mktemp("virtual"))
    try:
        box.prepare(only("*.deb"))
        box.boot()
        for path in (ROOT / "examples/fill_slice.py", subprocess.run(ROOT / "tests/rootfs.sh", capture_output=True, text=True, check=True).stdout.strip()):
            box.bring(path)
        box.write("/root/confined.py", CONFINED)
        box.sh("mv *-certificates.tar base.tar; docker import base.tar base:1; podman import --quiet base.tar base:1; systemctl start podman.socket")
        box.write("/etc/cantle/agent.toml", AGENT)
        box.run("systemctl", "enable", "--now", "cantle-server", "cantle-agent")
        yield box
    finally:
        box.off()


def filled(log):
    return json.loads(next(line for line in log.splitlines() if line.startswith("{")))


def ended(machine, name):
    return until(f"the end of {name}", lambda: (task := machine.tasks()[name])["state"] in ("completed", "failed") and task)


def test_the_machine_is_what_it_is_said_to_be(machine):
    """And without cantle, a program takes a whole GPU: the negative control."""
    assert machine.sh("stat -fc %T /sys/fs/cgroup").strip() == "cgroup2fs"
    assert machine.sh("cat /sys/module/apparmor/parameters/enabled").strip() == "Y"
    doctor = machine.run("cantle", "doctor").stdout
    assert "engine cgroups  version 2" in doctor and "Cgroup Driver: systemd" in machine.run("docker", "info").stdout
    got = filled(machine.run("python3", "/root/fill_slice.py").stdout)
    assert got["total_bytes"] == 40 << 30 and got["allocated_bytes"] > 39 << 30


def test_tasks_of_the_service_run_in_docker_and_keep_their_limits(machine):
    line = f"cantle submit --queue half_gpu --image base:1 -v /root:/mnt {LIMITS}"
    machine.sh(f"{line} --name confined -- python3 /mnt/confined.py; {line} --name fill -- python3 /mnt/fill_slice.py")
    for name in ("confined", "fill"):
        assert ended(machine, name)["state"] == "completed", machine.log("cantle-agent")
    tasks = machine.tasks()
    log = machine.run("cantle", "logs", tasks["confined"]["id"]).stdout
    assert CONFINED_TO + ["profile docker-default (enforce)"] == log.splitlines()[-4:], log
    check_filled(filled(machine.run("cantle", "logs", tasks["fill"]["id"]).stdout), HALF)


def test_a_task_that_is_killed_at_its_main_memory_says_so(machine):
    # By the task's own request, and by docker's option.
    machine.sh(f"cantle submit --queue half_gpu --image base:1 --memory 64Mi --name hungry -- python3 -c {HUNGRY!r}")
    task = ended(machine, "hungry")
    assert task["state"] == "failed" and "limit of 64 MiB of main memory" in task["reason"], task
    done = machine.run("sh", "-c", f"cantle run --gpu 0.25 --image base:1 --memory=64m -- python3 -c {HUNGRY!r}", check=False)
    assert done.returncode == 137 and "limit of 64 MiB of main memory" in done.stderr, done.stderr


def test_podman_with_crun(machine):
    assert machine.run("podman", "info", "--format", "{{.Host.OCIRuntime.Name}} {{.Host.CgroupManager}}").stdout.strip() == "crun systemd"
    line = f"cantle run --docker-socket /run/podman/podman.sock --gpu 0.25 --image localhost/base:1 -v /root:/mnt {LIMITS}"
    said = machine.sh(f"{line} -- python3 /mnt/confined.py").splitlines()
    assert said[:3] == CONFINED_TO and "containers-default" in said[3] and "(enforce)" in said[3], said
    check_filled(filled(machine.sh(f"{line} -- python3 /mnt/fill_slice.py")), QUARTER)


def test_the_engine_restarts_under_a_task(machine):
    """By its service, as an upgrade of Docker's package does. The task ends with its container, and its slice is free again."""
    machine.sh("cantle submit --queue half_gpu --image base:1 --name restarted -- sleep 600")
    until("it runs", lambda: machine.states()["restarted"] == "in_progress" and "cantle-" in machine.run("docker", "ps").stdout)
    machine.run("systemctl", "restart", "docker")
    assert ended(machine, "restarted")["state"] == "failed"
    check_filled(json.loads(machine.sh("cantle run --gpu 0.5 -- python3 /root/fill_slice.py")), HALF)


def test_a_reboot(machine):
    machine.sh("cantle submit --queue single_gpu --image base:1 --name rebooted -- sleep 600")
    until("it runs", lambda: machine.states()["rebooted"] == "in_progress" and "cantle-" in machine.run("docker", "ps").stdout)
    machine.reboot()
    assert ended(machine, "rebooted")["state"] == "failed"
    machine.sh("cantle submit --queue single_gpu --image base:1 -v /root:/mnt --name after -- python3 /mnt/fill_slice.py")
    assert ended(machine, "after")["state"] == "completed"
