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
for each in debootstrap cpio rpm; do
    command -v "$each" >/dev/null || apt-get install -y --no-install-recommends "$each" >/dev/null
done
tests/rootfs.sh >/dev/null
tests/rootfs.sh bullseye >/dev/null
tests/rootfs.sh bookworm systemd >/dev/null
[ "${1:-}" != --setup ] || exit 0
# What `make build` has compiled, linked once more. The packages of a release are compiled in a profile of their own: `make packages`.
cargo xtask dist packages-for-tests
.venv-packages/bin/python packaging/build.py
exec .venv/bin/python -m pytest -q tests/packages "$@"
