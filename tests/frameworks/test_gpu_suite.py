"""The checks of `make gpu-test` that need PyTorch, tried on a simulated GPU with the newest driver and the stand-in for the runtime."""

import json
import os
import subprocess
import sys

from conftest import RUNTIME
from machine import ROOT, Machine

CHECKS = ["jobs_may_begin_with_a_context", "torch_fills_its_slice_and_goes_on", "two_ranks_in_one_slice"]


def test_checks_with_pytorch(tmp_path):
    machine = Machine("1xH100-80GB:reserved", driver="615.10")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHON": sys.executable, "OUT": str(tmp_path), "LD_PRELOAD": RUNTIME}
    try:
        command = machine.command(ROOT / "tests/gpu/run.sh", "--only", ",".join(CHECKS))
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1200)
    finally:
        machine.stop()
    (result,) = tmp_path.glob("*-simulated.json")
    outcomes = {check["check"]: check["outcome"] for check in json.loads(result.read_text())["results"]}
    assert outcomes == dict.fromkeys(CHECKS, "passed"), done.stdout
