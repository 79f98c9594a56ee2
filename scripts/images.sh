#!/usr/bin/env bash
# The images of the four programs, for each architecture of ARCHES (amd64, arm64), in target/images.
#
#   scripts/images.sh build   compiles the programs, packs them, and tries them
#   scripts/images.sh pack    packs what is compiled: an OCI archive for each program, and the table of their digests
#   scripts/images.sh check   packs a second time, and fails where a digest is another one
#   scripts/images.sh try     runs each program on the image's own libraries, and shows how long a start takes;
#                             another architecture's under qemu-user
#   scripts/images.sh push    pushes the archives to REGISTRY/PROGRAM:TAG, and compares the digests with the table
#
# Settings: ARCHES (this machine's), REGISTRY (none; with it, build also pushes), TAG (the version), SOURCE (the address
# of the sources, for the label), PLIMSOLL_GIT and SOURCE_DATE_EPOCH (the commit and its time), PUSH_FLAGS (of skopeo
# copy). Needs buildah, curl, dpkg and jq; to push, skopeo; for another architecture its cross compiler and qemu-user.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
programs=(scheduler-extender annotator node-exporter-plus gpushare-device-plugin)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
: "${TAG:=$version}" "${SOURCE:=}" "${REGISTRY:=}"
export PLIMSOLL_GIT=${PLIMSOLL_GIT-$(scripts/commit.sh)}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
case $(uname -m) in
x86_64) here=amd64 ;;
aarch64) here=arm64 ;;
*) here= ;;
esac
read -ra arches <<<"${ARCHES:-$here}"
out=target/images
table=$out/digests

compile() {
    local arch
    for arch in "${arches[@]}"; do scripts/build-programs.sh "$arch" "$out/$arch/bin"; done
}

# What the Dockerfile copies, beside the programs.
contexts() {
    local arch
    for arch in "${arches[@]}"; do
        scripts/runtime.sh "$arch" "$out/$arch/runtime"
        mkdir -p "$out/$arch/doc"
        cp LICENSE "$out/$arch/doc/"
        scripts/notices.sh "${programs[*]}" {x86_64,aarch64}-unknown-linux-gnu >"$out/$arch/doc/THIRD-PARTY-NOTICES"
        chmod -R u=rwX,go=rX "$out/$arch/doc" "$out/$arch/bin"
        old_enough "$arch"
    done
}

# Fails where a program was linked with a C library that is newer than the image's.
old_enough() { # architecture
    local newest has
    newest=$(for program in "$out/$1/bin"/*; do readelf --version-info --wide "$program"; done |
        grep --only-matching 'GLIBC_[0-9.]*' | sort --version-sort --unique | tail -n 1)
    has=$(sed -n "s|^$1 .*/libc6_\([0-9.]*\)-.*|GLIBC_\1|p" deploy/runtime.lock)
    [ "$(printf '%s\n' "$newest" "$has" | sort --version-sort | tail -n 1)" = "$has" ] || {
        echo "a program for $1 needs $newest, and the image has $has: compile on an older system, as Debian 12" >&2
        exit 1
    }
}

describe() { # program
    sed -n 's/^description = "\(.*\)"/\1/p' "$1/Cargo.toml" | tr -d '`'
}

# Packs every program into OCI archives in a folder, with a line for each in the file `digests`.
pack() { # folder
    local folder=$1 store program arch labels list
    store=$(mktemp -d "$out/store.XXXXXX")
    store=$(realpath "$store")
    buildah=(buildah --storage-driver vfs --root "$store/root" --runroot "$store/run")
    mkdir -p "$folder"
    for program in "${programs[@]}"; do
        list=localhost/$program:$TAG
        labels=(--label "org.opencontainers.image.title=$program" --label "org.opencontainers.image.version=$version"
            --label "org.opencontainers.image.revision=$PLIMSOLL_GIT" --label org.opencontainers.image.licenses=Apache-2.0
            --label "org.opencontainers.image.description=$(describe "$program")")
        [ -z "$SOURCE" ] || labels+=(--label "org.opencontainers.image.source=$SOURCE")
        "${buildah[@]}" manifest create "$list" >/dev/null
        for arch in "${arches[@]}"; do
            "${buildah[@]}" bud --quiet --isolation chroot --format oci --platform "linux/$arch" --identity-label=false \
                --timestamp "$SOURCE_DATE_EPOCH" --file deploy/Dockerfile --target "$program" "${labels[@]}" \
                --label "dev.plimsoll.runtime=$(runtime "$arch")" --tag "$list-$arch" "$out/$arch" >/dev/null
            "${buildah[@]}" manifest add --os linux --arch "$arch" "$list" "$list-$arch" >/dev/null
        done
        rm -f "$folder/$program.tar"
        "${buildah[@]}" manifest push --quiet --all --format oci "$list" "oci-archive:$folder/$program.tar:$TAG"
    done
    # Files of other users are in it where it is not root who builds.
    "${buildah[@]}" rmi --all --force >/dev/null 2>&1 || true
    if [ "$(id -u)" = 0 ]; then rm -rf "$store"; else buildah unshare rm -rf "$store"; fi
    for program in "${programs[@]}"; do lines "$folder/$program.tar" "$program"; done >"$folder/digests"
}

# The packages of the lock, with versions.
runtime() { # architecture
    sed -n "s|^$1 .*/\([^/_]*\)_\([^_]*\)_[^_]*[.]deb .*|\1 \2|p" deploy/runtime.lock | sed 's/%2b/+/g' | paste -sd, | sed 's/,/, /g'
}

# Lines of program, architecture (`all` for what names all of them), size in bytes and digest.
lines() { # archive, program
    local index list
    index=$(tar --extract --to-stdout --file "$1" index.json)
    list=$(jq --raw-output '.manifests[0].digest' <<<"$index")
    blob() { tar --extract --to-stdout --file "$archive" "blobs/sha256/${1#sha256:}"; }
    local archive=$1
    echo "$2 all - $list"
    blob "$list" | jq --raw-output '.manifests[] | "\(.platform.architecture) \(.digest)"' | while read -r arch digest; do
        echo "$2 $arch $(blob "$digest" | jq '[.layers[].size, .config.size] | add') $digest"
    done
}

show() {
    { echo "image arch bytes digest"; cat "$table"; } | column -t
}

# Runs a program with the loader and the libraries of its image, under qemu-user where it is another architecture's.
in_image() { # architecture, program, arguments…
    local root=$out/$1/runtime program=$out/$1/bin/$2 loader
    case $1 in
    amd64) machine=x86_64 loader=$root/lib64/ld-linux-x86-64.so.2 ;;
    arm64) machine=aarch64 loader=$root/lib/ld-linux-aarch64.so.1 ;;
    esac
    if [ "$1" != "$here" ]; then
        exec "qemu-$machine" -L "$root" "$program" "${@:3}"
    elif readelf --program-headers "$program" | grep -q INTERP; then
        exec "$loader" --library-path "$root/usr/lib/$machine-linux-gnu" "$program" "${@:3}"
    else
        exec "$program" "${@:3}"
    fi
}

