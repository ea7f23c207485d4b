"""The module for ClearML's own agent with `--dynamic-gpus`, and what its tests with a real engine share (test_real_docker.py)."""

import json
import subprocess
import sys

from conftest import CANTLE, ROOT, wait_until

MODULE = ROOT / "python/src"
MIB = 1 << 20
A100_40GB = 40 * 1024 * MIB


def report_of(server, task):
    file = server.home / "reports" / task
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"), 240, f"{task}'s report")
    words = file.read_text().split()
    return dict(zip(words[::2], map(int, words[1::2])))


def each_is_held_to_its_slice(server, tasks):
    """Those of the documented example that run at once: they see their slice, and can't take more."""
    for name, devices, fraction in (("dual_gpus", 2, 1), ("quarter_gpu", 1, 0.25), ("half_gpu", 1, 0.5)):
        seen = report_of(server, tasks[name])
        limit = int(A100_40GB * fraction)
        assert seen["devices"] == devices and seen["total"] == limit, "the task sees its slice"
        assert seen["refusal"] == 2, "CUDA_ERROR_OUT_OF_MEMORY"
        assert limit - 1024 * MIB < seen["taken"] <= limit
    shared = server.machine.used(gpu=2)
    assert int(A100_40GB * 0.75) - 2048 * MIB < shared <= int(A100_40GB * 0.75), "the driver says the same of the GPU with two slices"


def ended(server, task):
    wait_until(lambda: server.status(task) in ("completed", "failed", "stopped"), 240, f"{task}'s end")
    return server.status(task)


def patch(words, fraction, **env):
    """Calls the module as the agent does; what it returns, or its error."""
    code = (
        "import json, sys\nfrom clearml_agent_fractional_gpu import *\n"
        "try:\n print(json.dumps(patch_docker_cmd_gpu_fraction(json.loads(sys.argv[1]), gpu_fraction=json.loads(sys.argv[2]))))\n"
        "except FractionalGpuError as error:\n print(json.dumps(str(error)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(words), json.dumps(fraction)],
        env={"PYTHONPATH": str(MODULE), "PATH": "/nowhere", **env},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


RUN = ["docker", "run", "-t", "--gpus", '"device=2"', "img", "bash"]


def test_the_module_hands_over_to_cantle():
    words = patch(RUN, 0.25, CANTLE_BIN=CANTLE)
    assert words == [CANTLE, "docker-run", "--gpu", "0.250", "--timeout", "30", "--", *RUN]


def test_the_module_never_lets_a_container_run_without_its_limit():
    assert "cantle is not installed" in patch(RUN, 0.5, CANTLE_BIN="/nowhere/cantle")
    for fraction in (0, 1.5, None, "x", 0.1234):
        assert "is not a fraction of a GPU" in patch(RUN, fraction, CANTLE_BIN=CANTLE)
    assert "not a docker run command line" in patch(["docker", "ps"], 0.5, CANTLE_BIN=CANTLE)


def test_the_wheel_is_pure_and_needs_nothing(tmp_path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "-w", tmp_path]
    subprocess.run([*pip, ROOT / "python"], check=True)
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name == "clearml_agent_fractional_gpu-0.1.0-py3-none-any.whl"
