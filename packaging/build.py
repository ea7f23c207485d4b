#!/usr/bin/env python3
"""Makes the packages of `cargo xtask dist packages` in target/packages: a tarball, .deb, .rpm, a wheel, the container image, the Helm chart, an
SBOM and checksums.

Two runs over the same build make the same bytes: files are sorted and have the date of the commit ($SOURCE_DATE_EPOCH, if it is set).
"""

import gzip
import hashlib
import io
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib

import zstandard

from image import write_image
from sbom import write_sbom
from wheel import write_wheel

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILT = ROOT / "target/portable"
OUT = ROOT / "target/packages"
DEB_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
# The file's name in /etc/cantle, and the command whose options it has.
CONFIGURATION = {"server": "server", "agent": "daemon"}
COMPLETIONS = {
    "bash": "bash-completion/completions/cantle",
    "zsh": "zsh/vendor-completions/_cantle",
    "fish": "fish/vendor_completions.d/cantle.fish",
}


def run(*words, **options):
    done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"packages: {' '.join(map(str, words))} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def newest_glibc(programs):
    """The oldest glibc that has every symbol which the programs and libraries use."""
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", run("objdump", "-T", *programs))
    return max((int(major), int(minor)) for major, minor in versions)


def make_tree(tree, date):
    """The files of every package: the program, its libraries, manual pages, completions, license, configuration."""
    shutil.rmtree(tree, ignore_errors=True)
    (tree / "bin").mkdir(parents=True)
    program = tree / "bin/cantle"
    run("strip", "-s", "-o", program, BUILT / "bin/cantle")
    # NVIDIA's nvidia-smi may be next to the simulated driver, for tests. It is NVIDIA's: no package has it.
    shutil.copytree(BUILT / "lib/cantle", tree / "lib/cantle", ignore=shutil.ignore_patterns("nvidia-smi"))
    for library in (tree / "lib/cantle/sim").iterdir():
        run("strip", "--strip-unneeded", library)
    share, etc = tree / "share", tree / "etc"
    (share / "doc/cantle").mkdir(parents=True)
    shutil.copy(ROOT / "LICENSE", share / "doc/cantle/copyright")
    run(program, "man", share / "man/man1")
    for shell, name in COMPLETIONS.items():
        path = share / name
        path.parent.mkdir(parents=True)
        path.write_text(run(program, "completions", shell))
    etc.mkdir()
    for name, command in CONFIGURATION.items():
        (etc / f"{name}.toml").write_text(run(program, "reference", command))
    for path in tree.rglob("*"):
        os.utime(path, (date, date))
    return program


def files(tree):
    return sorted(path for path in tree.rglob("*") if path.is_file())


def mode_of(path):
    return 0o755 if os.access(path, os.X_OK) else 0o644


def tar(tree, prefix, date, paths):
    """An archive of `paths` below `tree`, without anything of the machine that made it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in paths:
            member = tarfile.TarInfo(f"{prefix}/{path.relative_to(tree)}")
            member.size, member.mtime, member.mode = path.stat().st_size, date, mode_of(path)
            with path.open("rb") as content:
                archive.addfile(member, content)
    return buffer.getvalue()


def main():
    if not (BUILT / "bin/cantle").exists():
        sys.exit(f"packages: {BUILT.relative_to(ROOT)}/bin/cantle is missing; run: cargo xtask dist packages")
    package = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
    version, homepage = package["version"], package["repository"]
    date = int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct"))
    machine = platform.machine()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    tree = ROOT / "target/packages-tree"
    program = make_tree(tree, date)
    glibc = newest_glibc([program, *(path for path in (tree / "lib").rglob("*") if path.is_file())])

    name = f"cantle-{version}-{machine}-linux"
    archive = tar(tree, name, date, files(tree))
    (OUT / f"{name}.tar.zst").write_bytes(zstandard.ZstdCompressor(level=15).compress(archive))
    write_wheel(OUT, tree, ROOT / "python/src", version, date, glibc, machine, homepage)
    variables = {
        "VERSION": version,
        "ARCH": DEB_ARCH[machine],
        "TREE": str(tree.relative_to(ROOT)),
        "GLIBC": f"{glibc[0]}.{glibc[1]}",
        "HOMEPAGE": homepage,
        "MTIME": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(date)),
        "SOURCE_DATE_EPOCH": str(date),
    }
    nfpm = pathlib.Path(sys.executable).parent / "nfpm"
    # nfpm fills in variables in some fields only.
    config = OUT / "nfpm.yaml"
    text = (ROOT / "packaging/nfpm.yaml").read_text()
    config.write_text(re.sub(r"\$\{(\w+)\}", lambda found: variables[found[1]], text))
    for packager in ("deb", "rpm"):
        run(nfpm, "package", "--config", config, "--packager", packager, "--target", OUT, env=os.environ | variables)
    config.unlink()
    chart = ROOT / "charts/cantle"
    (OUT / f"cantle-chart-{version}.tgz").write_bytes(gzip.compress(tar(chart, "cantle", date, files(chart)), mtime=date))
    write_sbom(OUT / f"cantle-{version}.cdx.json", json.loads(run("cargo", "metadata", "--locked", "--format-version", "1")), date)
    write_image(OUT, tree, version, date, DEB_ARCH[machine], homepage)
    made = files(OUT)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (OUT / "SHA256SUMS").write_text("".join(lines))
    for path in made:
        print(f"packages: {path.relative_to(ROOT)}, {path.stat().st_size / 1e6:.1f} MB")
    print(f"packages: the program is {program.stat().st_size / 1e6:.1f} MB")
    print(f"packages: for {machine} with glibc {glibc[0]}.{glibc[1]} or newer")


if __name__ == "__main__":
    main()
