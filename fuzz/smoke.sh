#!/usr/bin/env bash
# Runs every fuzz target for a bounded number of inputs: fuzz/smoke.sh [RUNS] [TARGET...]
# Works with the stable toolchain and without cargo-fuzz: the flags are those that `cargo fuzz -s none` passes. With cargo-fuzz installed,
# `cargo fuzz run -s none TARGET` does the same without a bound.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:-100000}
shift || true
host=$(rustc -vV | sed -n 's/^host: //p')
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks"
cargo build --locked --quiet --release -p moetwin-fuzz --target "$host" --target-dir fuzz/target
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
    for file in fuzz/fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for target in "${targets[@]}"; do
    mkdir -p "$work/$target" fuzz/artifacts/"$target"
    echo "fuzz $target: $runs runs, seed 1"
    # New inputs go to a scratch folder; a crash stays in fuzz/artifacts and belongs, once fixed, in fuzz/corpus.
    if ! "fuzz/target/$host/release/$target" -seed=1 -runs="$runs" -max_total_time=120 -timeout=10 -rss_limit_mb=2048 -max_len=16384 \
        -artifact_prefix="fuzz/artifacts/$target/" "$work/$target" "fuzz/corpus/$target" 2> "$work/log"; then
        cat "$work/log" >&2
        exit 1
    fi
    grep -E '^Done' "$work/log"
done
