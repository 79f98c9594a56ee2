#!/usr/bin/env bash
# Installs cargo-deny once, at the version that deny.toml is written for.
set -euo pipefail
version=0.20.2
if cargo deny --version >/dev/null 2>&1; then exit 0; fi
echo "installing cargo-deny $version (once; a few minutes)"
# Its release profile is for those who run it all day. A check takes a second either way, and compiling a third of the time.
export CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=0
cargo install --quiet --locked "cargo-deny@$version"
