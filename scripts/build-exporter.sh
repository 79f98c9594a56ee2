#!/usr/bin/env bash
# Builds node-exporter-plus small and static, and puts it into the folder that is named; beside it gpu-probe, the program
# that loads NVIDIA's library for it.
#
# Small: the profile `small` of Cargo.toml. Static, on musl: of a shared C library a process holds 1.6 MiB for the
# little of it that it runs (bench/history/2026-11-22-exporter.md). Without rustup to fetch the target, on glibc.
set -euo pipefail
folder=${1:?usage: scripts/build-exporter.sh FOLDER}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-target}
musl=$(uname -m)-unknown-linux-musl
# Said again, since cargo forgets the profile's word for a package with an opt-level of its own.
link=(-C strip=symbols)
what=(--locked --profile small --package node-exporter-plus --bin node-exporter-plus)
if [ -d "$(rustc --print sysroot)/lib/rustlib/$musl" ] || rustup target add "$musl"; then
    what+=(--target "$musl")
    built=$target/$musl/small/node-exporter-plus
    # Of the C library, ring's C code uses memcpy and the like only, which any compiler can call. Fortified variants of
    # them are glibc's alone.
    if ! command -v "$(uname -m)-linux-musl-gcc" >/dev/null; then
        export "CC_${musl//-/_}=${CC:-cc}" "CFLAGS_${musl//-/_}=-U_FORTIFY_SOURCE"
    fi
    # A table of relocations in 2 KiB instead of 90, all of which a start reads.
    link+=(-C link-arg=-Wl,-z,pack-relative-relocs)
else
    built=$target/small/node-exporter-plus
    link+=(-C target-feature=+crt-static)
fi
# Beside its final place first: a program that runs cannot be written over.
place() { # program, name
    cp "$1" "$folder/.$2.new"
    mv -f "$folder/.$2.new" "$folder/$2"
}
"$cargo" rustc "${what[@]}" -- "${link[@]}"
place "$built" node-exporter-plus
"$cargo" build --locked --release --package node-exporter-plus --bin gpu-probe
place "$target/release/gpu-probe" gpu-probe
