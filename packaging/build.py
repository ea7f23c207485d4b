#!/usr/bin/env python3
"""Makes the packages of `cargo xtask dist packages` in target/packages: a tarball, .deb, .rpm, a wheel, the container image, the Helm chart, an
SBOM and checksums. `build.py aarch64` makes those of `dist packages --arch aarch64` in target/packages-aarch64, without chart and SBOM, which
are the same for every architecture.

Two runs over the same build make the same bytes: files are sorted and have the date of the commit ($SOURCE_DATE_EPOCH, if it is set).
"""

import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib

import zstandard

from architecture import Architecture
from image import write_image
from sbom import write_sbom
from wheel import write_wheel

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = ROOT / "target"
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


def newest_glibc(architecture, programs):
    """The oldest glibc that has every symbol which the programs and libraries use."""
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", run(architecture.tool("objdump"), "-T", *programs))
    return max((int(major), int(minor)) for major, minor in versions)


def make_tree(architecture, built, tree, date):
    """The files of every package: the program, its libraries, manual pages, completions, license, configuration."""
    strip = architecture.tool("strip")
    shutil.rmtree(tree, ignore_errors=True)
    (tree / "bin").mkdir(parents=True)
    program = tree / "bin/cantle"
    run(strip, "-s", "-o", program, built / "bin/cantle")
    # NVIDIA's nvidia-smi may be next to the simulated driver, for tests. It is NVIDIA's: no package has it.
    shutil.copytree(built / "lib/cantle", tree / "lib/cantle", ignore=shutil.ignore_patterns("nvidia-smi"))
    for library in (tree / "lib/cantle/sim").iterdir():
        run(strip, "--strip-unneeded", library)
    share, etc = tree / "share", tree / "etc"
    (share / "doc/cantle").mkdir(parents=True)
    shutil.copy(ROOT / "LICENSE", share / "doc/cantle/copyright")
    cantle = architecture.starts(program)
    run(*cantle, "man", share / "man/man1")
    for shell, name in COMPLETIONS.items():
        path = share / name
        path.parent.mkdir(parents=True)
        path.write_text(run(*cantle, "completions", shell))
    etc.mkdir()
    for name, command in CONFIGURATION.items():
        (etc / f"{name}.toml").write_text(run(*cantle, "reference", command))
    # packaging/scripts/installed.sh makes the user.
    agent = (etc / "agent.toml").read_text()
    before, after = agent.split('\n#task-user = "agent"\n')
    (etc / "agent.toml").write_text(f'{before}\ntask-user = "cantle-task"\n{after}')
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


def main(name=None):
    architecture = Architecture(name)
    cargo_target, out = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TARGET)), TARGET / architecture.directory("packages")
    built = cargo_target / architecture.directory("portable")
    if not (built / "bin/cantle").exists():
        sys.exit(f"packages: {built}/bin/cantle is missing; run: cargo xtask dist packages{architecture.option}")
    package = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
    version, homepage = package["version"], package["repository"]
    date = int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct"))
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    tree = TARGET / architecture.directory("packages-tree")
    program = make_tree(architecture, built, tree, date)
    glibc = newest_glibc(architecture, [program, *(path for path in (tree / "lib").rglob("*") if path.is_file())])

    name = f"cantle-{version}-{architecture.name}-linux"
    archive = tar(tree, name, date, files(tree))
    (out / f"{name}.tar.zst").write_bytes(zstandard.ZstdCompressor(level=15).compress(archive))
    write_wheel(out, tree, ROOT / "python/src", version, date, glibc, architecture.name, homepage)
    variables = {
        "VERSION": version,
        "ARCH": architecture.debian,
        "TREE": str(tree.relative_to(ROOT)),
        "GLIBC": f"{glibc[0]}.{glibc[1]}",
        "HOMEPAGE": homepage,
        "MTIME": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(date)),
        "SOURCE_DATE_EPOCH": str(date),
    }
    nfpm = pathlib.Path(sys.executable).parent / "nfpm"
    # nfpm fills in variables in some fields only.
    config = out / "nfpm.yaml"
    text = (ROOT / "packaging/nfpm.yaml").read_text()
    config.write_text(re.sub(r"\$\{(\w+)\}", lambda found: variables[found[1]], text))
    for packager in ("deb", "rpm"):
        run(nfpm, "package", "--config", config, "--packager", packager, "--target", out, env=os.environ | variables)
    config.unlink()
    if architecture.is_own:
        chart = ROOT / "charts/cantle"
        (out / f"cantle-chart-{version}.tgz").write_bytes(gzip.compress(tar(chart, "cantle", date, files(chart)), mtime=date))
        write_sbom(out / f"cantle-{version}.cdx.json", json.loads(run("cargo", "metadata", "--locked", "--format-version", "1")), date)
    write_image(out, tree, version, date, architecture, homepage)
    made = files(out)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (out / "SHA256SUMS").write_text("".join(lines))
    for path in made:
        print(f"packages: {path.relative_to(ROOT)}, {path.stat().st_size / 1e6:.1f} MB")
    print(f"packages: the program is {program.stat().st_size / 1e6:.1f} MB")
    print(f"packages: for {architecture.name} with glibc {glibc[0]}.{glibc[1]} or newer")


if __name__ == "__main__":
    main(*sys.argv[1:])
