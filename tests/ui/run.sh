#!/usr/bin/env bash
# The web page in a real browser against a real server on a machine with GPUs (tests/machine.sh). Installs
# what it needs on Debian and Ubuntu; `--setup` does only that.
# Words are the first letters of test files: tests/ui/run.sh queues
set -euo pipefail
cd "$(dirname "$0")"

skip() {
    echo "ui: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
}

[ "$(id -u)" = 0 ] || skip "a machine with GPUs needs root"
command -v npm >/dev/null || skip "Node.js with npm is needed"
export CANTLE="${CANTLE:-$PWD/../../dist/bin/cantle}"
export CHROMIUM="${CHROMIUM:-/usr/bin/chromium}"
if [ ! -x "$CHROMIUM" ]; then
    apt-get install -y -qq chromium >/dev/null 2>&1 || skip "no browser: apt-get install chromium failed"
fi
# Without these only the tests that need them are skipped.
command -v promtool >/dev/null || apt-get install -y -qq --no-install-recommends prometheus >/dev/null 2>&1 || true
command -v tmux >/dev/null || apt-get install -y -qq tmux >/dev/null 2>&1 || true
(cd ../.. && tests/venv.sh .venv-clearml tests/clearml/requirements.txt) >/dev/null 2>&1 || true
[ -d node_modules/playwright-core ] || npm ci --silent --no-audit --no-fund || skip "npm ci failed"
[ "${1:-}" != --setup ] || exit 0
[ -x "$CANTLE" ] || skip "$CANTLE is not there; make build makes it"
# `screenshots` makes the pictures of the docs instead.
[ "${1:-}" != screenshots ] || exec node screenshots.mjs
# In a network of its own: the browser drops what it loads when an interface of the machine comes or goes, and other suites start containers.
if command -v ip >/dev/null && unshare --net ip link set lo up 2>/dev/null; then
    exec unshare --net sh -c 'ip link set lo up && exec node run.mjs "$@"' sh "$@"
fi
exec node run.mjs "$@"
