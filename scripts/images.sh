#!/usr/bin/env bash
# The images of the four programs, for each architecture of ARCHES (amd64, arm64), in target/images.
#
#   scripts/images.sh build   compiles the programs, packs them, and tries them
#   scripts/images.sh pack    packs what is compiled: an OCI archive for each program, and the table of their digests
#   scripts/images.sh check   packs a second time what build or pack gave, and fails where a digest is another one
#   scripts/images.sh try     runs each program on the image's own libraries, and shows how long a start takes
#                             (another architecture's under qemu-user)
#   scripts/images.sh push    pushes the archives to REGISTRY/PROGRAM:TAG, and compares the digests with the table
#
# Settings: ARCHES (this machine's), REGISTRY (none; with it, build also pushes), TAG (the version), SOURCE (the address
# of the sources, for the label), PLIMSOLL_GIT and SOURCE_DATE_EPOCH (the commit and its time), PUSH_FLAGS (of skopeo
# copy). Needs buildah, curl, dpkg-deb, jq and readelf; to push, skopeo; for another architecture its cross compiler and
# qemu-user. What is missing or wrong is said before anything is compiled.
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
read -ra asked <<<"${ARCHES:-$here}"
# In one order however ARCHES has them: an index of images lists them in it.
arches=()
for arch in amd64 arm64; do
    case " ${asked[*]} " in *" $arch "*) arches+=("$arch") ;; esac
done
out=target/images
table=$out/digests

# What is there while a part of this runs: a store of buildah, and the exporter that is tried.
store='' tried=''
at_end() {
    [ -z "$tried" ] || kill "$tried" 2>/dev/null || true
    [ -z "$store" ] || remove_store
}
trap at_end EXIT

remove_store() {
    # Files of other users are in it where it is not root who builds.
    "${buildah[@]}" rmi --all --force >/dev/null 2>&1 || true
    if [ "$(id -u)" = 0 ]; then rm -rf "$store"; else buildah unshare rm -rf "$store"; fi
    store=''
}

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

# Fails where ARCHES or TAG is nothing that an image can have.
settings() {
    local arch
    for arch in "${asked[@]}"; do
        case $arch in
        amd64 | arm64) ;;
        *) fail "ARCHES names $arch, and the images are for amd64 and arm64: ARCHES=\"amd64 arm64\" is both." ;;
        esac
    done
    [ ${#arches[@]} -gt 0 ] || fail "No image is for $(uname -m): set ARCHES to amd64, arm64 or both."
    [[ $TAG =~ ^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$ ]] || fail "TAG is $TAG, which cannot be the tag of an image."
}

# Fails where a program is missing, with all that are. Of each its packages of Debian and Ubuntu are named.
have() { # program:packages…
    local needed missing=()
    for needed in "$@"; do
        command -v "${needed%:*}" >/dev/null ||
            missing+=("${needed%:*} is missing. On Debian and Ubuntu: apt-get install ${needed#*:}")
    done
    [ ${#missing[@]} = 0 ] || fail "${missing[@]}"
}

compilers=()
packers=(buildah:buildah dpkg-deb:dpkg)
triers=()
always=(curl:curl jq:jq readelf:binutils)
for arch in "${arches[@]}"; do
    case $here-$arch in
    "$arch-$arch") compilers+=(cc:gcc) ;;
    *-amd64) compilers+=("x86_64-linux-gnu-gcc:gcc-x86-64-linux-gnu libc6-dev-amd64-cross") triers+=(qemu-x86_64:qemu-user) ;;
    *-arm64) compilers+=("aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu libc6-dev-arm64-cross") triers+=(qemu-aarch64:qemu-user) ;;
    esac
done

compile() {
    local arch
    for arch in "${arches[@]}"; do
        echo "== the programs for $arch: cargo compiles them"
        rm -f "$out/$arch/commit"
        scripts/build-programs.sh "$arch" "$out/$arch/bin"
        echo "$PLIMSOLL_GIT" >"$out/$arch/commit"
    done
}

# Fails where programs are not there, or are of another commit than their images would say.
compiled() {
    local arch is
    for arch in "${arches[@]}"; do
        [ -f "$out/$arch/commit" ] || fail "The programs for $arch are not in $out: make images ARCHES=\"${arches[*]}\""
        is=$(<"$out/$arch/commit")
        [ "$is" = "$PLIMSOLL_GIT" ] ||
            fail "The programs for $arch in $out are of $is, and the working tree is $PLIMSOLL_GIT: make images ARCHES=\"${arches[*]}\""
    done
}

# Takes the architectures of the images that are there, and fails where ARCHES names others.
packed() {
    local there
    [ -s "$table" ] || fail "No images are in $out: make images"
    there=$(awk '$2 != "all" { print $2 }' "$table" | sort --unique | paste -sd ' ')
    if [ -n "${ARCHES:-}" ] && [ "$(printf '%s\n' "${arches[@]}" | sort --unique | paste -sd ' ')" != "$there" ]; then
        fail "The images in $out are for $there, and ARCHES is $ARCHES: make images ARCHES=\"$ARCHES\""
    fi
    read -ra arches <<<"$there"
}

