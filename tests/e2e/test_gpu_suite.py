"""`make gpu-test` is for machines with a real GPU; that it runs, finds what it looks for and writes its results is tried here."""

import json

from conftest import ROOT


def test_it_writes_what_it_found(make_cantle, tmp_path):
    box = make_cantle("1xH100-80GB")
    done = box.program("make", "-C", ROOT, "gpu-test", env=box.env | {"OUT": str(tmp_path / "out")}, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = tmp_path.joinpath("out").glob("*-nvidia-h100-80gb-hbm3-driver550.163.01-simulated.json")
    record = json.loads(result.read_text())
    outcomes = {check["check"]: check["outcome"] for check in record["results"]}
    needs_kernels = {check for check, outcome in outcomes.items() if outcome == "skipped"}
    assert {check.partition("_")[0] for check in needs_kernels} == {"torch", "cupy", "jax", "training"}, outcomes
    assert next(check["paths"] for check in record["results"] if check["check"] == "every_path_is_held") >= 40
    table = result.with_name(f"{result.stem}.md").read_text()
    assert table.count("| passed |") == len(outcomes) - len(needs_kernels) and "simulated GPU" in table
