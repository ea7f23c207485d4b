"""The driver's files are replaced under an agent, as an update of its packages does it."""

import pytest

from conftest import FILL, wait_until

LIBRARIES = "/usr/lib/x86_64-linux-gnu"


def update(cantle):
    """Another file in the place of the driver's library: the machine's own is shared by all machines of the tests."""
    script = f"""
        real=$(realpath {LIBRARIES}/libcuda.so.1)
        cp "$real" /run/libcuda.updated
        mount --bind /run/libcuda.updated "$real"
    """
    cantle.program("sh", "-ec", script, check=True)


@pytest.mark.full
@pytest.mark.parametrize("busy", [False, True])
def test_an_agent_notices_that_the_driver_was_updated(make_cantle, tmp_path, busy):
    cantle = make_cantle("1xA100-40GB")
    cantle.up("--queue", "default=task")
    before = cantle.submit("default", "sh", "-c", f"until [ -e {tmp_path}/end ]; do sleep 0.2; done" if busy else "true", flags=["--gpu", "0.25"])
    cantle.wait_state(before, "in_progress" if busy else "completed")
    update(cantle)
    wait_until(lambda: "another driver has been installed" in cantle.log(), 60, cantle.log)
    after = cantle.submit("default", *FILL, flags=["--gpu", "0.5"])
    if busy:
        assert "no task is started until those that run have ended" in cantle.log()
        assert cantle.task(before)["state"] == "in_progress" and cantle.task(after)["state"] == "queued"
        (tmp_path / "end").touch()
        cantle.wait_state(before, "completed")
    cantle.wait_state(after, "completed")
    (record,) = cantle.filled(after)
    assert record["total_bytes"] == 20 << 30 and record["refused_code"] == 2, "opened anew, the limit holds"
