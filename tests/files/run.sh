#!/bin/sh
# The suite `files`: artifacts in a directory and in a bucket of a real S3 server, the Versity S3 Gateway. Builds it once per machine
# (80 s of CPU); `--setup` does only that. Other arguments are pytest's.
set -eu
cd "$(dirname "$0")/../.."
version=v1.8.0
cache=${XDG_CACHE_HOME:-$HOME/.cache}/cantle/versitygw-$version
if [ ! -x "$cache/versitygw" ] && command -v go >/dev/null; then
    work=$(mktemp -d)
    trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
    export CGO_ENABLED=0 GOFLAGS= GOCACHE="${CANTLE_GO_CACHE:-$work/cache}" GOMODCACHE="$work/modules" GOBIN="$work/bin"
    echo "building the Versity S3 Gateway $version once, into $cache" >&2
    if nice go install -trimpath -ldflags '-s -w' "github.com/versity/versitygw/cmd/versitygw@$version" >"$work/log" 2>&1; then
        mkdir -p "$cache"
        mv "$work/bin/versitygw" "$cache/versitygw.part" && mv "$cache/versitygw.part" "$cache/versitygw"
    else
        tail -n 3 "$work/log" >&2
    fi
    chmod -R u+w "$work"; rm -rf "$work"
    trap - EXIT
fi
if [ ! -x "$cache/versitygw" ]; then
    echo "skipped: the Versity S3 Gateway $version cannot be built here"
    exit 77
fi
[ "${1:-}" != --setup ] || exit 0
tests/setup-venv.sh
if [ ! -x dist/bin/cantle ]; then
    echo "dist/bin/cantle is missing; run: make build" >&2
    exit 1
fi
export VERSITYGW="$cache/versitygw"
exec .venv/bin/python -m pytest -q tests/files "$@"
