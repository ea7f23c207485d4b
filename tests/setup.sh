#!/usr/bin/env bash
# Installs what the suites need: a Python environment in .venv, the real nvidia-smi 535 and 550 in .cache. Quick when done before.
set -euo pipefail
cd "$(dirname "$0")/.."
# Suites install Debian packages (an engine, a browser); a fresh machine has no package lists yet.
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ -z "$(ls /var/lib/apt/lists/*_Packages* 2>/dev/null)" ]; then
    apt-get update -qq
fi
tests/setup-venv.sh
tests/setup-nvidia-smi.sh || [ $? -eq 77 ]   # 77: can't be had here; the tests that need it skip and say so
