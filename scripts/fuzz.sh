#!/usr/bin/env bash
# Runs every fuzz target, or those that are named, for SECONDS_EACH seconds (20 by default); stops at the first finding.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.13.2
cargo fuzz --version 2>/dev/null | grep -qx "cargo-fuzz $version" || cargo install --quiet --locked "cargo-fuzz@$version"
# Seeds: fixtures, golden files, and examples written in code.
seeds=${CARGO_TARGET_DIR:-target}/fuzz-seeds
cargo run --quiet --locked --package plimsoll-fuzz-bodies -- "$seeds"
# libFuzzer's instrumentation flags are unstable; this lets the stable toolchain take them.
export RUSTC_BOOTSTRAP=1
for target in ${*:-$(cargo fuzz list --fuzz-dir testing/fuzz)}; do
    echo "== $target"
    mkdir -p "testing/fuzz/corpus/$target"
    cargo fuzz run "$target" "testing/fuzz/corpus/$target" "$seeds/$target" -- \
        -max_total_time="${SECONDS_EACH:-20}" -max_len=8192
done
