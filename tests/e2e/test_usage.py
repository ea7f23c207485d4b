"""`cantle usage`: what runs had of the GPUs, what nobody had, and what it cost. The parts add up to the time that has passed."""

import csv
import datetime
import getpass
import io
import json
import re
import subprocess
import time

import pytest

from conftest import FILL, wait_until

HALF_FOR_FIVE = ("sleep", "5")
MODEL = "NVIDIA A100-SXM4-40GB"


@pytest.fixture
def box(make_cantle):
    found = make_cantle("2xA100-40GB")
    found.up("--queue", "half=0.5", "cpu=task")
    return found


def usage(box, *words):
    return json.loads(box.cli("-o", "json", "usage", *words).stdout)


def row_of_table(text):
    """The heading, and the only row by its columns, which are two spaces apart at least."""
    head, row = (re.split(r"  +", line.strip()) for line in text.splitlines())
    return head, dict(zip(head, row, strict=True))


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


def test_a_run_without_a_queue_has_a_line_too(box):
    """`cantle run` on a node with an agent, and its control: a second GPU that nobody had."""
    begin = now()
    running = box.start("run", "--gpu", "0.25", "--", "sleep", "6")

    def line():
        found = [line for line in usage(box, "--from", begin.isoformat(), "--by", "task")["items"] if line["name"] == "sleep"]
        return found[0] if found else None

    wait_until(line, 30, "a line of the run")
    assert running.wait(60) == 0
    wait_until(lambda: not [slice for gpu in box.json("gpus") for slice in gpu["slices"]], 30, "the end of the slice")
    time.sleep(2)
    before, had = line(), now()
    by_user = usage(box, "--from", begin.isoformat(), "--by", "user")["items"]
    (own,) = [line for line in by_user if line.get("user") == f"unix:{getpass.getuser()}"]
    assert own["runs"] == 1 and own["gpu_seconds"] == pytest.approx(before["gpu_seconds"], abs=1)
    assert before["kind"] == "allocated" and before["runs"] == 1
    assert 0.25 * 6 <= before["gpu_seconds"] <= 0.25 * (had - begin).total_seconds()
    # It has ended.
    time.sleep(2)
    assert line()["gpu_seconds"] == before["gpu_seconds"]
    box.cli("usage", "--check")


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


def test_a_server_with_a_price_sheet_needs_none_in_reports(make_cantle, tmp_path):
    sheet = tmp_path / "prices.toml"
    box, from_date = make_cantle("1xA100-40GB"), now().date().isoformat()
    sheet.write_text('currency = "euro"\n[[price]]\nmodel = "*"\ngpu_hour = 1\n')
    refused = box.cli("up", "--prices", str(sheet), code=2)
    assert f'--prices {sheet}: line 1: currency is "euro"' in refused.stderr
    sheet.write_text('currency = "EUR"\n[[price]]\nmodel = "*"\ngpu_hour = 3600.0\n')
    box.up("--queue", "half=0.5", "--prices", str(sheet))
    box.wait_state(box.submit("half", *HALF_FOR_FIVE), "completed")
    (half,) = [line for line in usage(box, "--by", "queue")["items"] if line["queue"] == "half"]
    assert half["cost"] == pytest.approx(half["gpu_seconds"], abs=1e-5) and half["currency"] == "EUR"
    assert "BillingCurrency" in box.cli("-o", "focus", "usage").stdout
    # A sheet of the report's own comes first.
    sheet.write_text('currency = "CHF"\n[[price]]\nmodel = "*"\ngpu_hour = 0\n')
    assert "COST (CHF)" in box.cli("usage", "--prices", str(sheet)).stdout
    assert "COST (EUR)" in box.cli("usage").stdout

    # The command of the page, for the day on which the task ran.
    (keys,) = box.json("credentials")
    body = json.dumps({"from_date": from_date, "to_date": now().date().isoformat()})
    curl = ["curl", "-sS", "-u", f"{keys['access_key']}:{keys['secret_key']}", "-d", body, f"{keys['url']}/get_usages"]
    (tenant,) = json.loads(subprocess.run(curl, check=True, capture_output=True, text=True).stdout)["tenants"]
    compute = tenant["categories"]["compute"]
    assert (tenant["currency"], compute["dates"][0]) == ("EUR", from_date)
    assert tenant["total_cost"] == pytest.approx(half["cost"], abs=1e-5) and list(compute["labels"]) == [MODEL]


def test_charges_of_a_gpu_add_up_to_it(box, tmp_path):
    task = box.submit("half", *HALF_FOR_FIVE, flags=("--project", "vision", "--name", "train"))
    box.wait_state(task, "completed")
    sheet = tmp_path / "prices.toml"
    sheet.write_text('currency = "EUR"\n[[price]]\nmodel = "*"\ngpu_hour = 3600.0\n')
    rows = list(csv.DictReader(io.StringIO(box.cli("-o", "focus", "usage", "--prices", str(sheet)).stdout)))
    (charge,) = [row for row in rows if row["AllocatedResourceId"] == task]
    assert (charge["SubAccountId"], charge["AllocatedResourceName"]) == ("vision", "train")
    # A price of 1 EUR for a second of a GPU.
    assert float(charge["BilledCost"]) == pytest.approx(3600 * float(charge["ConsumedQuantity"]), rel=1e-6) and float(charge["BilledCost"]) > 2.5
    ratios = {}
    for row in rows:
        (element,) = json.loads(row["AllocatedMethodDetails"])["Elements"]
        key = row["ResourceId"], row["ChargePeriodStart"]
        ratios[key] = ratios.get(key, 0) + element["AllocatedRatio"]
    assert len({gpu for gpu, _ in ratios}) == 2 and all(ratio == pytest.approx(1, abs=1e-9) for ratio in ratios.values()), ratios
    for words, says in (
        (("usage",), "needs --prices"),
        (("usage", "--prices", str(sheet), "--by", "user"), "takes no --by"),
        (("tasks",), "is for cantle usage"),
    ):
        assert says in box.cli("-o", "focus", *words, code=2).stderr


