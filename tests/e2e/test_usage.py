"""`cantle usage`: what runs had of the GPUs, what nobody had, and what it cost. The parts add up to the time that has passed."""

import csv
import datetime
import io
import json
import time

import pytest

from conftest import wait_until

HALF_FOR_FIVE = ("sleep", "5")
MODEL = "NVIDIA A100-SXM4-40GB"


@pytest.fixture
def box(make_cantle):
    found = make_cantle("2xA100-40GB")
    found.up("--queue", "half=0.5", "cpu=task")
    return found


def usage(box, *words):
    return json.loads(box.cli("-o", "json", "usage", *words).stdout)


def now():
    return datetime.datetime.now(datetime.timezone.utc)


def test_the_lines_add_up_to_the_time_of_all_gpus(box):
    begin = now()
    first = box.submit("half", *HALF_FOR_FIVE, flags=("--project", "vision", "--name", "train"))
    second = box.submit("half", *HALF_FOR_FIVE, flags=("--project", "speech"))
    without = box.submit("cpu", "true", flags=("--project", "vision"))
    for task in (first, second, without):
        box.wait_state(task, "completed")
    time.sleep(1)
    # Half a minute to come does not count.
    answer = usage(box, "--from", begin.isoformat(), "--to", (now() + datetime.timedelta(seconds=30)).isoformat(), "--by", "project")
    counted = datetime.datetime.fromisoformat(answer["to"]) - datetime.datetime.fromisoformat(answer["from"])
    assert datetime.datetime.fromisoformat(answer["to"]) <= now()
    assert sum(line["gpu_seconds"] for line in answer["items"]) == pytest.approx(2 * counted.total_seconds(), abs=1e-3)
    lines = {(line["kind"], line["project"]): line for line in answer["items"]}
    # A run holds its slice from when it is taken until its end, which is a little longer than its program runs.
    for project, runs in (("vision", 2), ("speech", 1)):
        line = lines["allocated", project]
        assert line["runs"] == runs and 2.5 <= line["gpu_seconds"] < 5, line
        assert line["memory_gib_seconds"] == pytest.approx(40 * line["gpu_seconds"], rel=0.01)
        assert line["wait_median_s"] >= 0
    assert lines["free", ""]["runs"] == 0

    # The run is there when its task is not.
    box.cli("tasks", "delete", "--yes", first)
    by_task = usage(box, "--from", begin.isoformat(), "--by", "task,user")["items"]
    (line,) = [line for line in by_task if line["task"] == first]
    assert line["name"] == "train" and line["user"] and line["gpu_seconds"] >= 2.5


def test_the_account_of_each_gpu_closes(box):
    task = box.submit("half", *HALF_FOR_FIVE)
    box.wait_state(task, "completed")
    accounts = json.loads(box.cli("-o", "json", "usage", "--check").stdout)["items"]
    assert len(accounts) == 2
    for account in accounts:
        parts = [account[f"{part}_seconds"] for part in ("allocated", "free", "faulty", "away")]
        assert account["closes"] and sum(parts) == pytest.approx(account["recorded_seconds"], abs=1e-3)
        assert account["unrecorded_seconds"] == 0, account
    assert sum(account["allocated_seconds"] for account in accounts) >= 2.5


def test_costs_follow_the_price_sheet(box, tmp_path):
    task = box.submit("half", *HALF_FOR_FIVE)
    box.wait_state(task, "completed")
    sheet = tmp_path / "prices.toml"
    sheet.write_text(f'currency = "EUR"\n[[price]]\nmodel = "{MODEL}"\ngpu_hour = 3600.0\n')
    rows = list(csv.DictReader(io.StringIO(box.cli("-o", "csv", "usage", "--by", "queue", "--prices", str(sheet)).stdout)))
    (half,) = [row for row in rows if row["queue"] == "half"]
    assert float(half["cost"]) == pytest.approx(float(half["gpu_seconds"]), abs=1e-5) and half["currency"] == "EUR"
    assert "COST (EUR)" in box.cli("usage", "--prices", str(sheet)).stdout
    # A price for other GPUs is none for these.
    sheet.write_text('currency = "EUR"\n[[price]]\nmodel = "NVIDIA H100"\ngpu_hour = 1\n')
    done = box.cli("usage", "--prices", str(sheet))
    assert "no price" in done.stderr and "EUR" in done.stdout


@pytest.mark.parametrize(
    "words, says",
    [
        (("--from", "2026-11-02", "--to", "2026-11-01"), "--to is later than --from"),
        (("--from", "last week"), "a day like 2026-11-01"),
        (("--by", "team"), "project, user, queue, task, node, gpu, model, day, month"),
        (("--prices", "/no/such/file"), "No such file"),
    ],
)
def test_bad_input_is_one_line(box, words, says):
    done = box.cli("usage", *words, code=2)
    assert done.stdout == "" and says in done.stderr, done.stderr


@pytest.mark.full
def test_a_lost_node_is_away_until_it_is_back(make_cantle):
    hub, node = make_cantle("1xA100-40GB"), make_cantle("1xA100-40GB")
    hub.start("server", "--listen", "127.0.0.1:0", log="up.log")
    wait_until(lambda: "cantle server is up" in hub.log(), 60, "the server")
    (keys,) = hub.json("credentials")
    node.env |= {"CANTLE_SERVER": keys["url"], "CLEARML_API_ACCESS_KEY": keys["access_key"], "CLEARML_API_SECRET_KEY": keys["secret_key"]}
    serve = ("daemon", "--dynamic-gpus", "--create-queue", "--queue", "q=1", "--worker-name", "box")

    def account():
        accounts = json.loads(hub.cli("-o", "json", "usage", "--check").stdout)["items"]
        return accounts[0] if accounts else {}

    agent = node.start(*serve, log="daemon.log")
    wait_until(lambda: account().get("free_seconds", 0) > 1, 60, account)
    agent.kill()
    wait_until(lambda: account()["away_seconds"] > 0, 90, account)
    free = account()["free_seconds"]
    time.sleep(1)
    assert account()["free_seconds"] == free, "nobody could have had it"
    node.start(*serve, log="again.log")
    wait_until(lambda: account()["free_seconds"] > free, 60, account)
    away = account()["away_seconds"]
    assert account()["away_seconds"] == away and account()["closes"]
