"""Which calls end a capture: the simulated driver against what tests/gpu/captures.py has read from real ones, wherever there is a result."""

import json

import pytest

from conftest import ROOT

CHECK = "no_capture_is_disturbed"
RESULTS = [json.loads(path.read_text()) for path in sorted((ROOT / "docs/results").glob("*.json"))]
READ = {record["driver"]: check["codes"] for record in RESULTS for check in record.get("results", []) if check["check"] == CHECK and "codes" in check}


@pytest.fixture
def simulated(machine, python):
    return json.loads(machine.run(python, ROOT / "tests/gpu/captures.py"))


def test_some_driver_was_read():
    assert READ, f"no result in docs/results has {CHECK}"


@pytest.mark.parametrize("driver", READ)
@pytest.mark.gpus("1xH100-80GB:reserved")
def test_the_simulated_driver_ends_the_same(simulated, driver):
    differ = {name: [codes, simulated.get(name)] for name, codes in READ[driver].items() if simulated.get(name) != codes}
    assert differ == {}
