#!/usr/bin/env bash
# Runs every fuzz target for SECONDS_EACH seconds (20 by default); stops at the first finding.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fuzz --version >/dev/null 2>&1 || cargo install --quiet --locked cargo-fuzz
# libFuzzer's instrumentation flags are unstable; this lets the stable toolchain take them.
export RUSTC_BOOTSTRAP=1
for target in $(cargo fuzz list); do
    echo "== $target"
    cargo fuzz run "$target" -- -max_total_time="${SECONDS_EACH:-20}" -max_len=4096
done
