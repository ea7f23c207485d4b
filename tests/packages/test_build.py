"""The contents of the packages."""

import hashlib
import json
import re
import subprocess
import zipfile

from conftest import PACKAGES, ROOT, only

# The promises of README and docs/guide/install.md.
GLIBC = (2, 28)
# A filter library is in users' processes and images, which may be older than any machine.
GLIBC_OF_FILTERS = (2, 17)


def checksums():
    lines = (PACKAGES / "SHA256SUMS").read_text().splitlines()
    return dict(reversed(line.split("  ")) for line in lines)


def test_the_same_build_makes_the_same_bytes():
    before = checksums()
    assert len(before) == 7
    subprocess.run([ROOT / ".venv-packages/bin/python", ROOT / "packaging/build.py"], check=True, capture_output=True)
    assert checksums() == before
    for name, digest in before.items():
        assert hashlib.sha256((PACKAGES / name).read_bytes()).hexdigest() == digest


def glibc_of(path):
    """The newest version of the C library's symbols that a program or library names."""
    names = subprocess.run(["objdump", "-T", path], capture_output=True, text=True, check=True).stdout
    return max(tuple(map(int, version)) for version in re.findall(r"GLIBC_(\d+)\.(\d+)", names))


def test_every_program_in_the_packages_runs_on_the_promised_c_library(tmp_path):
    for name in ("deb", "rpm", "wheel", "tarball"):
        (tmp_path / name).mkdir()
    subprocess.run(["dpkg-deb", "-x", only("*.deb"), tmp_path / "deb"], check=True)
    zipfile.ZipFile(only("*.whl")).extractall(tmp_path / "wheel")
    subprocess.run(f"zstd -dcq {only('*.tar.zst')} | tar -C {tmp_path}/tarball -x", shell=True, check=True)
    subprocess.run(f"rpm2cpio {only('*.rpm')} | cpio -id --quiet -D {tmp_path}/rpm", shell=True, check=True)
    for name in ("deb", "rpm", "wheel", "tarball"):
        files = [path for path in (tmp_path / name).rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
        assert len(files) == 10, files
        for path in files:
            limit = GLIBC_OF_FILTERS if "shim" in path.parts else GLIBC
            assert glibc_of(path) <= limit, path
    assert f"manylinux_{GLIBC[0]}_{GLIBC[1]}_" in only("*.whl").name


def test_no_package_has_what_is_nvidias():
    listings = [subprocess.run(["dpkg-deb", "-c", only("*.deb")], capture_output=True, text=True, check=True).stdout]
    listings.append("\n".join(zipfile.ZipFile(only("*.whl")).namelist()))
    unpacked = subprocess.run(["zstd", "-dcq", only("*.tar.zst")], capture_output=True, check=True).stdout
    listings.append(subprocess.run(["tar", "-t"], input=unpacked, capture_output=True, check=True).stdout.decode())
    for listing in listings:
        assert "libnvidia-ml.so.1" in listing, "the simulated and the filter library, which are cantle's"
        assert "nvidia-smi" not in listing


def test_the_bill_of_materials_names_what_is_linked():
    bom = json.loads(only("*.cdx.json").read_text())
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    assert bom["metadata"]["component"]["name"] == "cantle-cli"
    names = {component["name"] for component in bom["components"]}
    assert {"tokio", "sqlx", "cantle-sched"} <= names
    assert "xtask" not in names and "insta" not in names, "only what is in the program"
    assert all(component.get("licenses") for component in bom["components"])


def test_the_chart_is_the_one_of_the_repository(tmp_path):
    subprocess.run(["tar", "-C", tmp_path, "-xzf", only("cantle-chart-*.tgz")], check=True)
    done = subprocess.run(["diff", "-r", tmp_path / "cantle", ROOT / "charts/cantle"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_services_are_valid(tmp_path):
    """By systemd's own checker, where it is installed; no test starts them with a real systemd."""
    for name in ("cantle-server.service", "cantle-agent.service"):
        text = (ROOT / "packaging/systemd" / name).read_text().replace("/usr/bin/cantle", str(ROOT / "dist/bin/cantle"))
        unit = tmp_path / name
        unit.write_text(text.replace("Documentation=man", "#"))
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
        complaints = [line for line in done.stderr.splitlines() if name in line]
        assert done.returncode == 0 and not complaints, done.stderr


def test_the_server_is_confined_to_what_it_needs():
    """systemd's own score, from 0 (confined) to 10; the agent's is high, since it mounts and starts tasks as their users."""
    unit = ROOT / "packaging/systemd/cantle-server.service"
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=25", unit], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout.splitlines()[-1:] + done.stderr.splitlines()
