#!/usr/bin/env bash
# Makes sure that a Rust toolchain new enough for this workspace is at hand, or says how to get one.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! command -v cargo >/dev/null; then
    echo "error: cargo was not found. Install Rust $wanted or newer: https://rustup.rs" >&2
    exit 1
fi
found=$(rustc --version | awk '{print $2}')
oldest=$(printf '%s\n%s\n' "$wanted" "$found" | sort --version-sort | head -n 1)
if [ "$oldest" != "$wanted" ]; then
    echo "error: Rust $found is installed, this workspace needs $wanted or newer: run 'rustup update stable'" >&2
    exit 1
fi
