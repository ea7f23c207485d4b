#!/bin/sh
# Looks for the programs that `make build`, `make demo` and `make test` call: `needs.sh PROGRAM…`. Fails with one list of what is missing and what to
# type to install it.
set -eu
if command -v apt-get >/dev/null; then install='apt-get install' node='nodejs npm'
elif command -v dnf >/dev/null; then install='dnf install' node=nodejs
else install='the package' node='nodejs npm'
fi
missing=
for program; do
    command -v "$program" >/dev/null && continue
    case $program in
    cargo) how='as https://rustup.rs says' ;;
    cc) how="$install gcc" ;;
    strip | objdump) how="$install binutils" ;;
    aarch64-linux-gnu-gcc) how="$install gcc-aarch64-linux-gnu libc6-dev-arm64-cross" ;;
    qemu-*-static) how="$install qemu-user-static" ;;
    npm) how="$install $node" ;;
    go) how="$install golang" ;;
    *) how="$install $program" ;;
    esac
    missing="$missing
  $program: $how"
done
[ -z "$missing" ] && exit 0
echo "cantle: these programs are missing; install them and try again:$missing" >&2
exit 1
