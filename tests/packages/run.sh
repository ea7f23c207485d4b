#!/bin/sh
# The suite `packages`: what `make packages` makes, installed and used as its user would. Exit 77 with a reason where it can't run.
set -eu
cd "$(dirname "$0")/../.."
if [ "$(id -u)" != 0 ]; then
    echo "skipped: packages are installed by root"
    exit 77
fi
tests/setup-venv.sh
tests/venv.sh .venv-packages packaging/requirements.txt
command -v debootstrap >/dev/null || apt-get install -y --no-install-recommends debootstrap >/dev/null
tests/rootfs.sh >/dev/null
[ "${1:-}" != --setup ] || exit 0
.venv-packages/bin/python packaging/build.py
exec .venv/bin/python -m pytest -q tests/packages "$@"
