#!/bin/sh
# The words: documentation, messages and web texts against docs/STYLE.md, and the spelling of everything that is tracked.
# Builds Vale, the prose linter, once per machine: a minute of CPU. `--setup` does only that. Other arguments are pytest's.
set -eu
cd "$(dirname "$0")/../.."
# The last version that Go's module proxy offers under this path.
version=v3.18.0
cache=${XDG_CACHE_HOME:-$HOME/.cache}/cantle/vale-$version
# Without Go or a proxy, the tests that need Vale skip and give this reason.
if [ ! -x "$cache/vale" ] && command -v go >/dev/null; then
    work=$(mktemp -d)
    trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
    export CGO_ENABLED=1 GOFLAGS= GOCACHE="${CANTLE_GO_CACHE:-$work/cache}" GOMODCACHE="$work/modules" GOBIN="$work/bin"
    echo "building Vale $version once, into $cache" >&2
    if go install -trimpath -ldflags '-s -w' "github.com/errata-ai/vale/v3/cmd/vale@$version" >"$work/log" 2>&1; then
        mkdir -p "$cache"
        mv "$work/bin/vale" "$cache/vale.part" && mv "$cache/vale.part" "$cache/vale"
    else
        tail -n 3 "$work/log" >&2
    fi
    chmod -R u+w "$work"; rm -rf "$work"
    trap - EXIT
fi
[ "${1:-}" != --setup ] || exit 0
tests/setup-venv.sh
export VALE="$cache/vale"
exec .venv/bin/python -m pytest -q tests/style "$@"
