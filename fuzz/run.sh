#!/usr/bin/env bash
# Fuzzes the accounting region: fuzz/run.sh [SECONDS]. Needs the pinned toolchain and a C++ compiler; neither cargo-fuzz nor nightly:
# the coverage pass is LLVM's own, and libFuzzer comes with libfuzzer-sys. (`cargo +nightly fuzz run region` works too.)
set -euo pipefail
cd "$(dirname "$0")"
cover="-Cpasses=sancov-module"
for option in level=4 inline-8bit-counters pc-table trace-compares; do cover+=" -Cllvm-args=-sanitizer-coverage-$option"; done
RUSTFLAGS="$cover --cfg fuzzing -Ccodegen-units=1" \
    cargo build --release --locked --target "$(rustc -vV | sed -n 's/^host: //p')" --target-dir target
mkdir -p corpus/region artifacts
TMPDIR=/dev/shm exec target/*/release/region corpus/region -max_total_time="${1:-600}" -max_len=1200 -len_control=20 -timeout=60 \
    -rss_limit_mb=1024 -artifact_prefix=artifacts/ -print_final_stats=1
