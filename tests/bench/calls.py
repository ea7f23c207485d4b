#!/usr/bin/env python3
"""What the shim adds to calls of the driver and to a process, compared with the driver alone and a filter that does nothing (the floor).

The three take turns; each figure is the least of its turns. Needs root, to make a machine with GPUs.
"""

import os
import sys
import tempfile

from ways import Times, compare, measure

PAIRS = {f"pair_{size}_{live}_live": most for live in (0, 1000, 10000) for size, most in (("2mib", 150), ("4kib", 250))}
ASYNC = {f"pair_async_{size}": most for size, most in (("1kib", 250), ("64kib", 250), ("128kib", 250), ("1mib", 300), ("16mib", 500))}
# Promised for each program's figures: at most so much over the driver alone. The names say the unit; calls are in nanoseconds.
PROMISED = {
    "calls": {"launch": 4, "mem_get_info": 50, **ASYNC, "stream_synchronize": Times(1.1), **PAIRS},
    "growth": {"reset_400000_live_ms": Times(1.5), "unmap_of_1000": 200, "unmap_of_40000": 200},
    "siblings": {"mem_get_info_of_100": 100},
    "instructions": {"launch_instructions": 25},
    "starts": {"slowest_init_ms": 5, "slowest_look_ms": 5},
    "footprint": {"resident_kib": 300},
}
# That none of 256 processes is interrupted by something else happens in few turns, on a busy machine.
TURNS = {"starts": 30}


def main():
    if os.geteuid() != 0:
        print("calls: skipped, they need root")
        return 0
    print(f"{'':<28}{'alone':>10}{'floor':>10}{'cantle':>10}{'added':>10}{'promised':>10}")
    broken = []
    for program, promised in PROMISED.items():
        with tempfile.TemporaryDirectory(prefix="cantle-bench-") as home:
            broken += compare(measure(home, program, TURNS.get(program, 5)), promised)
    print("promises kept" if not broken else f"BROKEN: {', '.join(broken)}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
