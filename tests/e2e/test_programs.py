"""Programs of every day in the sandbox of a task of root with a slice: docs/reference/programs.md is this table for people."""

import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from conftest import CANTLE

PAGE = pathlib.Path(__file__).parents[2] / "docs/reference/programs.md"
PYTHON = sys.executable
# What the suite of frameworks installs, which then runs this row. Its own interpreter may lie where only root may go.
PACKAGES = pathlib.Path(__file__).parents[2] / f".venv-frameworks/lib/python3.{sys.version_info.minor}/site-packages"
TORCH = f"env PYTHONPATH={shlex.quote(str(PACKAGES))} {PYTHON}"

# Each prints `works` as its last line. They run in an empty directory, with a home of their own.
WORKS = {
    "Python, multiprocessing": f"""{PYTHON} -c '
import multiprocessing as m
if __name__ == "__main__":
    for kind in ("fork", "spawn", "forkserver"):
        with m.get_context(kind).Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
    print("works")'""",
    "Python, shared memory": f"""{PYTHON} -c '
from multiprocessing import shared_memory
a = shared_memory.SharedMemory(create=True, size=1 << 20)
b = shared_memory.SharedMemory(name=a.name)
a.buf[7] = 42
assert b.buf[7] == 42
b.close(); a.close(); a.unlink()
print("works")'""",
    "Python, SQLite with a write-ahead log": f"""{PYTHON} -c '
import sqlite3
base = sqlite3.connect("base")
assert base.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
base.execute("CREATE TABLE t(a)"); base.commit()
print("works")'""",
    "PyTorch, data loader": f"""{TORCH} -c '
import torch, torch.utils.data as d
assert len(list(d.DataLoader(list(range(8)), num_workers=2, batch_size=4))) == 2
print("works")'""",
    "Jupyter": f"""{PYTHON} -m jupyter server --allow-root --no-browser --port=0 --ServerApp.token=t >log 2>&1 & server=$!
for _ in $(seq 300); do url=$(grep -o 'http://127.0.0.1:[0-9]*' log | head -1); [ "$url" ] && break; sleep 0.1; done
curl -sf "$url/api?token=t" | grep -q version && echo works; kill $server""",
    "pip install --user": f"""mkdir -p p/greet-1.dist-info && echo 'said = "works"' >p/greet.py && cd p
printf 'Metadata-Version: 2.1\\nName: greet\\nVersion: 1\\n' >greet-1.dist-info/METADATA
printf 'Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n' >greet-1.dist-info/WHEEL
printf 'greet.py,,\\ngreet-1.dist-info/METADATA,,\\ngreet-1.dist-info/WHEEL,,\\ngreet-1.dist-info/RECORD,,\\n' >greet-1.dist-info/RECORD
{PYTHON} -m zipfile -c greet-1-py3-none-any.whl greet.py greet-1.dist-info
BASE=$({PYTHON} -c 'import sys; print(sys._base_executable)')
cd .. && $BASE -m pip install -q --user --no-index --break-system-packages p/greet-1-py3-none-any.whl 2>log || $BASE -m pip install -q --user --no-index p/greet-1-py3-none-any.whl
$BASE -c 'import greet; print(greet.said)'""",
    "Python, venv": f"""$({PYTHON} -c 'import sys; print(sys._base_executable)') -m venv --without-pip v && v/bin/python -c 'print("works")'""",
    "git": """git init -q a && cd a && echo x >f && git add f && git -c user.name=a -c user.email=a@b commit -qm f && git clone -q . ../b && [ -e ../b/f ] && echo works""",
    "make and gcc": """printf '#include <stdio.h>\\nint main(void) { puts("works"); }\\n' >t.c; printf 't: t.c\\n\\tgcc -o t t.c\\n' >Makefile; make -s && ./t""",
    "ssh-keygen and ssh-agent": """ssh-keygen -q -t ed25519 -N '' -f key && eval $(ssh-agent) >log && ssh-add -q key && ssh-add -l | grep -q ED25519 && echo works; kill $SSH_AGENT_PID""",
    "ssh": f"""{PYTHON} -c '
import socket, subprocess
door = socket.create_server(("127.0.0.1", 0))
words = ["ssh", "-v", "-oBatchMode=yes", "-oStrictHostKeyChecking=no", "-p", str(door.getsockname()[1]), "127.0.0.1", "true"]
client = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
guest, _ = door.accept()
guest.sendall(b"SSH-2.0-test\\r\\n")
assert guest.recv(64).startswith(b"SSH-2.0-OpenSSH")
guest.close()
assert "remote software version test" in client.communicate()[1]
print("works")'""",
    "tmux": """export TMUX_TMPDIR=$PWD; tmux -L t new-session -d 'echo works >out; sleep 60' && for _ in $(seq 100); do [ -s out ] && break; sleep 0.1; done; cat out; tmux -L t kill-server""",
    "curl": f"""echo works >page; {PYTHON} -u -m http.server 0 --bind 127.0.0.1 >log 2>&1 & server=$!
for _ in $(seq 100); do port=$(grep -o 'port [0-9]*' log | cut -d' ' -f2); [ "$port" ] && break; sleep 0.1; done
curl -sf http://127.0.0.1:$port/page; kill $server""",
    "tar, gzip, xz": """echo works >a; tar czf a.tgz a && tar cJf a.txz a && rm a && tar xJf a.txz && cat a""",
    "gdb": """gdb -q -batch -ex 'break main' -ex run -ex 'info program' --args sh -c true >log 2>&1; grep -qE 'exited normally|Breakpoint|process' log && echo works""",
    "strace": """strace -f -o log sh -c 'sh -c true' && grep -q execve log && echo works""",
    "Node.js, worker threads": """node -e 'const {Worker} = require("worker_threads"); new Worker("console.log(`works`)", {eval: true})'""",
    "Perl": """perl -e 'my $p = fork; exit 0 unless $p; waitpid $p, 0; print "works\\n"'""",
    "User namespaces (unshare)": """unshare --user --map-root-user --mount sh -c 'mount -t tmpfs t /mnt && echo works'""",
    "setpriv, su": """setpriv --reuid=65534 --regid=65534 --clear-groups id -u | grep -qx 65534 && echo works""",
    "nohup, setsid, flock": """nohup sh -c 'echo a' >out 2>&1; setsid -w flock lock sh -c 'echo b' >>out; grep -q a out && grep -q b out && echo works""",
    "ps": """ps -e | grep -q ps && [ $(ps -e --no-headers | wc -l) -lt 9 ] && echo works""",
}

