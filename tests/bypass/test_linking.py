"""Programs can be linked inside of a slice, as `nvcc -lcuda` and PyTorch's extensions are: every name of the driver's resolves."""

import shutil
import subprocess

import pytest

from conftest import HERE, LIBCUDA, LIMIT, assert_held_to_its_slice, assert_not_held

LINKERS = [name for name in ("bfd", "gold", "lld") if shutil.which(f"ld.{name}")]


def link(machine, out, *flags, slice_bytes=LIMIT):
    running = machine.start(["gcc", "-w", "-o", out, HERE / "calls.c", *flags], slice_bytes)
    _, err = running.child.communicate(timeout=120)
    assert running.child.returncode == 0, err
    return out


@pytest.mark.parametrize("linker", LINKERS)
@pytest.mark.parametrize("slice_bytes", [LIMIT, None])
def test_a_program(machine, tmp_path, linker, slice_bytes):
    """It is linked in a slice, or (the control) outside; run in a slice it is held to that, and outside it is not."""
    program = link(machine, tmp_path / "program", f"-fuse-ld={linker}", LIBCUDA, slice_bytes=slice_bytes)
    assert_held_to_its_slice(machine.start([program, LIMIT]), machine)
    assert_not_held(machine.start([program, LIMIT], slice_bytes=None))


def test_by_the_name_that_compilers_look_for(machine, tmp_path):
    program = link(machine, tmp_path / "program", "-L", LIBCUDA.parent, "-lcuda")
    assert_held_to_its_slice(machine.start([program, LIMIT]), machine)


@pytest.mark.parametrize("slice_bytes", [LIMIT, None])
def test_a_library_keeps_what_it_needs(machine, tmp_path, slice_bytes):
    """With `--as-needed`, the default of some distributions, although the filter defines nothing that it uses."""
    flags = ["-shared", "-fPIC", "-DLIBRARY", "-Wl,--as-needed", LIBCUDA]
    library = link(machine, tmp_path / "library.so", *flags, slice_bytes=slice_bytes)
    told = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert "[libcuda.so.1]" in told
    use = ["python3", "-c", f"import ctypes; assert ctypes.CDLL({str(library)!r}).version() > 0"]
    for limit in (LIMIT, None):
        assert machine.start(use, limit).child.wait(timeout=120) == 0


def test_names_for_linkers_are_not_for_the_loader(machine):
    """The loader finds the driver's own function under such a name, and only once."""
    look = (
        "import ctypes, re; cuda = ctypes.CDLL('libcuda.so.1'); maps = open('/proc/self/maps').read();"
        "at = ctypes.cast(cuda.cuDriverGetVersion, ctypes.c_void_p).value;"
        "lines = [line.split() for line in maps.splitlines()];"
        "inside = lambda range: int(range.split('-')[0], 16) <= at < int(range.split('-')[1], 16);"
        "(path,) = [line[5] for line in lines if inside(line[0])];"
        "assert path.startswith('/run/cantle/real/'), path;"
        "real = {line[4] for line in lines if len(line) > 5 and line[5].startswith('/run/cantle/real/')};"
        "assert len(real) == 1, real"
    )
    running = machine.start(["python3", "-c", look])
    _, err = running.child.communicate(timeout=120)
    assert running.child.returncode == 0, err
