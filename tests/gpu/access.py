"""The programs of tests/bypass on this GPU: each tries to take twice its slice, by another function or another way to the driver."""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BYPASS = ROOT / "tests/bypass"
sys.path.insert(0, str(BYPASS))
from paths import KINDS, LINKED, LOADED  # noqa: E402

CANTLE = str(ROOT / "dist/bin/cantle")
LIMIT = 2 << 30


def path_of_libcuda():
    """The path at which the loader finds the driver. A process of its own finds it, so that this one does not load the driver."""
    code = "import ctypes; ctypes.CDLL('libcuda.so.1'); print(next(l.split()[-1] for l in open('/proc/self/maps') if 'libcuda.so' in l))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def build(home, libcuda):
    def compile(source, target, *flags):
        subprocess.run(["gcc", "-O1", "-o", f"{home}/{target}", BYPASS / source, *flags, "-ldl", "-lpthread"], check=True)

    linked = ("-Wl,--no-as-needed", libcuda)
    for name in ("allocate", "access", "processes"):
        compile(f"{name}.c", name, *linked)
    compile("access.c", "access_unlinked")
    compile("plugin.c", "looks_up.so", "-shared", "-fPIC")
    compile("plugin.c", "is_linked.so", "-shared", "-fPIC", "-DLINKED", libcuda)


def commands(home, libcuda):
    """Each path's name and command."""
    for kind in KINDS:
        yield kind, [f"{home}/allocate", kind, str(LIMIT)]
    for way in LINKED + LOADED:
        program = "access" if way in LINKED else "access_unlinked"
        yield way, [f"{home}/{program}", way, str(LIMIT), libcuda, home]
    yield "32_processes", [f"{home}/processes", "32", str(LIMIT)]


def record_of(command, env, look=lambda: None):
    """The output of the program, and the result of `look` while it held its memory; no record if the driver does not have the path."""
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
    line = child.stdout.readline()
    seen = look()
    child.communicate(timeout=240)
    return (json.loads(line) if line else None), seen


def try_all(bench, home):
    """Names of the paths that were held to the slice, that were not, and that this driver does not have."""
    libcuda = path_of_libcuda()
    build(home, libcuda)
    held, broken, absent = [], {}, []
    for name, command in commands(home, libcuda):
        outside, _ = record_of(command, bench.env)
        if not outside:
            absent.append(name)
            continue
        base = bench.used()
        in_a_slice = [CANTLE, "run", "--gpu-memory", f"{LIMIT >> 20}Mi", "--", *command]
        inside, used = record_of(in_a_slice, bench.env, lambda: bench.used() - base)
        is_free_outside = outside["refused"] == 0 and outside["granted"] >= 2 * LIMIT
        is_held = inside and inside["refused"] == 2 and inside["total"] == LIMIT and used <= LIMIT
        if is_free_outside and is_held:
            held.append(name)
        else:
            broken[name] = {"outside": outside, "inside": inside, "nvml_bytes": used}
    return held, broken, absent
