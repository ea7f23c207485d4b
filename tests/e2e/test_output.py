"""What tasks print is sent to the server beside everything else that an agent does."""

import time

import pytest

LINES = 600_000
PRINT = f"yes {'x' * 199} | head -n {LINES}; touch"


@pytest.mark.clock
def test_the_output_of_one_task_delays_no_other(cantle):
    cantle.up("--queue", "none=none")
    printed = cantle.home / "printed"
    talkative = cantle.submit("none", "sh", "-c", f"{PRINT} {printed}")
    while not printed.exists():
        time.sleep(0.05)
    # Its program ends now, and most of its 120 MB are still to be sent.
    other = cantle.submit("none", "true")
    cantle.wait_state(other, "completed")
    assert cantle.task(talkative)["state"] == "in_progress", "the other one is there first"
    ended = cantle.wait_state(talkative, "completed", seconds=300)
    assert ended["exit_code"] == 0
    assert sum(len(line) for line in cantle.output(talkative).splitlines()) == 199 * LINES, "nothing is missing or there twice"
