"""Checks of two tenants on one card: what each gets of a server's load, and what a killed client of MPS does to the other. What they see is recorded; what
cantle promises about it is judged by the checks of shares."""

import contextlib
import os
import shutil
import signal
import subprocess
import time

from bench import Skip
from checks import outside_pid
from frameworks import needs_kernels, start

SECONDS = 5
# Of a client of MPS.
BUSY_SECONDS = 8


def serve(bench, starts):
    """What each tenant had, in the same seconds."""
    tenants = [begin() for begin in starts]
    for tenant in tenants:
        bench.record(tenant)
    begin = time.monotonic() + 0.5
    for tenant in tenants:
        tenant.stdin.write(f"{begin} {SECONDS}\n")
        tenant.stdin.flush()
    return [bench.last_record(tenant) for tenant in tenants]


def two_servers_of_models(bench):
    """Tokens per second and the slowest of 100 tokens: alone, two without cantle, two halves, and two halves with shares of compute."""
    needs_kernels(bench)

    def half(*compute):
        return lambda: start(bench, "serving", flags=compute)

    def alone():
        return start(bench, "serving", part=None)

    facts = {
        "alone": serve(bench, [alone]),
        "without_cantle": serve(bench, [alone, alone]),
        "even": serve(bench, [half(), half()]),
    }
    if os.geteuid() == 0:
        facts["fair"] = serve(bench, [half("--compute", "fair")] * 2)
    return facts


@contextlib.contextmanager
def mps(bench):
    """The control daemon of MPS, with pipes of its own. No setting of the card changes."""
    if not shutil.which("nvidia-cuda-mps-control"):
        raise Skip("MPS is not installed")
    env = {name: f"{bench.home}/mps-{name[9:12].lower()}" for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")}
    for directory in env.values():
        os.makedirs(directory, exist_ok=True)
    daemon = bench.alone("nvidia-cuda-mps-control", "-f", **env)
    time.sleep(1)
    try:
        yield env
    finally:
        control = [shutil.which("nvidia-cuda-mps-control")]
        subprocess.run(control, input="quit -t 5\n", env={**bench.env, **env}, text=True, timeout=20, check=False)
        daemon.kill()


def a_client_of_mps_is_killed(bench):
    """Two clients in two quarters; the first is killed while its work runs. What becomes of the second, and of a new one."""
    needs_kernels(bench)
    with mps(bench) as env:
        clients = [start(bench, "busy", str(BUSY_SECONDS), part=0.25, env=env) for _ in range(2)]
        ready = [bench.record(client) for client in clients]
        time.sleep(1)
        facts = {"lists": bench.nvml.process_counts(), "used_bytes": bench.used()}
        os.kill(outside_pid(ready[0]["pid"], "busy"), signal.SIGKILL)
        facts["killed"] = clients[0].wait(timeout=30)
        out, errors = clients[1].communicate(timeout=60)
        facts["other"] = {"code": clients[1].returncode, "said": out.splitlines()[-1:], "errors": errors[-300:]}
        newcomer = start(bench, "busy", "1", part=0.25, env=env)
        try:
            newcomer.communicate(timeout=30)
            facts["new"] = newcomer.returncode
        except subprocess.TimeoutExpired:
            facts["new"] = "hangs"
    return facts


GUESSED = {two_servers_of_models: 50, a_client_of_mps_is_killed: 35}
