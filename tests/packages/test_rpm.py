"""The RPM package, installed by rpm itself. Stand-ins: the system is a Debian (so `--nodeps`), and its systemctl only notes how it is called."""

import shutil
import subprocess

import pytest
from conftest import ROOT, only
from test_install import HALF, check_half

NOTED = "root/systemctl"


@pytest.fixture
def rpm(debian):
    """Runs rpm on the system, with these words; what it printed."""
    if not shutil.which("rpm"):
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "rpm"], check=True, capture_output=True)
    systemctl = debian.tree / "usr/bin/systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$*" >>/{NOTED}\n')
    systemctl.chmod(0o755)
    # The scripts look for it.
    (debian.tree / "run/systemd/system").mkdir(parents=True)

    def run(*words):
        words = ["rpm", "--root", debian.tree, "--dbpath", "/var/lib/rpm", "--nodeps", "--force-debian", *words]
        done = subprocess.run(words, capture_output=True, text=True)
        # A script that fails is a warning to rpm.
        assert done.returncode == 0 and "scriptlet" not in done.stderr, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


def noted(debian):
    """The calls of systemctl since the last query."""
    path = debian.tree / NOTED
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def next_version(tmp_path):
    """The same description with the next version, and a program that prints it."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "target/packages-tree", tree, ignore=lambda folder, _: ["cantle"] if folder.endswith("/bin") else [])
    (tree / "bin/cantle").write_text("#!/bin/sh\necho cantle 0.1.1\n")
    (tree / "bin/cantle").chmod(0o755)
    (tree / "etc/server.toml").write_text("# of 0.1.1\n")
    (tree / "etc/agent.toml").write_text("# of 0.1.1\n")
    text = (ROOT / "packaging/nfpm.yaml").read_text()
    variables = {"VERSION": "0.1.1", "ARCH": "amd64", "TREE": str(tree), "GLIBC": "2.28", "HOMEPAGE": "none", "MTIME": "2026-01-01T00:00:00Z"}
    for name, value in variables.items():
        text = text.replace(f"${{{name}}}", value)
    config = tmp_path / "nfpm.yaml"
    config.write_text(text)
    words = [ROOT / ".venv-packages/bin/nfpm", "package", "--config", config, "--packager", "rpm", "--target", tmp_path]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    (made,) = tmp_path.glob("*.rpm")
    return made


def test_the_rpm_from_install_to_erase(debian, rpm, tmp_path):
    before = debian.files()
    rpm("--install", only("*.rpm"))
    assert noted(debian) == ["daemon-reload", "try-restart cantle-server.service cantle-agent.service"]
    assert debian.run("cantle", "--version").stdout.startswith("cantle 0.1.0")
    check_half(debian.run("cantle", *HALF, debian.bring(ROOT / "examples/fill_slice.py")))
    agent, server = (debian.tree / f"etc/cantle/{name}.toml" for name in ("agent", "server"))
    assert agent.stat().st_mode & 0o777 == 0o600
    agent.write_text("# mine\n")

    rpm("--upgrade", next_version(tmp_path))
    assert debian.run("cantle", "--version").stdout == "cantle 0.1.1\n"
    assert (agent.read_text(), server.read_text()) == ("# mine\n", "# of 0.1.1\n"), "what was changed here stays"
    calls = noted(debian)
    assert "try-restart cantle-server.service cantle-agent.service" in calls
    assert not [call for call in calls if call.startswith("disable")], "an upgrade keeps the services"

    rpm("--upgrade", "--oldpackage", only("*.rpm"))
    assert debian.run("cantle", "--version").stdout.startswith("cantle 0.1.0")
    noted(debian)

    rpm("--erase", "cantle")
    assert noted(debian) == ["disable --now cantle-agent.service cantle-server.service", "daemon-reload"]
    left = {path for path in debian.files() - before if "cantle" in path and not path.startswith(("root/", "tmp/"))}
    assert {path for path in left if path.startswith("etc/")} <= {"etc/cantle", "etc/cantle/agent.toml.rpmsave", "etc/cantle/agent.toml.rpmnew"}, left
    assert not {path for path in left if path.startswith("usr/")}, left


def test_the_rpm_names_what_it_needs():
    listed = subprocess.run(["rpm", "--query", "--requires", "--package", only("*.rpm")], capture_output=True, text=True, check=True).stdout
    wheel = only("*.whl").name
    major, minor = wheel.split("manylinux_")[1].split("_")[:2]
    assert f"glibc >= {major}.{minor}" in listed and "libgcc" not in listed
    assert only("*.rpm").stat().st_size > 5_000_000
