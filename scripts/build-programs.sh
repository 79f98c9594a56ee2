#!/usr/bin/env bash
# Builds the programs as the images hold them, for one architecture.
set -euo pipefail
shopt -s inherit_errexit
usage="usage: scripts/build-programs.sh amd64|arm64 FOLDER"
case ${1:?$usage} in
amd64) machine=x86_64 ;;
arm64) machine=aarch64 ;;
*) echo "$usage" >&2; exit 1 ;;
esac
folder=${2:?$usage}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
target=$machine-unknown-linux-gnu

if [ "$(uname -m)" != "$machine" ]; then
    linker=$machine-linux-gnu-gcc
    command -v "$linker" >/dev/null || {
        echo "$linker is missing: on Debian and Ubuntu it is of gcc-${machine/_/-}-linux-gnu" >&2
        exit 1
    }
    of_target=${target//-/_}
    export "CARGO_TARGET_${of_target^^}_LINKER=$linker"
fi
[ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || rustup target add "$target"

. scripts/reproducible.sh
"$cargo" build --locked --release --target "$target" --package scheduler-extender --package annotator \
    --package gpushare-device-plugin
for program in scheduler-extender annotator gpushare-device-plugin; do
    cp "${CARGO_TARGET_DIR:-target}/$target/release/$program" "$folder/.$program.new"
    mv -f "$folder/.$program.new" "$folder/$program"
done
scripts/build-exporter.sh "$folder" "$machine"
