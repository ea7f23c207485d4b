"""Each package installed on a fresh system, used, upgraded and removed. GPUs are simulated by the documented switch."""

import json
import subprocess
import sys
import time

from conftest import ROOT, only

HALF = ["run", "--sim-gpus", "1xA100-40GB", "--gpu", "0.5", "--", "python3"]


def check_half(done):
    """The program saw half of the GPU, could not take more, and the limit was enforced."""
    seen = json.loads(done.stdout.splitlines()[-1])
    assert "20 GiB limit, enforced" in done.stderr
    assert (seen["total_bytes"], seen["refused_code"]) == (20 << 30, 2)
    assert (20 << 30) * 0.97 < seen["allocated_bytes"] <= 20 << 30


def test_the_wheel_leads_to_an_enforced_slice_within_a_minute(tmp_path):
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python, cantle = tmp_path / "venv/bin/python", tmp_path / "venv/bin/cantle"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", only("*.whl")], check=True)
    env = {"PATH": f"{tmp_path}/venv/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [cantle, "--state", tmp_path / "state", *HALF, ROOT / "examples/fill_slice.py"],
        env=env, capture_output=True, text=True, timeout=60,
    )
    check_half(done)
    took = time.monotonic() - began
    print(f"pip install to an enforced slice: {took:.1f} s")
    assert took < 60
    # The module for ClearML's own agents is there, and finds the program.
    find = "import clearml_agent_fractional_gpu as module; print(module.__file__)"
    assert "site-packages" in subprocess.run([python, "-c", find], capture_output=True, text=True, check=True).stdout
    subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", "cantle"], check=True)
    left = [path for path in (tmp_path / "venv").rglob("*cantle*") if path.is_file()]
    assert left == []


def test_the_tarball_runs_from_any_directory(debian):
    subprocess.run(f"zstd -dcq {only('*.tar.zst')} | tar -C {debian.tree}/opt -x", shell=True, check=True)
    (directory,) = (debian.tree / "opt").iterdir()
    program = debian.bring(ROOT / "examples/fill_slice.py")
    check_half(debian.run(f"/opt/{directory.name}/bin/cantle", *HALF, program))


def test_the_debian_package_from_install_to_purge(debian):
    before = debian.files()
    package = debian.bring(only("*.deb"))
    debian.run("dpkg", "--install", package)
    assert debian.run("cantle", "--version").stdout.startswith("cantle 0.")
    check_half(debian.run("cantle", *HALF, debian.bring(ROOT / "examples/fill_slice.py")))
    for name in ("server", "agent"):
        text = (debian.tree / f"etc/cantle/{name}.toml").read_text()
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        assert len(lines) == 1, "everything but the table's name is a comment"
    debian.run("dpkg", "--purge", "cantle")
    cleared = {path for path in debian.files() - before if not path.startswith(("root/", "var/lib/dpkg/", "var/log/", "tmp/"))}
    assert not {path for path in cleared if "cantle" in path}, cleared


def test_the_rpm_is_whole(debian, tmp_path):
    """Stand-in: the package is unpacked by Debian's rpm2cpio, not installed on a system of rpm's family."""
    assert only("*.rpm").stat().st_size > 10_000_000
    debian.run("true")
    if subprocess.run(["sh", "-c", "command -v rpm2cpio cpio"], capture_output=True).returncode != 0:
        done = subprocess.run(["apt-get", "install", "-y", "-qq", "rpm2cpio", "cpio"], capture_output=True)
        assert done.returncode == 0, done.stderr
    subprocess.run(f"rpm2cpio {only('*.rpm')} | cpio -idm --quiet", shell=True, check=True, cwd=tmp_path)
    for name in ("usr/bin/cantle", "usr/lib/cantle/shim/libcuda.so.1", "usr/lib/systemd/system/cantle-agent.service", "etc/cantle/agent.toml"):
        assert (tmp_path / name).exists(), name
    assert subprocess.run([tmp_path / "usr/bin/cantle", "--version"], capture_output=True, check=True).stdout
