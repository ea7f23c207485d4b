"""The simulated cards' tables against what tests/gpu/mig_verify.py has read from real ones, wherever there is a result.

There is one of an H100 with MIG disabled, which has the table only. The last tests show that the comparison finds what differs; their
readings come from the simulated card."""

import copy
import json
import re

import pytest

from conftest import DATA, ROOT

RESULTS = sorted((ROOT / "docs/results").glob("mig-*.json"))
FIELDS = {"id": "profile_id", "number": "nvml_enum_value", "memory_mib": "memory_mib", "slices": "compute_slices", "max": "max_instances",
          "multiprocessors": "sm", "copy_engines": "copy_engines", "decoders": "nvdec", "encoders": "nvenc", "jpeg": "jpeg", "ofa": "ofa"}  # fmt: skip


def differences(report):
    """Lines that say where table and card differ; figures that the table does not know can't."""
    tables = json.loads((DATA / "mig_profiles.json").read_text())["gpus"].values()
    known = [table for table in tables if report["pci_id"].lower() in map(str.lower, table["pci_device_ids"])]
    if not known:
        return [f"no table for {report['pci_id']} ({report['model']})"]
    rows = {row["profile"]: row for row in known[0]["profiles"]}
    read = {row["profile"].removeprefix("MIG "): row for row in report["readings"]["table"]}
    found = [f"{name}: only in the table" for name in rows.keys() - read.keys()] + [f"{name}: not in the table" for name in read.keys() - rows.keys()]
    for name in sorted(rows.keys() & read.keys()):
        for field, column in FIELDS.items():
            if rows[name][column] not in (None, read[name][field]):
                found.append(f"{name} {field}: card {read[name][field]}, table {rows[name][column]}")
        places = [[start, rows[name]["placement_size"]] for start in rows[name]["placement_starts"]]
        if sorted(map(list, read[name]["placements"])) != sorted(places):
            found.append(f"{name} placements: card {read[name]['placements']}, table {places}")
    return found


def switches(report):
    """Rows of the table of drivers (crates/sim/simgpu/src/nvml/settings.rs) that the experiments of a report decide."""
    found = {}
    if report.get("memory_of_a_process", {}).get("asked"):
        found["remembered_instances"] = int(report["memory_of_a_process"]["remembers_the_old_profile"])
    if "names" in report:
        found["uuid_by_pipe"] = int(not report["names"]["name_is_of_place"])
    if "another_gpu" in report:
        times = report["another_gpu"]
        found["mig_lock"] = int(times["longest_list_meanwhile_ms"] > times["creation_ms"] / 4)
    return found


def defaults():
    """Of a current driver, as the simulated one has them without a file."""
    rows = re.findall(r'^    \w+ "(\w+)" (\d+)\.\.=', (ROOT / "crates/sim/simgpu/src/nvml/settings.rs").read_text(), re.M)
    assert len(rows) > 8
    return {name: int(value) for name, value in rows}


def test_real_drivers_are_as_the_simulated_one_without_a_file():
    known = defaults()
    wrong = {
        (path.name, row): value
        for path in RESULTS
        for row, value in switches(json.loads(path.read_text())).items()
        if known[row] != value
    }
    assert wrong == {}


def test_real_cards_are_as_their_tables():
    wrong = {path.name: lines for path in RESULTS if (lines := differences(json.loads(path.read_text())))}
    assert wrong == {}


@pytest.fixture
def report(machine, python):
    return json.loads(machine.run(python, ROOT / "tests/gpu/mig_verify.py"))


@pytest.mark.gpus("1xA100-40GB:mig")
def test_the_simulated_card_is_as_its_table(report):
    assert differences(report) == []


@pytest.mark.gpus("1xA30-24GB:mig")
def test_a_card_that_differs_is_found(report):
    other = copy.deepcopy(report)
    other["readings"]["table"][0]["memory_mib"] += 64
    other["readings"]["table"][1]["placements"].pop()
    del other["readings"]["table"][2]
    assert len(differences(other)) == 3
    assert differences({**report, "pci_id": "0x00000000"}) != []


@pytest.mark.gpus("2xA100-40GB:mig")
@pytest.mark.parametrize("row", [None, "remembered_instances", "uuid_by_pipe", "mig_lock"])
def test_a_driver_that_does_otherwise_is_found(machine, python, row):
    machine.run(python, "-c", "import pynvml; pynvml.nvmlInit()")
    (machine.folder / "sim/model").write_text(f"{row}=0\n" if row else "")
    (machine.folder / "sim/faults").write_text("nvmlDeviceCreateGpuInstanceWithPlacement gpu=0 delay_ms=100\n")
    report = json.loads(machine.run(python, ROOT / "tests/gpu/mig_verify.py", "--i-own-this-card"))
    expected = defaults() | ({row: 0} if row else {})
    assert switches(report) == {name: expected[name] for name in ("remembered_instances", "uuid_by_pipe", "mig_lock")}
