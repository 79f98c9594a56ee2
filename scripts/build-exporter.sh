#!/usr/bin/env bash
# Builds node-exporter-plus small and static, and puts it into the folder that is named; beside it gpu-probe, the
# program that loads NVIDIA's library for it.
#
# Small: the profile `small` of Cargo.toml. Static, on musl: of a shared C library a process holds 1.6 MiB for the
# little of it that it runs (bench/RESULTS.md has the figures). Without rustup to fetch the target, on glibc.
set -euo pipefail
folder=${1:?usage: scripts/build-exporter.sh FOLDER}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
what=(--locked --profile small --package node-exporter-plus --bin node-exporter-plus)
musl=$(uname -m)-unknown-linux-musl
if [ -d "$(rustc --print sysroot)/lib/rustlib/$musl" ] || rustup target add "$musl"; then
    "$cargo" build "${what[@]}" --target "$musl"
    built=${CARGO_TARGET_DIR:-target}/$musl/small/node-exporter-plus
else
    "$cargo" rustc "${what[@]}" -- -C target-feature=+crt-static
    built=${CARGO_TARGET_DIR:-target}/small/node-exporter-plus
fi
"$cargo" build --locked --release --package node-exporter-plus --bin gpu-probe
# Beside its final place first: a program that runs cannot be written over.
for program in "$built" "${CARGO_TARGET_DIR:-target}/release/gpu-probe"; do
    name=$(basename "$program")
    cp "$program" "$folder/.$name.new"
    mv -f "$folder/.$name.new" "$folder/$name"
done
