#!/usr/bin/env bash
# Builds node-exporter-plus small and static, and puts it into the folder that is named; beside it gpu-probe, the program
# that loads NVIDIA's library for it.
#
# Small: the profile `small` of Cargo.toml. Static, on musl: of a shared C library a process holds 1.6 MiB for the
# little of it that it runs. Without rustup to fetch the target, on glibc.
set -euo pipefail
folder=${1:?usage: scripts/build-exporter.sh FOLDER [x86_64|aarch64]}
machine=${2:-$(uname -m)}
# The target of what runs on glibc: the compiler's own, unless a machine is named.
glibc=${2:+$2-unknown-linux-gnu}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-target}
musl=$machine-unknown-linux-musl
# Said again, since cargo forgets the profile's word for a package with an opt-level of its own.
link=(-C strip=symbols)
what=(--locked --profile small --package node-exporter-plus --bin node-exporter-plus)
if [ -d "$(rustc --print sysroot)/lib/rustlib/$musl" ] || rustup target add "$musl"; then
    what+=(--target "$musl")
    built=$target/$musl/small/node-exporter-plus
    # Of the C library, ring's C code uses memcpy and the like only, which any compiler can call. Fortified variants of
    # them are glibc's alone.
    if ! command -v "$machine-linux-musl-gcc" >/dev/null; then
        compiler=${CC:-cc}
        if [ "$machine" != "$(uname -m)" ]; then
            compiler=$machine-linux-gnu-gcc
            of_target=${musl//-/_}
            export "CARGO_TARGET_${of_target^^}_LINKER=$compiler"
        fi
        export "CC_${musl//-/_}=$compiler" "CFLAGS_${musl//-/_}=${CFLAGS:-} -U_FORTIFY_SOURCE"
    fi
    # A table of relocations in 2 KiB instead of 90, all of which a start reads. arm64's linker has it from 2.43 on.
    [ "$machine" = aarch64 ] || link+=(-C "link-arg=-Wl,-z,pack-relative-relocs")
else
    what+=(${glibc:+--target "$glibc"})
    built=$target/${glibc:+$glibc/}small/node-exporter-plus
    link+=(-C target-feature=+crt-static)
fi
# Beside its final place first: a program that runs cannot be written over.
place() { # program, name
    cp "$1" "$folder/.$2.new"
    mv -f "$folder/.$2.new" "$folder/$2"
}
"$cargo" rustc "${what[@]}" -- "${link[@]}"
place "$built" node-exporter-plus
"$cargo" build --locked --release ${glibc:+--target "$glibc"} --package node-exporter-plus --bin gpu-probe
place "$target/${glibc:+$glibc/}release/gpu-probe" gpu-probe
