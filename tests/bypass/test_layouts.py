"""`cantle run --gpu 0.5 -- PROGRAM` holds wherever a driver's files lie, for root and for others."""

import os
import pathlib
import subprocess

import pytest

from conftest import CANTLE, MIB, NOBODY, Machine, Running
from machine import LIBRARIES as LAYOUTS
from machine import UNKNOWN_TO_LOADER, Witness

# Where 32-bit copies are present as well.
SMALL = {"debian": "/usr/lib/i386-linux-gnu", "rhel": "/usr/lib"}
WHOLE = 40960 * MIB
HALF = WHOLE // 2
CHUNK = 64 * MIB
RUN = [CANTLE, "run", "--gpu", "0.5", "--"]
WAYS = ["linked", "dlopen", "full_path"]

every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_user = pytest.mark.parametrize("user", [None, NOBODY], ids=["root", "nobody"])


@pytest.fixture
def machine(layout, tmp_path):
    machine = Machine(tmp_path, layout=layout)
    yield machine
    machine.stop()


def filler(programs, layout, way):
    """A program that takes twice half of the GPU, if it gets it."""
    # A user of a driver on the node that the loader does not know names its directory.
    names_it = ["env", f"LD_LIBRARY_PATH={LAYOUTS[layout]}"] if layout in UNKNOWN_TO_LOADER else []
    program = "access" if way == "linked" else "access_unlinked"
    return [*names_it, programs / program, way, HALF, f"{LAYOUTS[layout]}/libcuda.so.1", programs]


def assert_holds(running, witness):
    record = running.record()
    used = witness.truth()[0]["used_bytes"]
    assert record["refused"] == 2 and record["total"] == HALF, record
    assert HALF - CHUNK < used <= HALF and record["free"] == HALF - used, (record, used)


def assert_takes_all(running, witness):
    """The negative control: half of the GPU is no limit."""
    record = running.record()
    used = witness.truth()[0]["used_bytes"]
    assert record["total"] == WHOLE and used > WHOLE - CHUNK, (record, used)


@every_layout
@every_user
@pytest.mark.parametrize("way", WAYS)
def test_half_a_gpu(machine, programs, home_of_nobody, layout, user, way):
    words = filler(programs, layout, way)
    env = {"HOME": home_of_nobody} if user else None
    running = machine.start([*RUN, *words], slice_bytes=None, user=user, env=env)
    assert_holds(running, machine)
    assert running.end() == 0 and machine.used() == 0
    running = machine.start(words, slice_bytes=None, user=user, env=env)
    assert_takes_all(running, machine)
    assert running.end() == 0 and machine.used() == 0


@every_layout
def test_half_each_and_no_third(machine, programs, home_of_nobody, layout):
    """Root and another user share the GPU: what one has, the other is not given."""
    words = [*RUN, *filler(programs, layout, "linked")]
    env = {"HOME": home_of_nobody}
    first = machine.start(words, slice_bytes=None)
    assert first.record()["refused"] == 2
    second = machine.start(words, slice_bytes=None, user=NOBODY, env=env)
    assert second.record()["refused"] == 2
    assert WHOLE - 2 * CHUNK < machine.used() <= WHOLE
    for user in (None, NOBODY):
        third = machine.start([*RUN, "echo", "started"], slice_bytes=None, user=user, env=env if user else None)
        out, err = third.child.communicate(timeout=120)
        assert third.child.returncode == 6 and out == "" and "no room: needs 0.5 GPU, nothing free" in err, (out, err)
    first.end(), second.end()


def link_chain(path):
    """The names that lead to a file, ended by the file's own."""
    names = [path.name]
    while path.is_symlink():
        path = path.parent / os.readlink(path)
        names.append(path.name)
    assert path.is_file()
    return names


@every_layout
def test_the_files_are_an_installed_drivers(machine, layout):
    """The assumptions of the tests above."""
    for library in ("libcuda", "libnvidia-ml"):
        unversioned = machine.path(f"{LAYOUTS[layout]}/{library}.so")
        assert link_chain(unversioned) == [f"{library}.so", f"{library}.so.1", f"{library}.so.{machine.driver()}"]
    cached = subprocess.run(machine.command("ldconfig", "-p"), capture_output=True, text=True, check=True).stdout
    found = [line.split("=> ")[1] for line in cached.splitlines() if line.strip().startswith("libcuda.so.1 ")]
    folders = [] if layout in UNKNOWN_TO_LOADER else [LAYOUTS[layout], *filter(None, [SMALL.get(layout)])]
    assert sorted(found) == sorted(f"{folder}/libcuda.so.1" for folder in folders)
    environment = subprocess.run(machine.command("env"), capture_output=True, text=True, check=True, env=machine.env).stdout
    assert "CANTLE" not in environment


def head(machine, path, slice_words):
    """The beginning of a file as programs on the machine find it: its class is the fifth byte, 1 for 32 bit, 2 for 64."""
    done = subprocess.run(machine.command(*slice_words, "head", "-c5", path), capture_output=True, env=machine.env, check=True)
    return done.stdout


@pytest.mark.parametrize("layout", SMALL)
@pytest.mark.parametrize("library", ["libcuda", "libnvidia-ml"])
def test_32_bit_copies_are_no_way_out(machine, layout, library):
    """The shim is 64 bit. In a slice no program finds the driver's 32-bit library, under none of its names."""
    for name in (f"{library}.so.1", f"{library}.so.{machine.driver()}"):
        path = f"{SMALL[layout]}/{name}"
        assert head(machine, path, []) == b"\x7fELF\x01"
        assert head(machine, path, RUN) == b"\x7fELF\x02"


@every_layout
@pytest.mark.parametrize("in_slice", [True, False])
def test_an_ordinary_users_own_machine(programs, home_of_nobody, layout, in_slice):
    """Made without root, in a user namespace."""
    fresh_run = "mount -t tmpfs -o mode=755,nosuid,nodev,noexec tmpfs /run; exec \"$@\""
    words = [CANTLE, "sim", "machine", "--layout", layout, "--", *(RUN if in_slice else []), *filler(programs, layout, "linked")]
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", fresh_run, "sh", *user, *words]
    env = {"PATH": os.environ["PATH"], "HOME": home_of_nobody}
    pipe = subprocess.PIPE
    running = Running(subprocess.Popen([*map(str, command)], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env))
    witness = Witness(pathlib.Path(f"/proc/{running.child.pid}/root"), layout)
    (assert_holds if in_slice else assert_takes_all)(running, witness)
    witness.end()
    assert running.end() == 0