def test_a_smaller_share_is_advised_by_the_peaks_of_runs(box):
    gib = 1 << 30
    for at_most in (3, 8, 5):
        task = box.submit("half", *FILL, "--at-most", at_most * gib, flags=("--project", "vision", "--name", "train"))
        box.wait_state(task, "completed")
        (run,) = json.loads(box.cli("-o", "json", "tasks", "runs", task).stdout)["items"]
        # A context and what the program's kernels take come on top.
        assert at_most * gib <= run["peak_bytes"] < (at_most + 1) * gib, run
    # These two never hold more than they need, or do not use a GPU at all.
    for _ in range(3):
        full = box.submit("half", *FILL, flags=("--name", "full"))
        idle = box.submit("half", "true", flags=("--name", "idle"))
        box.wait_state(full, "completed")
        box.wait_state(idle, "completed")
    (idle_run,) = json.loads(box.cli("-o", "json", "tasks", "runs", idle).stdout)["items"]
    assert "peak_bytes" not in idle_run

    (advice,) = json.loads(box.cli("-o", "json", "advise").stdout)["items"]
    assert (advice["name"], advice["project"], advice["milli"], advice["runs"]) == ("train", "vision", 500, 3)
    assert advice["enough_milli"] == 250 and 8 * gib <= advice["peak_bytes"] < 9 * gib < advice["limit_bytes"] <= 10 * gib
    assert advice["spare_gpu_seconds"] > 0
    assert "train" in box.cli("advise").stdout

    tasks = [line for line in usage(box, "--by", "task")["items"] if line.get("memory_peak") is not None]
    by_unused = sorted(tasks, key=lambda line: -line["gpu_seconds"] * (1 - line["memory_peak"]))
    assert usage(box, "--by", "task", "--most-unused", "2")["items"] == by_unused[:2]
    # A line's share is of all GPUs, whatever else is printed.
    head, row = row_of_table(box.cli("usage", "--by", "task", "--most-unused", "1").stdout)
    assert row["TASK"] == by_unused[0]["task"] and float(row["SHARE"].split()[0]) < 60, (head, row)

    (vision,) = [line for line in usage(box, "--by", "project")["items"] if line["project"] == "vision"]
    # Weighted by their times, which are about equal: (3 + 8 + 5) of 3 * 20 GiB, and a context each.
    assert 0.2 < vision["memory_peak"] < 0.45, vision


def test_a_project_borrows_beyond_its_quota_and_others_lend(box):
    box.cli("quota", "set", "vision", "--gpu", "0.5")
    box.cli("quota", "set", "speech", "--gpu", "1.5")
    tasks = [box.submit("half", *HALF_FOR_FIVE, flags=("--project", "vision", "--tag", f"team:{team}")) for team in ("nlp", "ocr")]
    for task in tasks:
        box.wait_state(task, "completed")
    (vision,) = [line for line in usage(box, "--by", "project")["items"] if line["project"] == "vision"]
    guaranteed, borrowed = vision["guaranteed_gpu_seconds"], vision["borrowed_gpu_seconds"]
    # Both ran at the same time for most of it.
    assert guaranteed >= 2.5 and borrowed >= 1 and guaranteed + borrowed == pytest.approx(vision["gpu_seconds"])
    (speech,) = [line for line in usage(box, "--by", "project")["items"] if line["project"] == "speech"]
    assert speech["lent_gpu_seconds"] == pytest.approx(borrowed) and speech["gpu_seconds"] == 0
    labels = {line["label:team"]: line["gpu_seconds"] for line in usage(box, "--by", "label:team")["items"] if line["kind"] == "allocated"}
    assert labels["nlp"] >= 2.5 and labels["ocr"] >= 2.5, labels
    wide = box.cli("-o", "wide", "usage").stdout
    assert all(head in wide.splitlines()[0] for head in ("GUARANTEED", "BORROWED", "LENT"))
    assert "BORROWED" not in box.cli("usage").stdout

    # A person and a name that are forgotten change no sum.
    (owner,) = {line["user"] for line in usage(box, "--by", "user")["items"] if line["kind"] == "allocated"}
    assert "2 runs have no user any more" in box.cli("users", "forget", owner).stderr
    box.cli("tasks", "delete", "--yes", "--forget-name", tasks[0])
    after = [line for line in usage(box, "--by", "task,user")["items"] if line["kind"] == "allocated"]
    assert sum(line["gpu_seconds"] for line in after) == pytest.approx(vision["gpu_seconds"]) and {line["user"] for line in after} == {""}
    assert {line["task"]: bool(line["name"]) for line in after} == {tasks[0]: False, tasks[1]: True}


@pytest.mark.parametrize(
    "words, says",
    [
        (("--from", "2026-11-02", "--to", "2026-11-01"), "--to is later than --from"),
        (("--from", "last week"), "a day like 2026-11-01"),
        (("--by", "team"), "project, user, queue, task, node, pool, gpu, model, side, day, month, label:KEY"),
        (("--prices", "/no/such/file"), "No such file"),
        (("--most-unused", "0"), "0 is not in 1.."),
        (("--check", "--most-unused", "3"), "cannot be used with"),
    ],
)
def test_bad_input_is_one_line(box, words, says):
    done = box.cli("usage", *words, code=2)
    if "--from" in words:
        assert says in box.cli("advise", *words, code=2).stderr
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
