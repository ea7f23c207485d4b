"""The messages of `make` on a machine that lacks the programs it calls."""

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ["cargo", "cc", "strip", "python3", "npm", "go"]


def needs(path, *programs):
    command = ["/bin/sh", str(ROOT / "tests/needs.sh"), *programs]
    return subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, timeout=60)


def test_all_that_is_missing_is_listed_at_once_with_what_to_type(tmp_path):
    done = needs(str(tmp_path), *PROGRAMS)
    assert done.returncode == 1
    listed = [line.strip() for line in done.stderr.splitlines()[1:]]
    assert [line.split(":")[0] for line in listed] == PROGRAMS
    assert "  strip: the package binutils" in done.stderr
    assert "  cargo: as https://rustup.rs says" in done.stderr


def test_debian_is_told_its_own_command(tmp_path):
    (tmp_path / "apt-get").touch(mode=0o755)
    done = needs(str(tmp_path), "npm", "strip", "aarch64-linux-gnu-gcc", "qemu-aarch64-static")
    assert "  npm: apt-get install nodejs npm" in done.stderr
    assert "  strip: apt-get install binutils" in done.stderr
    assert "  aarch64-linux-gnu-gcc: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross" in done.stderr
    assert "  qemu-aarch64-static: apt-get install qemu-user-static" in done.stderr


def test_where_nothing_is_missing_nothing_is_printed(tmp_path):
    for program in PROGRAMS:
        (tmp_path / program).touch(mode=0o755)
    done = needs(str(tmp_path), *PROGRAMS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
