#!/usr/bin/env bash
# The figures of SPECIFICATION.md, each beside its floor measured in the same run. Fails if a promise is broken.
set -uo pipefail
cd "$(dirname "$0")/../.."
broken=0
python3 tests/bench/calls.py || broken=1
python3 tests/bench/launch.py || broken=1
exit "$broken"
