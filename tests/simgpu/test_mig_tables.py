"""The simulated cards' tables against what tests/gpu/mig_verify.py has read from real ones, wherever there is a result.

There is none yet: the first test then compares nothing. The others show that the comparison finds what differs; their readings
come from the simulated card."""

import copy
import json

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
