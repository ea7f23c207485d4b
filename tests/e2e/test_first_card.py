"""The page for the first owner of a card, command by command as it is printed, on a machine with one GPU (simulated)."""

import os
import re
import shlex
import signal
import subprocess

import pytest

from machine import ROOT, Machine

PAGE = ROOT / "docs/guide/first-card.md"
# A suite of its own; tests/e2e/test_gpu_suite.py rehearses it.
ELSEWHERE = ["tests/gpu/run.sh"]


def blocks():
    """Each command of the page with the lines that it says are printed."""
    found = re.findall(r"^```console\n\$ (.+?)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    return [(command, expected.splitlines()) for command, expected in found]


@pytest.fixture(scope="module")
def machine():
    if not (ROOT / "dist/lib/cantle/sim/nvidia-smi").exists():
        pytest.skip("the machine has no nvidia-smi; run tests/setup.sh")
    # The page's server listens on its usual port: in a network that no other suite uses.
    found = Machine("1xH100-80GB", under=["unshare", "--net"])
    subprocess.run(on(found, "ip", "link", "set", "lo", "up"), check=True)
    yield found
    found.stop()


def on(machine, *words):
    """The command line that runs `words` on this machine, in its network."""
    return ["nsenter", f"--net=/proc/{machine.holder.pid}/ns/net", "--", *machine.command(*words)]


def assert_printed(output, expected):
    """All the lines of the page, in their order; other lines may stand between (a table with more rows, a note)."""
    lines = iter(output.splitlines())
    for line in expected:
        pattern = ".*".join(re.escape(part) for part in line.split("…"))
        assert any(re.fullmatch(pattern, each.rstrip()) for each in lines), f"no line «{line}» in order:\n{output}"


def run(machine, command, folder):
    shell = on(machine, "sh", "-c", f"cd {shlex.quote(str(folder))} ; {command}")
    env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return subprocess.run(shell, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)


# What a reader waits for in step 7: that the first task has its slice, and not two seconds.
HAS_ITS_SLICE = "until ls /run/cantle/node/leases/*.json >/dev/null 2>&1; do sleep 0.1; done"


def in_its_own_time(command):
    """Seconds that are enough at a prompt are not where other suites use the cores."""
    if "sleep 5 & sleep 2;" not in command:
        return command
    return command.replace("sleep 5 & sleep 2;", f"sh -c 'until [ -e seen ]; do sleep 0.1; done' & {HAS_ITS_SLICE};") + "; touch seen"


@pytest.mark.full
def test_every_command_prints_what_the_page_says(machine, tmp_path):
    for name in ["dist", "examples", "tests"]:
        (tmp_path / name).symlink_to(ROOT / name)
    serving = None
    commands = blocks()
    assert len(commands) == 11 and sum(in_its_own_time(command) != command for command, _ in commands) == 1
    try:
        for command, expected in commands:
            if command in ELSEWHERE:
                assert (ROOT / command).exists()
            elif " up " in command:
                shell = on(machine, "sh", "-c", f"cd {tmp_path} && exec {command}")
                env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
                serving = subprocess.Popen(shell, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                assert_printed("".join(serving.stdout.readline() for _ in expected), expected)
            else:
                assert_printed(run(machine, in_its_own_time(command), tmp_path).stdout, expected)
    finally:
        if serving:
            serving.send_signal(signal.SIGINT)
            serving.communicate(timeout=60)


@pytest.mark.full
def test_the_slice_is_half_and_the_control_is_whole(machine):
    """Commands 5 and 6 of the page: what they print must differ as the page says."""
    command, control = (next(c for c, _ in blocks() if c.endswith(end)) for end in ["-- python3 examples/fill_slice.py", "python3 examples/fill_slice.py"])
    control = "python3 examples/fill_slice.py"
    half, whole = (int(re.search(r'"total_bytes": (\d+)', run(machine, each, ROOT).stdout)[1]) for each in [command, control])
    # Rounded down to 2 MiB.
    assert half == whole // 2 // (2 << 20) * (2 << 20)


@pytest.mark.full
def test_the_bundle_has_no_secrets_and_says_what_it_has(machine, tmp_path):
    env = ["env", "CLEARML_API_SECRET_KEY=not-to-be-seen", "CANTLE_LIB_DIR=" + str(ROOT / "dist/lib/cantle")]
    logs = machine.path("/var/lib/cantle/agent/logs")
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "agent.log").write_text("agent starts\nwith secret_key=not-to-be-seen\n")
    command = [*env, ROOT / "dist/bin/cantle", "doctor", "--bundle", tmp_path / "bundle.txt"]
    done = subprocess.run(machine.command(*command), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == f"{tmp_path}/bundle.txt\n", done
    text = (tmp_path / "bundle.txt").read_text()
    assert "not-to-be-seen" not in text and "GPU-" not in text
    assert "agent starts" in text and "cuMemAlloc_v2" in text and "CLEARML_API_SECRET_KEY is set" in text
    sections = re.findall(r"^=== (.+)$", text, re.M)
    assert {"cantle", "doctor", "process", "mounts", "device nodes", "driver", "/proc/driver/nvidia/version"} <= set(sections)
    assert all(f"  {section} (" in done.stderr for section in sections), "listed before it is written"
