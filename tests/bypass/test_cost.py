"""The driver calls of the filter for each small stream-ordered allocation: none for most of them. One of 64 is followed by a question to the pool, and
two changes of the thread's capture mode, so that the question ends no capture. A library over the simulated driver (count.h) counts the calls of
every function that the filter calls itself, and of those that the program calls."""

import re
import shutil
import subprocess
import sys

import pytest

from conftest import GPU, HERE, LIBCUDA, LIMIT, ROOT

OWN = ["cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemFreeAsync"]
# Of 64 allocations, one is followed by three calls; and twice as many come once per step of the pool's growth.
MOST = 3 / 64 + 0.05
WAYS = ["default_stream", "own_stream", "own_pool", "freed"]


def asked_by_the_filter():
    """The names in the two lists of the filter's source: functions that hooks ask, and those that are hooked."""
    source = (ROOT / "crates/tenant/shim/src/cuda/mod.rs").read_text()
    asked = re.findall(r"^ {8}(cu\w+)\(", source, re.MULTILINE)
    assert "cuMemPoolGetAttribute" in asked and len(asked) > 20, asked
    return sorted({*asked, *OWN, "cuMemPoolTrimTo", "cuThreadExchangeStreamCaptureMode"})


@pytest.fixture
def machine(machine, tmp_path):
    """Its driver's library is replaced by the counting one, which needs the simulated one."""
    inner, stub, wrapper, source = (tmp_path / name for name in ("inner.so", "stub.so", "count.so", "count.c"))
    shutil.copy(machine.path(LIBCUDA), inner)
    counts = "".join(f"COUNT({name})\n" for name in asked_by_the_filter())
    source.write_text(f'#include "{HERE}/count.h"\n{counts}')
    empty = ["gcc", "-shared", "-o", stub, "-x", "c", "/dev/null", f"-Wl,-soname,{inner}"]
    build = ["gcc", "-shared", "-fPIC", "-w", f'-DINNER="{inner}"', "-o", wrapper, source]
    for command in (empty, [*build, "-Wl,--no-as-needed", stub, "-ldl", "-Wl,-soname,libcuda.so.1"]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    subprocess.run(machine.command("mount", "--bind", wrapper, LIBCUDA), check=True)
    return machine


def added(machine, way, limit=LIMIT):
    running = machine.start([sys.executable, HERE / "cost.py", way], limit)
    record = running.record()
    assert running.end() == 0
    return record["added"]


@pytest.mark.parametrize("way", WAYS)
def test_almost_none_more(machine, way):
    assert added(machine, way) <= MOST


def test_hardly_more_for_a_mebibyte(machine):
    """One of 32 is followed by a question, as they fill a step of the pool. The second call of the pair counts as added."""
    assert added(machine, "middle") <= 1 + 2 * (3 / 32 + 0.05)


def test_a_large_one_is_followed_by_a_question(machine):
    """The control: what is counted."""
    assert 3 <= added(machine, "large") <= 9


@pytest.mark.parametrize("way", WAYS)
def test_none_without_the_filter(machine, way):
    assert added(machine, way, None) == 0


@pytest.mark.parametrize("machine", [GPU.replace("1x", "2x")], indirect=True)
@pytest.mark.parametrize("way", ["default_stream", "own_stream"])
def test_on_a_machine_with_two_gpus(machine, way):
    """A slice has one of them, so the program sees one."""
    assert added(machine, way) <= MOST
