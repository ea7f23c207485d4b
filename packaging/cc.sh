#!/bin/sh
# The linker of packages: for any architecture and against the symbols of an old glibc, which xtask names (docs/adr/0042).
set -eu
exec "$(dirname "$0")/../.venv-packages/bin/python" -m ziglang cc "$@"
