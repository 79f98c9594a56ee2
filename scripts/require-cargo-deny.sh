#!/usr/bin/env bash
# Installs cargo-deny once, at the version that deny.toml is written for.
set -euo pipefail
version=0.20.2
if cargo deny --version >/dev/null 2>&1; then exit 0; fi
echo "installing cargo-deny $version (once; a few minutes)"
cargo install --quiet --locked "cargo-deny@$version"
