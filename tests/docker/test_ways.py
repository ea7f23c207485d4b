"""A slice in a container, whatever the engine and its cgroups: two halves of a GPU, and what the engine was asked for.

`matrix.sh` says which engine it is: with $CANTLE_TEST_CDI it must get slices as devices, with $CANTLE_TEST_CGROUP it must be on that
version of cgroups."""

import os
import pathlib

from conftest import HERE, IMAGE, LEASE, driver, installation

GIB = 1 << 30
FILL = ["python3", "/tools/fill.py"]
TOOLS = ["-v", f"{HERE}:/tools:ro"]
SPECS = pathlib.Path("/run/cdi")
wait_until = installation.wait_until


def test_two_halves_of_a_gpu(make_cantle, engine):
    version = os.environ.get("CANTLE_TEST_CGROUP")
    assert version is None or engine.client("info", "--format", "{{.CgroupVersion}}").stdout.strip() == version
    cantle = make_cantle([0])
    cantle.up("--queue", "half=0.5", "--docker", IMAGE, *TOOLS)
    tasks = [cantle.submit("half", *FILL, "600") for _ in range(2)]
    for task in tasks:
        wait_until(lambda t=task: len(cantle.said(t)) == 1, 90, lambda t=task: cantle.output(t))
        taken, code, shown = map(int, cantle.said(task)[0].split())
        assert (code, shown) == (2, 20480) and 19 * 1024 < taken < 20480, ([cantle.output(each) for each in tasks], cantle.truth())
    assert cantle.used() == [40 * GIB]

    for task in tasks:
        container = engine.container_of(task)
        found = engine.inspect(container)
        host = found["HostConfig"]
        asked = [(each["Driver"], each["DeviceIDs"]) for each in host["DeviceRequests"] or []]
        mounted = [each["Target"] for each in host.get("Mounts") or []]
        if os.environ.get("CANTLE_TEST_CDI"):
            assert asked == [("cdi", [f"cantle.dev/slice={found['Config']['Labels'][LEASE]}"])]
            assert mounted == [] and not host["Devices"], "the engine found the rest itself"
        else:
            assert asked == [] and "/run/cantle/slice/limits" in mounted
        nodes = engine.client("exec", container, "sh", "-c", "cd /dev && echo nvidia*").stdout.split()
        assert sorted(nodes) == ["nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidiactl"], "no other GPU's"
        # Whoever enters the container meets the same limit.
        entered = engine.client("exec", container, "env", "-i", *FILL, code=None)
        assert entered.returncode != 0 and cantle.used() == [40 * GIB]

    for task in tasks:
        cantle.cli("stop", task)
        cantle.wait_state(task, "stopped", seconds=90)
    wait_until(lambda: engine.containers() == [] and cantle.used() == [0], 60, engine.containers)
    assert list(SPECS.glob("*")) == [], "no spec outlives its lease"

    whole = engine.client("run", "--rm", "--network", "none", *driver(0), *TOOLS, IMAGE, *FILL).stdout
    taken, code, shown = map(int, whole.split())
    assert taken > 39 * 1024 and (code, shown) == (2, 40960), "negative control: without cantle it is the whole GPU"
