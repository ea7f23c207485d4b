#!/usr/bin/env bash
# The documented example (see examples/demo.py).
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 examples/demo.py
