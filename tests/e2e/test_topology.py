"""Tasks of several GPUs on machines whose GPUs are not all connected alike."""

import subprocess
import time

import pytest

from conftest import FILL, hold_until, wait_until


def busy(box, tmp_path, gpus):
    """A task of `cantle run` that holds whole GPUs until its file is there."""
    over = tmp_path / "busy.over"
    box.start("run", "--gpus", str(gpus), "--", *hold_until(over), log="busy.log")
    wait_until(lambda: sum(used > 0 for used in box.used()) == gpus, 60, box.used)
    return over


def run(box, gpus):
    """The GPUs that the driver itself counts as used by a task of `cantle run`, and what the command printed."""
    uuids = [gpu["uuid"] for gpu in box.truth()]
    done = box.cli("run", "--gpus", str(gpus), "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    return [uuids.index(uuid) for uuid in done.stdout.strip().split(",")], done.stderr


@pytest.mark.parametrize(
    ("spec", "pair", "said", "quad"),
    [
        ("8xA40-48GB,topology=nvlink-bridge", [2, 3], "GPUs 2 and 3: NVLink (NV4)\n", [4, 5, 6, 7]),
        ("8xRTX4090-24GB,topology=pcie", [2, 3], "GPUs 2 and 3: PCIe (PIX)\n", [4, 5, 6, 7]),
        ("8xH100-80GB", [1, 2], "GPUs 1 and 2: NVLink (NV18)\n", [4, 5, 6, 7]),
        # Negative control: of a machine without a known topology, the lowest GPUs are taken.
        ("8xA40-48GB,topology=unknown", [1, 2], None, [1, 2, 3, 4]),
    ],
)
def test_a_pair_is_linked_and_a_quad_is_whole(make_cantle, tmp_path, spec, pair, said, quad):
    box = make_cantle(spec)
    over = busy(box, tmp_path, 1)
    gpus, printed = run(box, 2)
    assert gpus == pair
    assert said in printed if said else "GPUs 1 and 2" not in printed
    assert run(box, 4)[0] == quad
    over.touch()


def test_where_no_pair_is_free(make_cantle, tmp_path):
    box = make_cantle("4xA40-48GB,topology=nvlink-bridge")
    over = busy(box, tmp_path, 1)
    # The task has GPU 0. A process of somebody else takes one of the other pair.
    words = box.machine.command("env", "CUDA_VISIBLE_DEVICES=2", *FILL, "--hold", "600")
    box.background.append(subprocess.Popen(words, env=box.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
    wait_until(lambda: box.used()[2] > 0, 60, box.used)
    gpus, printed = run(box, 2)
    assert gpus == [1, 3] and "GPUs 1 and 3: PCIe (NODE); no better connected pair was free" in printed
    over.touch()


def test_the_server_shows_links_and_reasons(make_cantle, tmp_path):
    box = make_cantle("4xA40-48GB,topology=nvlink-bridge")
    (local,) = [pair for pair in box.json("gpus", "--topology") if pair["gpus"] == [0, 1]]
    assert (local["link"], local["nvlinks"], local["path"]) == ("NV4", 4, "PIX")
    box.up("--queue", "pair=2", "--queue", "one=1")
    over = tmp_path / "over"
    one = box.submit("one", *hold_until(over))
    box.wait_state(one, "in_progress")
    pair = box.submit("pair", *hold_until(over))
    box.wait_state(pair, "in_progress")
    said = "GPUs 2 and 3: NVLink (NV4)"
    wait_until(lambda: said in box.cli("why", pair).stdout, 60, lambda: box.cli("why", pair).stdout)
    assert "GPUs" not in box.cli("why", one).stdout
    wait_until(lambda: said in box.cli("events", "--task", pair).stdout, 60, lambda: box.cli("events", "--task", pair).stdout)
    title, head, *rows = box.cli("gpus", "--topology").stdout.splitlines()
    assert title.startswith("node ") and head.split() == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert rows[0].split() == ["GPU0", "X", "NV4", "NODE", "NODE"] and rows[3].split() == ["GPU3", "NODE", "NODE", "NV4", "X"]
    over.touch()
    box.wait_state(pair, "completed")


def test_a_driver_that_does_not_answer_costs_nothing(make_cantle):
    """Every call about connections fails: the machine is as one without a topology."""
    box = make_cantle("8xA40-48GB,topology=nvlink-bridge")
    calls = ["nvmlDeviceGetNvLinkState", "nvmlDeviceGetTopologyCommonAncestor"]
    box.machine.faults("".join(f"{call} error=999\n" for call in calls))
    began = time.monotonic()
    assert run(box, 2)[0] == [0, 1]
    assert time.monotonic() - began < 30
    assert "reports no connections" in box.cli("gpus", "--topology").stderr
