"""A slice in a container, whatever the engine, its cgroups and the place of the driver's files: two halves of a GPU, and what the engine was
asked for.

`matrix.sh` says which engine it is: with $CANTLE_TEST_CDI it must get slices as devices, with $CANTLE_TEST_CGROUP it must be on that
version of cgroups, with $CANTLE_TEST_REMAP the root of containers must be an ordinary user."""

import contextlib
import os
import pathlib
import threading

from conftest import HERE, IMAGE, LAYOUT, LEASE, driver, installation

GIB = 1 << 30
FILL = ["python3", "/tools/fill.py"]
TOOLS = ["-v", f"{HERE}:/tools:ro"]
SPECS = pathlib.Path("/run/cdi")
WRITTEN = [SPECS, pathlib.Path("/run/cantle"), pathlib.Path("/var/lib/cantle")]
wait_until = installation.wait_until


@contextlib.contextmanager
def every_spec():
    """All that CDI specs ever hold meanwhile, with the modes of their files: each is there for a moment only."""
    seen, is_over = set(), threading.Event()

    def look():
        while not is_over.wait(0.005):
            for path in SPECS.glob("*"):
                with contextlib.suppress(FileNotFoundError):
                    seen.add((path.stat().st_mode & 0o777, path.read_bytes()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def readable_for_others(folders):
    """Files that every user of the machine can read; those of the simulated GPUs are the machine's."""
    for folder in folders:
        for at, dirs, names in os.walk(folder):
            dirs[:] = [name for name in dirs if name != "sim" and pathlib.Path(at, name).stat().st_mode & 0o001]
            for path in (pathlib.Path(at, name) for name in names):
                if path.is_file() and path.stat().st_mode & 0o004:
                    yield path


def test_two_halves_of_a_gpu(make_cantle, engine):
    version = os.environ.get("CANTLE_TEST_CGROUP")
    assert version is None or engine.client("info", "--format", "{{.CgroupVersion}}").stdout.strip() == version
    cantle = make_cantle([0])
    cantle.up("--queue", "half=0.5", "--docker", IMAGE, *TOOLS)
    with every_spec() as specs:
        tasks = [cantle.submit("half", *FILL, "600") for _ in range(2)]
        for task in tasks:
            wait_until(lambda t=task: len(cantle.said(t)) == 1, 240, lambda t=task: cantle.output(t))
    for task in tasks:
        taken, code, shown = map(int, cantle.said(task)[0].split())
        assert (code, shown) == (2, 20480) and 19 * 1024 < taken < 20480, ([cantle.output(each) for each in tasks], cantle.truth())
    assert cantle.used() == [40 * GIB]

    # The secrets that a task may know and other users may not: the agent's key, and the task's own token.
    secrets = [cantle.json("credentials")[0]["secret_key"].encode()]
    for task in tasks:
        env = dict(each.split("=", 1) for each in engine.inspect(engine.container_of(task))["Config"]["Env"])
        secrets.append(env["CLEARML_AUTH_TOKEN"].encode())
    told = [path for path in readable_for_others(WRITTEN) if any(secret in path.read_bytes() for secret in secrets)]
    assert told == [], "files with a secret that everybody can read"
    assert {mode for mode, _ in specs} <= {0o600} and not any(secret in text for _, text in specs for secret in secrets)
    assert bool(specs) == bool(os.environ.get("CANTLE_TEST_CDI")), "this test saw them"

    for task in tasks:
        container = engine.container_of(task)
        found = engine.inspect(container)
        host = found["HostConfig"]
        if os.environ.get("CANTLE_TEST_REMAP"):
            ids = pathlib.Path(f"/proc/{found['State']['Pid']}/uid_map").read_text().split()
            assert ids[0] == "0" and int(ids[1]) > 1 << 30, "root of the container is no user of the machine"
        asked = [(each["Driver"], each["DeviceIDs"]) for each in host["DeviceRequests"] or []]
        mounted = [each["Target"] for each in host.get("Mounts") or []]
        if os.environ.get("CANTLE_TEST_CDI"):
            assert asked == [("cdi", [f"cantle.dev/slice={found['Config']['Labels'][LEASE]}"])]
            assert mounted == [] and not host["Devices"], "the engine found the rest itself"
        else:
            assert asked == [] and "/run/cantle/slice/limits" in mounted
        nodes = engine.client("exec", container, "sh", "-c", "cd /dev && ls | grep -E '^(nvidia|dxg)'").stdout.split()
        own = ["nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidiactl"]
        assert sorted(nodes) == (["dxg"] if LAYOUT == "wsl" else own), "no other GPU's"
        # The driver's files exist under the names that programs know.
        others = ["libnvidia-ptxjitcompiler.so.1", "libcudadebugger.so.1", *(["libdxcore.so"] if LAYOUT == "wsl" else [])]
        there = [f"/usr/lib/x86_64-linux-gnu/{name}" for name in others]
        there += ["/usr/lib/wsl/drivers/nv_dispi.inf_amd64_0/nvlddmkm.sys"] if LAYOUT == "wsl" else ["/usr/bin/nvidia-smi"] if LAYOUT != "nixos" else []
        engine.client("exec", container, "ls", *there)
        # A process that enters the container meets the same limit.
        entered = engine.client("exec", container, "env", "-i", *FILL, code=None)
        assert entered.returncode != 0 and cantle.used() == [40 * GIB]

    for task in tasks:
        cantle.cli("stop", task)
        cantle.wait_state(task, "stopped", seconds=240)
    wait_until(lambda: engine.containers() == [] and cantle.used() == [0], 180, engine.containers)
    assert list(SPECS.glob("*")) == [], "no spec outlives its lease"

    whole = engine.client("run", "--rm", "--network", "none", *driver(0), *TOOLS, IMAGE, *FILL).stdout
    taken, code, shown = map(int, whole.split())
    assert taken > 39 * 1024 and (code, shown) == (2, 40960), "negative control: without cantle it is the whole GPU"
