"""A team of forty on one server: three projects, two agents, 200 tasks. People use HTTP, the command line, ClearML's SDK and the page. Each answer is compared with what the roles promise, each task with
what it wrote down itself. `CANTLE_TEST_TEAM_S` is how long people go on asking (`make soak`: an hour)."""

import os
import re
import time

import pytest

from conftest import CANTLE, wait_until
from team import ENDED, Team
from team_clients import SDK, Page, Sdk, has_page

SECONDS = float(os.environ.get("CANTLE_TEST_TEAM_S", "120"))
TASKS = int(os.environ.get("CANTLE_TEST_TEAM_TASKS", "200"))
AGENTS = {"n1": "0,1", "n2": "2,3"}


def start_agent(cantle, url, name, gpus, home):
    (keys,) = cantle.json("users", "add", f"agent-{name}", "--role", "agent", "--node", name)
    file = home / f"{name}.json"
    file.touch(mode=0o600)
    file.write_text(f'{{"url": "{url}", "access_key": "{keys["access_key"]}", "secret_key": "{keys["secret_key"]}"}}')
    words = ["daemon", "--keys", file, "--state", home / name, "--worker-name", name, "--gpus", gpus]
    cantle.start(*words, "--dynamic-gpus", "--queue", "team=0.25", log=f"{name}.log")
    wait_until(lambda: "serving" in cantle.log(f"{name}.log"), 120, lambda: cantle.log(f"{name}.log"))


def judge_the_end(cantle, team, runs):
    """Each task ran once, to the end that it has by its own account."""
    found = {task["id"]: task for task in cantle.json("tasks", "--limit", "500")}
    for number, job in enumerate(team.jobs):
        task = found.pop(job.id)
        wrote = [job.word] if job.is_own else (runs / str(number)).read_text().split()
        expected = "failed" if job.code else "completed"
        if (task["state"], wrote) != (expected, [job.word]):
            team.tally.wrong.append(f"task {number}: {task['state']}, not {expected}; its runs wrote {wrote}")
    if found:
        team.tally.wrong.append(f"tasks that nobody made: {sorted(found)}")


@pytest.mark.full
def test_a_team_of_forty_gets_right_answers_throughout(make_cantle, tmp_path):
    cantle = make_cantle("4xA100-40GB")
    cantle.start("server", "--listen", "127.0.0.1:0", log="server.log")
    wait_until(lambda: "server is up" in cantle.log("server.log"), 120, lambda: cantle.log("server.log"))
    port = int(re.search(r"127\.0\.0\.1:(\d+)", cantle.log("server.log"))[1])
    url = f"http://127.0.0.1:{port}"
    (admin,) = cantle.json("credentials")
    runs = tmp_path / "runs"
    runs.mkdir(mode=0o777)

    def laptop(person, *words):
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CANTLE_SERVER": url}
        return cantle.program(CANTLE, *words, env=env | person.env())

    team = Team(laptop, ("127.0.0.1", port), admin)
    team.hire()
    assert len(team.people) + len(AGENTS) == 40
    queue = team.ask(team.admin, "make a queue", "queues.create", {"name": "team"}, True)
    for name, gpus in AGENTS.items():
        start_agent(cantle, url, name, gpus, tmp_path)
    # What is not installed here is named at the end (tests/setup.sh sdk, tests/ui/run.sh --setup).
    team.sdk = Sdk(team, url, tmp_path) if SDK.is_file() else None
    team.page = Page(team, url) if has_page() else None
    begin = time.monotonic()
    while len(team.jobs) < TASKS:
        team.submit("team", queue["id"], runs)
        for _ in range(3):
            team.step()
    while time.monotonic() < begin + SECONDS:
        team.step()
    if team.page:
        team.page.close()
    left = lambda: [(task["name"], task["state"]) for task in cantle.json("tasks", "--limit", "500") if task["state"] not in ENDED]  # noqa: E731
    wait_until(lambda: not left(), 180, lambda: "\n".join(map(str, [*left(), *team.tally.wrong])))
    judge_the_end(cantle, team, runs)
    asked = sum(row["allowed"] + row["refused"] for row in team.tally.rows.values())
    print(f"\n{len(team.people) + len(AGENTS)} people and agents, {len(team.jobs)} tasks, {asked} answers in {time.monotonic() - begin:.0f} s")
    print(f"with the SDK: {bool(team.sdk)}, with the page: {bool(team.page)}")
    print(team.tally.table())
    print("\n".join(team.tally.wrong[:40]))
    assert not team.tally.wrong, f"{len(team.tally.wrong)} answers are not as promised"
