#!/bin/sh
# The linker of packages: against the symbols of glibc 2.28, with any glibc of this system (docs/adr/0042).
set -eu
exec "$(dirname "$0")/../.venv-packages/bin/python" -m ziglang cc -target "$(uname -m)-linux-gnu.2.28" "$@"
