"""A request to stop is never lost, at whatever moment of a task's start it arrives."""

import subprocess
from concurrent.futures import ThreadPoolExecutor

from conftest import wait_until

TASKS = 60
GPUS = 3


def test_tasks_that_are_stopped_while_they_start_stop(cantle, tmp_path):
    """Each stop frees a GPU, so the next task of the queue starts while its own stop is on its way."""
    cantle.up("--queue", "q=1")
    until_the_end = ["sh", "-c", f"echo runs; echo x >>{tmp_path}/ran; until [ -e {tmp_path}/end ]; do sleep 0.1; done"]
    ran = tmp_path / "ran"

    def processes():
        return subprocess.run(["pgrep", "-f", f"{tmp_path}/end"], capture_output=True, text=True).stdout.split()

    with ThreadPoolExecutor(3) as at_once:
        tasks = list(at_once.map(lambda _: cantle.submit("q", *until_the_end), range(TASKS)))
        # By their own word: a process with these words in its command line may be one that is still to become the task.
        wait_until(lambda: ran.exists() and len(ran.read_text().split()) >= GPUS, 60, "as many to run as there are GPUs")
        list(at_once.map(lambda task: cantle.cli("stop", task), tasks))
    left = []

    def all_ended():
        left[:] = [task for task in cantle.json("tasks") if task["id"] in tasks and task["state"] not in ("stopped", "created")]
        return not left

    wait_until(all_ended, 120, lambda: left)
    wait_until(lambda: not processes(), 60, processes)
    told = lambda: sum("runs" in cantle.output(task) for task in tasks)  # noqa: E731
    wait_until(lambda: told() >= GPUS, 60, lambda: f"those that were stopped while they ran: {told()}")
