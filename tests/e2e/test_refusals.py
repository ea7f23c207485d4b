"""A program that requests or takes more than its slice has gets one message, with all that is needed to act on it."""

import json
import re
import shutil
import urllib.request

import pytest

from conftest import CANTLE, FILL, ROOT, wait_until

GIB = 1 << 30
EVADER = str(ROOT / "crates/node/agent/tests/node/evader.py")
# The program is refused three times in a moment, large pieces first: a look in between tells one of them while the program lives, and the
# end tells the rest.
REFUSED = re.compile(
    r"process (\d+)(?: \(\d+ on the host\))? asked for (\S+ [KMG]iB) of GPU 0 and was refused: (?:19\.\d+|20) GiB of its limit of 20 GiB"
    r" are in use(; \d+ more before it)? \(cantle explain allocation-refused\)"
)


def events(cantle, task, kind):
    found = [event for event in cantle.json("events") if event["task"] == task]
    return [event for event in found if event["kind"] == kind]


def test_a_refusal_is_told_in_the_events_and_in_the_tasks_log(make_cantle):
    cantle = make_cantle("1xA100-40GB")
    cantle.up("--queue", "half=0.5")
    fill = " ".join(FILL)
    greedy = cantle.submit("half", "sh", "-c", f"echo pid $$; exec {fill}")
    modest = cantle.submit("half", "sh", "-c", f"exec {fill} --at-most {GIB}")
    assert cantle.wait_state(greedy, "completed")["exit_code"] == 0
    assert cantle.wait_state(modest, "completed")["exit_code"] == 0
    wait_until(lambda: events(cantle, greedy, "refuse"), 60, lambda: cantle.json("events"))
    wait_until(lambda: "was refused" in cantle.output(greedy), 60, lambda: cantle.output(greedy))
    pid = re.search(r"^pid (\d+)$", cantle.output(greedy), re.M).group(1)
    told = REFUSED.search(events(cantle, greedy, "refuse")[0]["message"])
    logged = REFUSED.search(cantle.output(greedy))
    assert told and logged, cantle.output(greedy)
    assert told.group(1) == logged.group(1) == pid
    by_the_agent = [line for line in cantle.log().splitlines() if REFUSED.search(line)]
    assert by_the_agent and all(greedy in line for line in by_the_agent), by_the_agent
    assert events(cantle, modest, "refuse") == [] and "refused" not in cantle.output(modest).replace("refused_", "")
    for task in (greedy, modest):
        # What the agent notes of a task that was quick comes after its end.
        counts = lambda task=task: [len(events(cantle, task, kind)) for kind in ("start", "run", "end")]  # noqa: E731
        wait_until(lambda counts=counts: counts() == [1, 1, 1], 60, counts)


def test_run_tells_a_refusal_even_at_the_end(make_cantle):
    cantle = make_cantle("1xA100-40GB")
    done = cantle.cli("run", "--gpu", "0.5", "--", *FILL)
    assert REFUSED.search(done.stderr), done.stderr
    modest = cantle.cli("run", "--gpu", "0.5", "--", *FILL, "--at-most", GIB)
    assert "refused" not in modest.stderr


def watchdog_actions(cantle):
    (address,) = re.findall(r"serving metrics address=(\S+)", cantle.log())
    text = urllib.request.urlopen(f"http://{address}/metrics", timeout=60).read().decode()
    found = re.findall(r'^cantle_agent_watchdog_actions_total\{action="(\w+)"\} (\d+)$', text, re.M)
    return {action: int(times) for action, times in found}


@pytest.mark.parametrize("policy", ["warn", "kill"])
def test_what_the_watchdog_does_is_a_matter_of_policy(make_cantle, tmp_path, policy):
    cantle = make_cantle("1xA100-40GB")
    copy = tmp_path / "private-copy.so"
    shutil.copy(cantle.machine.path("/usr/lib/x86_64-linux-gnu/libcuda.so.1"), copy)
    cantle.up("--queue", "half=0.5", "--queue", "quarter=0.25", "--watchdog", policy, "--metrics-listen", "127.0.0.1:0")
    # More than the slice of 20 GiB: within it, what it takes would only be charged.
    task = cantle.submit("half", "python3", EVADER, copy, 24 << 10)
    wait_until(lambda: events(cantle, task, "watch"), 60, lambda: cantle.log())
    said = re.search(r"process (\d+) reached GPU 0 past the slice's accounting", events(cantle, task, "watch")[0]["message"])
    assert said, events(cantle, task, "watch")
    if policy == "kill":
        assert "(cantle explain watchdog-kill)" in cantle.wait_state(task, "failed")["reason"]
        wait_until(lambda: len(events(cantle, task, "kill")) == 1, 60, lambda: cantle.json("events"))
        assert watchdog_actions(cantle) == {"warn": 1, "kill": 1}
    else:
        # Long past the second after which it would have been killed: another task has come and gone meanwhile.
        other = cantle.submit("quarter", "sleep", "4")
        cantle.wait_state(other, "completed")
        assert cantle.task(task)["state"] == "in_progress" and events(cantle, task, "kill") == []
        (process,) = cantle.truth()[0]["processes"]
        assert process["pid"] == int(said.group(1)) and process["used_bytes"] > GIB
        used = lambda: [part["memory_used_bytes"] for part in cantle.json("gpus")[0]["slices"]]  # noqa: E731
        wait_until(lambda: used() == [process["used_bytes"]], 60, lambda: f"what it took is charged to its slice: {used()}, {process}")
        assert watchdog_actions(cantle) == {"warn": 1, "kill": 0}
        cantle.cli("stop", task)


def test_every_word_has_its_page(cantle):
    names = cantle.cli("explain", "-o", "name").stdout.split()
    assert {"allocation-refused", "watchdog-kill", "no-capacity", "exit-6"} <= set(names)
    page = cantle.cli("explain", "6").stdout
    assert page == cantle.cli("explain", "exit-6").stdout and "--timeout" in page
    unknown = cantle.cli("explain", "alocation", code=3)
    assert unknown.stderr == 'cantle: there is no page "alocation"\nhint: did you mean allocation-refused?\n'


def test_an_agent_keeps_a_part_of_each_slice_for_modules(cantle):
    """As its file says."""
    config = cantle.home / "agent.toml"
    config.write_text('[up]\nmodule-reserve = "600Mi"\n')
    cantle.start("--config", config, "up", "--listen", "127.0.0.1:0", "--queue", "half=0.5", log="up.log")
    wait_until(lambda: "cantle is up" in cantle.log("up.log"), 60, "cantle up")
    task = cantle.submit("half", str(CANTLE), "--output", "json", "limits")
    cantle.wait_state(task, "completed")
    output = cantle.output(task)
    (item,) = json.JSONDecoder().raw_decode(output[output.index("{\n"):])[0]["items"]
    assert item["modules_bytes"] == 600 << 20 and item["enforced"], item
