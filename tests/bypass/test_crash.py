"""Processes of one slice die at any instant; the others go on, the limit holds, and nothing stays charged."""

import ctypes
import json
import os

from conftest import LIMIT, MIB, SIM

KILLS = int(os.environ.get("CANTLE_STRESS_KILLS", "200"))


def test_kills_at_random(machine, programs):
    lib = ctypes.CDLL(str(SIM / "libcuda.so.1"))
    lib.cantle_sim_truth_json.restype = ctypes.c_ssize_t
    text = ctypes.create_string_buffer(1 << 20)

    def look():
        length = lib.cantle_sim_truth_json(str(machine.sim).encode(), text, len(text))
        assert 0 < length < len(text), length
        return json.loads(text.value)["gpus"][0]["used_bytes"]

    def used():
        """Bytes in use on the GPU. The simulated driver learns of a death when it is asked; a process that dies while it is being
        asked counts beside its successor. So a figure over the limit is looked at again: a real one stays."""
        return next((figure for figure in (look() for _ in range(5)) if figure <= LIMIT), None) or look()

    running = machine.start([programs / "churn", KILLS])
    highest = looks = 0
    while running.child.poll() is None and not running.has_line():
        if (machine.sim / "state").exists():
            highest, looks = max(highest, used()), looks + 1
    record = running.record()
    assert looks > 100 and highest > LIMIT // 2, f"{looks} looks, at most {highest >> 20} MiB: this shows nothing"
    assert highest <= LIMIT, f"{highest - LIMIT} bytes over the limit"
    # All others are dead. What is charged is the newcomer's context, and that is what the driver has too.
    assert LIMIT - record["free"] == used() == 416 * MIB
    running.end()
    assert used() == 0
