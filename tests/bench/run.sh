#!/usr/bin/env bash
# The figures of SPECIFICATION.md, each with its floor measured in the same run. Fails if a promise is broken.
set -uo pipefail
cd "$(dirname "$0")/../.."
broken=0
python3 tests/bench/calls.py || broken=1
python3 tests/bench/launch.py || broken=1
python3 tests/bench/limit.py || broken=1
python3 tests/bench/idle.py || broken=1
python3 tests/bench/compute.py || broken=1
python3 tests/bench/watchdog.py || broken=1
python3 tests/bench/containers.py || broken=1
cargo run -q --release --locked -p cantle-sim --example speed || broken=1
cargo run -q --release --locked -p cantle-sim --example mig || broken=1
# Where MIG instances go: the part of the work accepted, compared with simpler rules and, on one GPU, the optimum.
cargo test -q --release --locked -p cantle-mig --test one_gpu --test quality -- --nocapture rules_beside mixes_of eight_gpus || broken=1
# On a real cluster: start of a pod with a slice and without, a thousand pods on a hundred nodes.
tests/cluster/run.sh --override-ini "python_files=bench_*.py" -s || [ $? = 77 ] || broken=1
openb="${OPENB:-../shared/data/openb}"
if [ -d "$openb" ]; then
    # Two seeds, about a minute; ten, as published figures have, with: cargo run --release -p cantle-sim --example openb -- DIR
    cargo run -q --release --locked -p cantle-sim --example openb -- "$openb" 2 || broken=1
    # One seed, about a minute.
    cargo run -q --release --locked -p cantle-sim --example make_room -- "$openb" 1 || broken=1
else
    echo "openb: skipped, the trace is not at $openb (set OPENB to the folder with its CSV files)"
fi
exit "$broken"
