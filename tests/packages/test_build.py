"""What is in the packages."""

import hashlib
import json
import subprocess
import zipfile

from conftest import PACKAGES, ROOT, only


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