# What the Dockerfile copies, beside the programs.
contexts() {
    local arch
    for arch in "${arches[@]}"; do
        echo "== the packages of Debian and the terms for $arch"
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
    [ "$(printf '%s\n' "$newest" "$has" | sort --version-sort | tail -n 1)" = "$has" ] ||
        fail "A program for $1 needs $newest, and the image has $has: compile on an older system, as Debian 12."
}

describe() { # program
    sed -n 's/^description = "\(.*\)"/\1/p' "$1/Cargo.toml" | tr -d '`'
}

# Packs every program into OCI archives in a folder, with a line for each in the file `digests`.
pack() { # folder
    local folder=$1 program arch labels list
    store=$(mktemp -d "$PWD/$out/store.XXXXXX")
    # Layers are packed there too: /var/tmp may be small.
    mkdir "$store/tmp"
    export TMPDIR=$store/tmp
    buildah=(buildah --storage-driver vfs --root "$store/root" --runroot "$store/run")
    mkdir -p "$folder"
    rm -f "$folder/digests"
    for program in "${programs[@]}"; do
        echo "== the image of $program"
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
    unset TMPDIR
    remove_store
    for program in "${programs[@]}"; do lines "$folder/$program.tar" "$program"; done >"$folder/.digests"
    mv "$folder/.digests" "$folder/digests"
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
    local program arch bytes digest
    { echo image arch bytes digest; cat "$table"; } | while read -r program arch bytes digest; do
        printf '%-22s  %-5s  %9s  %s\n' "$program" "$arch" "$bytes" "$digest"
    done
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

# Starts the exporter, and shows the ms until its /livez answered. Its /version must tell the commit.
live() { # architecture
    local began port=$((20000 + $$ % 10000)) answer
    now && began=$now
    (in_image "$1" node-exporter-plus --admin-address "127.0.0.1:$port" --web.listen-address "127.0.0.1:$((port + 1))" \
        >"$out/$1/live.log" 2>&1) &
    tried=$!
    until curl --fail --silent --output /dev/null "http://127.0.0.1:$port/livez"; do
        now
        if ! kill -0 "$tried" 2>/dev/null || [ $((now - began)) -gt 60000000 ]; then
            cat "$out/$1/live.log" >&2
            fail "node-exporter-plus for $1 has ended, or does not answer /livez within a minute; above is what it logged."
        fi
    done
    now && echo "node-exporter-plus $1 /livez: $(((now - began) / 1000)) ms"
    answer=$(curl --fail --silent "http://127.0.0.1:$port/version")
    kill "$tried"
    wait "$tried" || true
    tried=
    [ "$(jq --raw-output .git <<<"$answer")" = "$PLIMSOLL_GIT" ] || fail "/version for $1 says: $answer"
}

try() {
    local arch program took
    for arch in "${arches[@]}"; do
        echo "== each program starts: $arch"
        [ "$arch" = "$here" ] || echo "$arch runs under qemu-user: its times are those of the emulator"
        for program in "${programs[@]}"; do
            took=$(start_time "$arch" "$program")
            echo "$program $arch --version: $took ms"
        done
        live "$arch"
    done
}

check() {
    contexts
    pack "$out/again"
    diff "$table" "$out/again/digests" >&2 ||
        fail "Packed a second time, the images are other ones; they are in $out/again, and the first in $out."
    rm -r "$out/again"
    show
    echo "packed a second time, from packages and terms that were extracted again: the same digests"
}

push() {
    local program digest flags
    read -ra flags <<<"${PUSH_FLAGS:-}"
    for program in "${programs[@]}"; do
        skopeo copy --all --preserve-digests --quiet "${flags[@]}" \
            "oci-archive:$out/$program.tar" "docker://$REGISTRY/$program:$TAG"
        digest=$(sed -n "s/^$program all - //p" "$table")
        echo "$REGISTRY/$program:$TAG@$digest"
    done
}

settings
case ${1:-} in
build)
    have "${compilers[@]}" "${packers[@]}" "${triers[@]}" "${always[@]}"
    if [ -n "$REGISTRY" ]; then
        have skopeo:skopeo
        scripts/require-registry.sh
    fi
    compile
    contexts
    pack "$out"
    show
    try
    [ -z "$REGISTRY" ] || push
    ;;
pack)
    have "${packers[@]}" "${always[@]}"
    compiled
    contexts
    pack "$out"
    show
    ;;
check)
    have "${packers[@]}" "${always[@]}"
    packed
    compiled
    check
    ;;
try)
    have "${triers[@]}" "${always[@]}"
    compiled
    try
    ;;
push)
    have skopeo:skopeo
    scripts/require-registry.sh
    packed
    push
    ;;
*) sed -n '4,9s/^# \{1,3\}//p' "$0" >&2; exit 1 ;;
esac
