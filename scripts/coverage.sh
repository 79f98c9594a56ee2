#!/usr/bin/env bash
# Prints which part of each file's lines the tests run (cargo-llvm-cov, installed when missing). With arguments, those of
# cargo test: `scripts/coverage.sh --package plimsoll-placement`.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.9.1
cargo llvm-cov --version >/dev/null 2>&1 || {
    echo "installing cargo-llvm-cov $version (once; a minute)"
    cargo install --quiet --locked "cargo-llvm-cov@$version"
}
rustup component add llvm-tools
cargo build --locked --package plimsoll-nvml-standin
tests=("$@")
[ $# -gt 0 ] || tests=(--workspace)
cargo llvm-cov --locked --summary-only "${tests[@]}"
