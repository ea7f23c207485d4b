#!/usr/bin/env python3
"""Every look-up of a function (cuGetProcAddress) through the filter, over a real libcuda.so.1: real_driver.py LIBCUDA [LIBCUDA]...

Reports the answers that differ from the library's own without the filter, and the addresses that belong to none of its
exported functions: no hook would replace those. Needs root, for a mount namespace, and no GPU: to look functions up, the
library needs none."""

import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SHIM = ROOT / "dist/lib/cantle/shim"
INVENTORY = ROOT / "crates/sim/simgpu/data/cuda-symbols.txt"
# The filter finds the driver's library there.
BESIDE = 'mount -t tmpfs tmpfs /run && mkdir -p /run/cantle/real && cp "$1" /run/cantle/real/libcuda.so.1 && shift && exec "$@"'


def exported(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout.splitlines()
    return {words[2].split("@")[0] for line in lines if len(words := line.split()) == 3 and words[1] == "T"}


def inventory():
    return {line.split()[0] for line in INVENTORY.read_text().splitlines() if not line.startswith("#")}


def check(library):
    """True if the filter is right over this library."""
    functions = exported(library)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as names:
        names.write("\n".join(sorted(functions | inventory())))
        names.flush()
        command = ["unshare", "--mount", "sh", "-ec", BESIDE, "sh", library]
        command += ["env", f"LD_LIBRARY_PATH={SHIM}", sys.executable, HERE / "lookup.py", names.name]
        done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    unknown = sorted(functions - inventory())
    print(
        f"{library.resolve().name}: {len(functions)} functions; {found['untouched']} answers of look-ups as the driver gave them, "
        f"{len(found['substituted'])} functions replaced by their hooks, {len(found['wrong'])} wrong; "
        f"in no class: {', '.join(unknown) or 'none'}; handed out and not exported: {', '.join(found['unexported']) or 'none'}"
    )
    for wrong in found["wrong"][:10]:
        print("   ", *wrong)
    return not (found["wrong"] or unknown or found["unexported"])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(0 if all([check(pathlib.Path(path)) for path in sys.argv[1:]]) else 1)
