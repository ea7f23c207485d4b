"""However a program gets at the driver, it gets the slice."""

import os
import shutil

import pytest

from conftest import CANTLE, CONTEXT, CUDART, LIBCUDA, LIMIT, NOBODY, assert_held_to_its_slice, assert_not_held
from paths import LINKED, LOADED


def command(programs, way):
    program = "access" if way in LINKED else "access_unlinked"
    return [programs / program, way, LIMIT, LIBCUDA, programs]


@pytest.mark.parametrize("way", LINKED + LOADED)
def test_in_a_slice(machine, programs, way):
    assert_held_to_its_slice(machine.start(command(programs, way)), machine)


@pytest.mark.parametrize("way", LINKED + LOADED)
def test_outside(machine, programs, way):
    assert_not_held(machine.start(command(programs, way), slice_bytes=None))


def test_with_an_empty_environment(machine, programs):
    assert_held_to_its_slice(machine.start(["env", "-i", *command(programs, "dlopen")]), machine)


@pytest.mark.parametrize("variable", ["CANTLE_SLICE_DIR=/nowhere", "GPU_MEMORY_LIMIT=1", "LD_PRELOAD=", "CANTLE_SLICE=other"])
def test_no_variable_loosens_it(machine, programs, variable):
    assert_held_to_its_slice(machine.start(["env", variable, *command(programs, "linked")]), machine)


def test_32_processes(machine, programs):
    assert_held_to_its_slice(machine.start([programs / "processes", 32, LIMIT]), machine)


def test_32_processes_outside(machine, programs):
    assert_not_held(machine.start([programs / "processes", 32, LIMIT], slice_bytes=None))


def test_64_processes_race_for_the_last_bytes(machine, programs):
    """A slice that has room for all their contexts and little more."""
    limit = 64 * CONTEXT + LIMIT
    running = machine.start([programs / "processes", 64, limit], limit)
    highest = 0
    while not running.has_line() and running.child.poll() is None:
        highest = max(highest, machine.used())
    # Those that have met the limit keep what they hold until `end`.
    highest = max(highest, machine.used())
    assert limit // 2 < highest <= limit, f"{highest} of {limit} bytes at most"
    assert_held_to_its_slice(running, machine, limit)


@pytest.mark.skipif(not CUDART.exists(), reason="the CUDA runtime is not here: tests/setup-venv.sh installs it")
@pytest.mark.parametrize("runtime", ["runtime_shared", "runtime_static"])
class TestCudaRuntime:
    """The functions that NVIDIA's own runtime library gets when it looks them up in the driver."""

    def test_in_a_slice(self, machine, programs, runtime):
        assert_held_to_its_slice(machine.start([programs / runtime, LIMIT]), machine)

    def test_outside(self, machine, programs, runtime):
        assert_not_held(machine.start([programs / runtime, LIMIT], slice_bytes=None))


# A program that finds no driver finds none outside of a slice either: no memory, so nothing to limit.
WITH_MUSL = [("musl", "libcuda.so.1"), ("musl", "path"), ("musl_static", "path")]
FINDS_NOTHING = [("access_unlinked", "dlvsym"), *(pytest.param(*words, marks=pytest.mark.full) for words in WITH_MUSL)]


@pytest.mark.parametrize("slice_bytes", [LIMIT, None])
@pytest.mark.parametrize(("program", "way"), FINDS_NOTHING)
def test_finds_no_driver(machine, programs, program, way, slice_bytes):
    """The driver's library has no versions for `dlvsym`, and needs glibc: musl's loader can't load it."""
    if not (programs / program).exists():
        pytest.skip("musl-gcc is not here: tests/setup.sh installs it")
    words = command(programs, way) if way == "dlvsym" else [programs / program, LIBCUDA if way == "path" else way]
    running = machine.start(words, slice_bytes)
    out, err = running.child.communicate(timeout=120)
    assert running.child.returncode == 3 and out == "", (out, err)
    assert machine.used() == 0


@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv")
def test_as_another_user(machine, programs):
    """A program that the task starts as another user: the environment may be gone, the mounts are not."""
    as_nobody = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", *command(programs, "dlopen")]
    assert_held_to_its_slice(machine.start(as_nobody), machine)


@pytest.fixture
def setuid(programs):
    """A program that runs as another user, with loader and libraries on guard: LD_* variables have no effect."""
    program = programs / "setuid"
    shutil.copy(programs / "access_unlinked", program)
    os.chown(program, NOBODY, NOBODY)
    program.chmod(0o4755)
    return program


def test_setuid(machine, programs, setuid):
    assert_held_to_its_slice(machine.start([setuid, *command(programs, "full_path")[1:]]), machine)


def test_setuid_outside(machine, programs, setuid):
    assert_not_held(machine.start([setuid, *command(programs, "full_path")[1:]], slice_bytes=None))


def with_sudo(words):
    return ["sudo", "-n", "-u", f"#{NOBODY}", *words]


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("sudo"), reason="sudo is not here: tests/setup.sh installs it")
def test_sudo(machine, programs):
    """sudo clears the environment."""
    assert_held_to_its_slice(machine.start(with_sudo(command(programs, "full_path"))), machine)


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("sudo"), reason="sudo is not here: tests/setup.sh installs it")
def test_sudo_outside(machine, programs):
    assert_not_held(machine.start(with_sudo(command(programs, "full_path")), slice_bytes=None))


@pytest.mark.parametrize("clean", [[], ["env", "-u", "CANTLE_SLICE"]])
def test_nested_run(machine, programs, clean):
    """A slice can't be cut again, nor left by asking for another one: there is one line about it, and nothing is started."""
    nested = [*clean, CANTLE, "run", "--gpu", "1", "--", *command(programs, "dlopen")]
    running = machine.start(nested)
    out, err = running.child.communicate(timeout=120)
    assert running.child.returncode == 8 and out == "", (out, err)
    assert err.count("a slice cannot be cut again") == 1, err
    assert machine.used() == 0


def test_what_a_nested_run_could_have_got(machine, programs):
    """The negative control: outside of a slice the same command gets the whole GPU."""
    running = machine.start([CANTLE, "run", "--gpu", "1", "--", *command(programs, "dlopen")], slice_bytes=None)
    assert running.record()["granted"] >= 2 * LIMIT
    running.end()
