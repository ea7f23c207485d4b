"""A talkative task: how much of its output is sent and kept, and what other tasks notice of it."""

import time

from conftest import wait_until

QUEUES = ["--queue", "none=none"]
MIB = 1 << 20


def talker(mib, then="exit 3"):
    """Numbered lines of 64 bytes, and a last one."""
    return ["sh", "-c", f"seq -f '%063.0f' {mib * MIB // 64}; echo the reason; {then}"]


def test_the_beginning_and_the_end_of_the_output_are_sent(cantle):
    cantle.up(*QUEUES, "--output-limit", "4Mi")
    task = cantle.submit("none", *talker(24))
    ended = cantle.wait_state(task, "completed", "failed")
    assert ended["state"] == "failed" and ended["exit_code"] == 3, ended
    wait_until(lambda: "the reason" in cantle.output(task), 60, "the end of the output")
    lines = cantle.output(task).splitlines()
    numbers = [int(line) for line in lines if line.isdigit()]
    first = next(n for n, number in enumerate(numbers, 1) if n != number) - 1
    assert 4 * MIB <= first * 64 < 5 * MIB, first
    last = numbers[first:]
    assert last == list(range(last[0], 24 * MIB // 64 + 1)) and 0.9 * MIB < len(last) * 64 <= MIB, last[:3]
    (note,) = [line for line in lines if "left out here" in line]
    assert note.endswith("MiB of output is left out here; the limit of a run is 4 MiB (--output-limit)"), note
    assert lines[-1] == "the reason"


def test_all_of_a_shorter_output_is_sent(cantle):
    """The negative control."""
    cantle.up(*QUEUES)
    task = cantle.submit("none", *talker(6, then="true"))
    cantle.wait_state(task, "completed")
    lines = cantle.output(task).splitlines()
    assert [int(line) for line in lines if line.isdigit()] == list(range(1, 6 * MIB // 64 + 1))
    assert not any("left out" in line for line in lines)


def test_a_talker_that_runs_keeps_no_disk(cantle, tmp_path):
    cantle.up(*QUEUES, "--output-limit", "1Mi")
    go = tmp_path / "go"
    task = cantle.submit("none", *talker(64, then=f"until [ -e {go} ]; do sleep 0.2; done"))
    jobs = cantle.machine.path("/var/lib/cantle/agent/jobs")
    (output,) = wait_for(lambda: list(jobs.glob("*/output.log")))
    wait_until(lambda: output.stat().st_size > 64 * MIB, 60, "the output")
    wait_until(lambda: output.stat().st_blocks * 512 < 4 * MIB, 60, lambda: f"{output.stat().st_blocks * 512} bytes on disk")
    assert "has reached its limit of 1 MiB" in cantle.output(task)
    go.touch()
    cantle.wait_state(task, "completed")
    wait_until(lambda: "the reason" in cantle.output(task), 60, "the end of the output")


def wait_for(look, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found
