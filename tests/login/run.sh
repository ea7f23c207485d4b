#!/bin/sh
# The suite `login`: people log in with a real identity provider (oidc-provider, from npm), in a browser's way and with the CLI.
# `--setup` only installs it.
set -eu
cd "$(dirname "$0")"
skip() {
    echo "login: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
}
command -v npm >/dev/null || skip "Node.js with npm is needed"
[ -d node_modules/oidc-provider ] || npm ci --silent --no-audit --no-fund --ignore-scripts || skip "npm ci failed"
cd ../..
tests/setup-venv.sh || skip "the Python environment cannot be made"
[ "${1:-}" != --setup ] || exit 0
[ -x dist/bin/cantle ] || skip "dist/bin/cantle is not there; make build makes it"
exec .venv/bin/python -m pytest -q tests/login "$@"