# Each fails, with this in its message.
REFUSED = {
    "mount": ("mount -t tmpfs tmpfs /mnt", "ermission denied"),
    "FUSE": ("""python3 -c '
import ctypes, os
fuse = os.open("/dev/fuse", os.O_RDWR) if os.path.exists("/dev/fuse") else 0
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mount(b"fuse", b"/mnt", b"fuse", 0, b"fd=%d,rootmode=40000,user_id=0,group_id=0" % fuse) == 0, os.strerror(ctypes.get_errno())'""", "not permitted"),
    "mknod": ("mknod disk b 8 0", "not permitted"),
    "Docker's client": ("""python3 -c '
import socket
socket.socket(socket.AF_UNIX).connect("/run/docker.sock")'""", "refused|No such file"),
    "sysctl": ("echo 1 >/proc/sys/vm/swappiness", "Read-only"),
    "cantle run": (f"{CANTLE} run --gpu 0.1 -- true", "inside a slice already"),
}
# What this machine may lack, by the first word or module that is needed.
NEEDS = {"PyTorch, data loader": "torch", "Jupyter": "jupyter_server", "tmux": "tmux", "Node.js, worker threads": "node", "gdb": "gdb", "strace": "strace"}


def lacks(name):
    need = NEEDS.get(name)
    if need in ("torch", "jupyter_server"):
        python = TORCH if need == "torch" else PYTHON
        return subprocess.run([*shlex.split(python), "-c", f"import {need}"], capture_output=True).returncode != 0
    return need is not None and shutil.which(need) is None


@pytest.fixture
def inside(cantle, tmp_path):
    """Runs a script as a task with a slice, in a home of its own."""
    home = tmp_path / "home"
    home.mkdir()
    cantle.env |= {"HOME": str(home)}
    return lambda script: cantle.program("sh", "-c", f"cd {home} && exec {CANTLE} -q run --gpu 0.25 -- sh -c \"$1\"", "sh", script)


@pytest.mark.parametrize("name", WORKS)
def test_a_program_works(inside, name):
    if lacks(name):
        pytest.skip(f"this machine has no {NEEDS[name]}")
    done = inside(WORKS[name])
    assert done.stdout.splitlines()[-1:] == ["works"], f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("name", REFUSED)
def test_a_program_is_refused(inside, name):
    script, why = REFUSED[name]
    done = inside(script)
    assert done.returncode != 0 and re.search(why, done.stderr), f"{done.returncode} {done.stdout}\n{done.stderr}"


def test_the_page_has_the_same_programs():
    rows = [line.split("|")[1:3] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    told = {name.strip(): what.strip() for name, what in rows}
    assert {name for name, what in told.items() if what == "works"} == set(WORKS)
    assert {name for name, what in told.items() if what.startswith("refused")} == set(REFUSED)
