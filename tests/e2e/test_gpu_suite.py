"""`make gpu-test` is for machines with a real GPU; that it runs, finds what it looks for and writes its results is tried here, on a
simulated GPU with the newest driver. The suite `frameworks` tries its checks with PyTorch."""

import json

import pytest

from conftest import ROOT

# The checks that it skips here: kernels, frameworks, and a second GPU.
SKIPPED = {"jobs", "torch", "two_ranks", "cupy", "jax", "steps_take", "triton", "a_graph_of", "each_card", "whole_cards",
           "a_captured_step", "modules_beside", "modules_in_their", "a_profiler", "suspend_a_training_loop",
           "a_client_of_mps", "two_servers"}


@pytest.mark.full
def test_it_writes_what_it_found(make_cantle, tmp_path):
    box = make_cantle("1xH100-80GB:reserved", driver="615.10")
    # Nine minutes are for a machine that does nothing else.
    done = box.program("make", "-C", ROOT, "gpu-test", "MINUTES=25", env=box.env | {"OUT": str(tmp_path / "out")}, timeout=1600)
    (result,) = tmp_path.joinpath("out").glob("*-nvidia-h100-80gb-hbm3-driver615.10-simulated.json")
    record = json.loads(result.read_text())
    outcomes = {check["check"]: check["outcome"] for check in record["results"]}
    failed = {check for check, outcome in outcomes.items() if outcome == "failed"}
    assert not failed and record["not_run"] == [], done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    skipped = [check for check, outcome in outcomes.items() if outcome == "skipped"]
    unexpected = [check for check in record["results"] if check["outcome"] == "skipped" and not check["check"].startswith(tuple(SKIPPED))]
    assert unexpected == []
    assert next(check["paths"] for check in record["results"] if check["check"] == "every_path_is_held") >= 40
    table = result.with_name(f"{result.stem}.md").read_text()
    assert table.count("| passed |") == len(outcomes) - len(skipped) - len(failed) and "simulated GPU" in table


def test_two_cards(make_cantle, tmp_path):
    box = make_cantle("2xH100-80GB:reserved", driver="615.10")
    checks = ["the_card_is_idle", "two_halves_both_take_all", "each_card_has_its_own_slices", "whole_cards_are_all_there_is"]
    checks += ["kill_gives_everything_back", "a_driver_opened_past_the_slice_is_ended"]
    done = box.program(ROOT / "tests/gpu/run.sh", "--only", ",".join(checks), env=box.env | {"OUT": str(tmp_path)}, timeout=600)
    assert done.returncode == 0 and "6 passed, 0 failed, 0 skipped, 0 not run" in done.stdout, done.stdout + done.stderr


def test_one_check_is_chosen_and_the_rest_is_not_run_when_time_is_over(make_cantle, tmp_path):
    box = make_cantle("1xA100-40GB:reserved")
    program = [ROOT / "tests/gpu/run.sh", "--only", "the_card_is_idle,limits_says_enforced"]
    env = box.env | {"OUT": str(tmp_path)}
    done = box.program(*program, env=env, timeout=300)
    assert done.returncode == 0 and "2 passed, 0 failed, 0 skipped, 0 not run" in done.stdout, done.stdout + done.stderr
    assert box.program(*program, "--minutes", "0.01", env=env, timeout=300).returncode == 1
    assert box.program(ROOT / "tests/gpu/run.sh", "--only", "nothing", env=env, timeout=300).returncode == 2
