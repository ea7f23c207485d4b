"""However a program gets at the driver, it gets the slice."""

import os
import shutil

import pytest

from conftest import GPU, LIMIT, SIM, assert_held_to_its_slice, assert_not_held

LINKED = ["linked", "next", "threads", "fork", "fork_after_use", "spawn"]
LOADED = [
    "dlopen",
    "dlsym_of_dlsym",
    "get_proc_address",
    "get_proc_address_v2",
    "get_proc_address_of_itself",
    "own_elf_walk",
    "full_path",
    "full_path_deepbind",
    "namespace",
    "deepbind_plugin_dlsym",
    "deepbind_plugin_linked",
    "namespace_plugin_dlsym",
    "namespace_plugin_linked",
]


def command(programs, way):
    program = "access" if way in LINKED else "access_unlinked"
    return [programs / program, way, LIMIT, SIM / "libcuda.so.1", programs]


@pytest.mark.parametrize("way", LINKED + LOADED)
def test_in_a_slice(machine, programs, way):
    assert_held_to_its_slice(machine.start(command(programs, way)), machine)


@pytest.mark.parametrize("way", LINKED + LOADED)
def test_outside(machine, programs, way):
    assert_not_held(machine.start(command(programs, way), slice_bytes=None))


def test_with_an_empty_environment(machine, programs):
    clean = ["env", "-i", f"CANTLE_SIM_DIR={machine.sim}", f"CANTLE_SIM_GPUS={GPU}", f"LD_LIBRARY_PATH={SIM}"]
    assert_held_to_its_slice(machine.start([*clean, *command(programs, "dlopen")]), machine)


@pytest.mark.parametrize("variable", ["CANTLE_SLICE_DIR=/nowhere", "GPU_MEMORY_LIMIT=1", "LD_PRELOAD=", "CANTLE_SLICE=other"])
def test_no_variable_loosens_it(machine, programs, variable):
    assert_held_to_its_slice(machine.start(["env", variable, *command(programs, "linked")]), machine)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
def test_as_another_user(machine, programs):
    """A program that the task starts as another user: the environment may be gone, the mounts are not."""
    for folder in (machine.sim, programs):
        for private in [folder, *folder.parents][:4]:
            private.chmod(private.stat().st_mode | 0o055)
    as_nobody = ["setpriv", "--reuid", "65534", "--clear-groups", *command(programs, "dlopen")]
    assert_held_to_its_slice(machine.start(as_nobody), machine)