# Microseconds since the epoch: the variable's, without the point of seconds.
now() { now=${EPOCHREALTIME/[.,]/}; }

# The median of 21 runs of `--version`, in ms. A run that says another version is a failure.
start_time() { # architecture, program
    local said began
    for _ in {1..21}; do
        now && began=$now
        said=$(in_image "$1" "$2" --version)
        now && echo $(((now - began) / 1000))
        [ "$said" = "$2 $version" ] || { echo "$2 for $1 says: $said" >&2; return 1; }
    done | sort --numeric-sort | sed -n 11p
}

# Starts the exporter, and waits for its /livez; prints the ms until it answered. Its /version must tell the commit.
live() { # architecture
    local began port=$((20000 + $$ % 10000)) pid answer
    now && began=$now
    (in_image "$1" node-exporter-plus --admin-address "127.0.0.1:$port" --web.listen-address "127.0.0.1:$((port + 1))" \
        >"$out/$1/live.log" 2>&1) &
    pid=$!
    until curl --fail --silent --output /dev/null "http://127.0.0.1:$port/livez"; do
        now
        if ! kill -0 "$pid" 2>/dev/null || [ $((now - began)) -gt 60000000 ]; then
            cat "$out/$1/live.log" >&2
            return 1
        fi
    done
    now && echo $(((now - began) / 1000))
    answer=$(curl --fail --silent "http://127.0.0.1:$port/version")
    kill "$pid"
    wait "$pid" || true
    [ "$(jq --raw-output .git <<<"$answer")" = "$PLIMSOLL_GIT" ] || { echo "/version for $1 says: $answer" >&2; return 1; }
}

try() {
    local arch program took
    for arch in "${arches[@]}"; do
        [ "$arch" = "$here" ] || echo "$arch runs under qemu-user: its times are those of the emulator"
        for program in "${programs[@]}"; do
            took=$(start_time "$arch" "$program")
            echo "$program $arch --version: $took ms"
        done
        took=$(live "$arch")
        echo "node-exporter-plus $arch /livez: $took ms"
    done
}

check() {
    contexts
    pack "$out/again"
    diff "$table" "$out/again/digests" || { echo "a second build gives other images" >&2; exit 1; }
    rm -r "$out/again"
    echo "a second build gives the same digests"
}

push() {
    local program digest flags
    read -ra flags <<<"${PUSH_FLAGS:-}"
    : "${REGISTRY:?set REGISTRY to a host and maybe a path: registry.example.com/plimsoll}"
    for program in "${programs[@]}"; do
        skopeo copy --all --preserve-digests --quiet "${flags[@]}" \
            "oci-archive:$out/$program.tar:$TAG" "docker://$REGISTRY/$program:$TAG"
        digest=$(sed -n "s/^$program all - //p" "$table")
        echo "$REGISTRY/$program:$TAG@$digest"
    done
}

case ${1:-} in
build)
    compile
    contexts
    pack "$out"
    show
    try
    [ -z "$REGISTRY" ] || push
    ;;
pack)
    contexts
    pack "$out"
    show
    ;;
check) check ;;
try) try ;;
push) push ;;
*) sed -n '4,10s/^# *//p' "$0" >&2; exit 1 ;;
esac
