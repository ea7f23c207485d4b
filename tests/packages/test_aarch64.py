"""The packages for aarch64: built here by a cross compiler, and used on Debian for aarch64, whose programs qemu runs. In `make soak`, because all of it is
compiled once more."""

import os
import re
import shutil
import subprocess
import zipfile

import emulated
import pytest
from conftest import ROOT
from test_build import GLIBC, GLIBC_OF_FILTERS
from test_install import HALF

pytestmark = pytest.mark.skipif(not os.environ.get("CANTLE_TEST_ALL"), reason="in make soak: CANTLE_TEST_ALL=yes")
MADE = ROOT / "target/packages-aarch64"
TARGET = "aarch64-unknown-linux-gnu"
OUT_OF_MEMORY = 2


@pytest.fixture(scope="module")
def wheel():
    for program in ("aarch64-linux-gnu-gcc", "qemu-aarch64-static"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static")
    libraries = subprocess.run(["rustc", "--print", "target-libdir", "--target", TARGET], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    if not os.path.isdir(libraries):
        pytest.skip(f"Rust's standard library for it is not installed: rustup target add {TARGET}")
    subprocess.run(["make", "packages", "ARCH=aarch64"], cwd=ROOT, check=True)
    (found,) = MADE.glob("*.whl")
    return found


@pytest.fixture
def debian():
    yield from emulated.fresh()


def test_every_package_is_for_aarch64_and_the_promised_c_library(wheel, tmp_path):
    assert wheel.name.endswith(f"manylinux_{GLIBC[0]}_{GLIBC[1]}_aarch64.whl")
    (deb,), (rpm,) = MADE.glob("*.deb"), MADE.glob("*.rpm")
    assert subprocess.run(["dpkg-deb", "--field", deb, "Architecture"], capture_output=True, text=True).stdout == "arm64\n"
    assert subprocess.run(["rpm", "-qp", "--queryformat", "%{ARCH}", rpm], capture_output=True, text=True).stdout == "aarch64"
    zipfile.ZipFile(wheel).extractall(tmp_path)
    programs = [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
    assert len(programs) == 10, programs
    for path in programs:
        text = subprocess.run(["readelf", "--file-header", "--dyn-syms", "--wide", path], capture_output=True, text=True, check=True).stdout
        assert re.search(r"Machine: +AArch64", text), path
        newest = max(tuple(map(int, version)) for version in re.findall(r"@GLIBC_(\d+)\.(\d+)", text))
        assert newest <= (GLIBC_OF_FILTERS if "shim" in path.parts else GLIBC), path


SERVE = """
cantle --state /root/state server >/root/server.log 2>&1 &
server=$!
until cantle --state /root/state queues >/dev/null 2>&1; do kill -0 $server; sleep 1; done
cantle --state /root/state users add ada --role member >/dev/null
cantle --state /root/state users list -o name
kill $server
wait $server
"""
# The simulated driver up to where qemu ends: it has no robust futexes (set_robust_list), by which the driver knows which processes live.
CALLS = """
import ctypes
cuda, name, context = ctypes.CDLL("libcuda.so.1"), ctypes.create_string_buffer(64), ctypes.c_void_p()
print(cuda.cuInit(0), cuda.cuDeviceGetName(name, 64, 0), name.value.decode())
print("context:", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
"""


def test_the_wheel_is_used_as_far_as_qemu_goes(wheel, debian):
    """No slice: a context on a simulated GPU needs what qemu lacks. Then the command ends with one line and the documented code."""
    assert debian.run("uname", "-m").stdout.strip() == "aarch64"
    debian.run("python3", "-m", "venv", "/root/venv", timeout=600)
    debian.run("/root/venv/bin/pip", "install", "-q", "--no-index", debian.bring(wheel), timeout=600)
    in_environment = ["env", "PATH=/root/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    assert debian.run(*in_environment, "cantle", "--version").stdout.startswith("cantle 0.")
    assert "ada" in debian.run(*in_environment, "sh", "-ec", SERVE, timeout=600).stdout.split()
    machine = ["cantle", "sim", "machine", "--gpus", "1xA100-40GB", "--"]
    printed = debian.run(*in_environment, *machine, "python3", "-c", CALLS, timeout=600).stdout.splitlines()
    assert printed == ["0 0 NVIDIA A100-SXM4-40GB", f"context: {OUT_OF_MEMORY}"]
    ended = debian.run(*in_environment, "cantle", *HALF, debian.bring(ROOT / "examples/fill_slice.py"), check=False, timeout=600)
    assert ended.returncode == 7 and len(ended.stderr.splitlines()) == 1, ended
