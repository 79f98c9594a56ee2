#!/usr/bin/env bash
# Builds `plimsoll`, the operators' command, for a target of the compiler, and puts it into a folder. Those for Linux are
# static, on musl: they run on every distribution.
#
#   scripts/build-plimsoll.sh TARGET FOLDER
set -euo pipefail
shopt -s inherit_errexit
target=${1:?usage: scripts/build-plimsoll.sh TARGET FOLDER}
folder=${2:?usage: scripts/build-plimsoll.sh TARGET FOLDER}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.."
machine=${target%%-*}
if [[ $target = *-linux-* ]] && [ "$(uname -m)" != "$machine" ]; then
    of_target=$(tr a-z- A-Z_ <<<"$target")
    export "CARGO_TARGET_${of_target}_LINKER=$machine-linux-gnu-gcc"
fi
[ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || rustup target add "$target"
. scripts/reproducible.sh
# Of the C library, ring's C code uses memcpy and the like only: see build-exporter.sh.
if [[ $target = *-linux-musl ]] && ! command -v "$machine-linux-musl-gcc" >/dev/null; then
    compiler=${CC:-cc}
    [ "$machine" = "$(uname -m)" ] || compiler=$machine-linux-gnu-gcc
    export "CC_${target//-/_}=$compiler" "CFLAGS_${target//-/_}=${CFLAGS:-} -U_FORTIFY_SOURCE"
fi
"${CARGO:-cargo}" build --locked --release --target "$target" --package plimsoll-cli
case $target in
*windows*) cp "${CARGO_TARGET_DIR:-target}/$target/release/plimsoll.exe" "$folder/" ;;
*) cp "${CARGO_TARGET_DIR:-target}/$target/release/plimsoll" "$folder/" ;;
esac
