#!/usr/bin/env bash
# The files of a release beside the images, in target/dist.
#
#   scripts/release.sh archives FOLDER   packs FOLDER/OS_ARCH/plimsoll (plimsoll.exe) with the terms of what is in it
#   scripts/release.sh krew              writes the manifest of the plugin of kubectl; needs all archives, and SOURCE
#   scripts/release.sh sboms             writes what each image and plimsoll are made of (SPDX)
#   scripts/release.sh chart             packs the chart, which names REGISTRY as where the images are
#   scripts/release.sh images            writes the names of the images with their digests; needs REGISTRY
#   scripts/release.sh sums              writes SHA256SUMS, of all files that are there
#   scripts/release.sh notes             prints the section of this version of CHANGELOG.md
#   scripts/release.sh push-chart        pushes the chart to REGISTRY/charts
#   scripts/release.sh sign              signs images, chart and SHA256SUMS with cosign, and attaches to each image what it
#                                        is made of; without a key it is as whom the machine is logged in. COSIGN_FLAGS
#
# The same commit gives the same files. DIST is another folder than target/dist.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
programs=(scheduler-extender annotator node-exporter-plus gpushare-device-plugin)
systems=(linux_amd64 linux_arm64 darwin_amd64 darwin_arm64 windows_amd64 windows_arm64)
targets=({x86_64,aarch64}-{unknown-linux-musl,apple-darwin,pc-windows-msvc})
dist=${DIST:-target/dist}
: "${SOURCE:=}" "${REGISTRY:=}"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export PLIMSOLL_GIT=${PLIMSOLL_GIT-$(scripts/commit.sh)}
mkdir -p "$dist"

# A tar whose bytes follow from its files alone.
packed() { # archive, folder, names in the folder…
    tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
        --directory "$2" "${@:3}" | gzip --no-name >"$1"
}

archives() { # folder
    local system program there=()
    for system in "${systems[@]}"; do
        if [ -d "$1/$system" ]; then
            there+=("$system")
        else
            echo "No archive for $system: $1/$system is not there (scripts/build-plimsoll.sh)" >&2
        fi
    done
    [ ${#there[@]} -gt 0 ] || exit 1
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    scripts/notices.sh plimsoll-cli "${targets[@]}" >"$work/notices"
    for system in "${there[@]}"; do
        mkdir "$work/$system"
        program=plimsoll
        case $system in windows_*) program=plimsoll.exe ;; esac
        cp "$1/$system/$program" LICENSE "$work/$system/"
        cp "$work/notices" "$work/$system/THIRD-PARTY-NOTICES"
        chmod +x "$work/$system/$program"
        packed "$dist/plimsoll_${version}_$system.tar.gz" "$work/$system" LICENSE THIRD-PARTY-NOTICES "$program"
    done
}

krew() {
    local system line archive checksum missing=()
    : "${SOURCE:?the address of the sources, as https://github.com/OWNER/NAME}"
    for system in "${systems[@]}"; do
        archive=plimsoll_${version}_$system.tar.gz
        [ -f "$dist/$archive" ] || missing+=("$archive")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        echo "No manifest for krew: it names archives that are not in $dist: ${missing[*]}" >&2
        exit 1
    fi
    while IFS= read -r line; do
        case $line in
        '#'*) continue ;;
        *uri:*) archive=$(sed "s/VERSION/$version/; s/.*RELEASE.//" <<<"$line") ;;
        *sha256:*)
            checksum=$(sha256sum "$dist/$archive")
            line=${line/SHA256/${checksum%% *}}
            ;;
        esac
        line=${line//RELEASE/$SOURCE/releases/download/v$version}
        line=${line//SOURCE/$SOURCE}
        echo "${line//VERSION/$version}"
    done <deploy/krew/plimsoll.yaml >"$dist/plimsoll.yaml"
}

sboms() {
    local program
    for program in "${programs[@]}"; do
        scripts/sbom.sh "$program" "$program" {x86_64,aarch64}-unknown-linux-gnu >"$dist/$program-$version.spdx.json"
    done
    scripts/sbom.sh plimsoll plimsoll-cli "${targets[@]}" >"$dist/plimsoll-$version.spdx.json"
}

chart() {
    local helm
    scripts/require-registry.sh
    helm=$(scripts/go-program.sh helm4)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cp -r deploy/chart "$work/plimsoll"
    sed -i "s|^  registry: \"\"$|  registry: $REGISTRY|; s|^  # There is no default, since no images are published[.]$|  # Where this release is.|" \
        "$work/plimsoll/values.yaml"
    grep --quiet "^  registry: $REGISTRY$" "$work/plimsoll/values.yaml"
    "$helm" package "$work/plimsoll" --destination "$work" >/dev/null
    # Again, with the commit's time.
    rm -r "$work/plimsoll" && mkdir "$work/again"
    tar --extract --gzip --file "$work/plimsoll-$version.tgz" --directory "$work/again"
    packed "$dist/plimsoll-$version.tgz" "$work/again" plimsoll
}

images() {
    scripts/require-registry.sh
    [ -s target/images/digests ] || { echo "No images are in target/images: make images" >&2; exit 1; }
    sed -n "s|^\(.*\) all - \(.*\)|$REGISTRY/\1:$version@\2|p" target/images/digests >"$dist/images.txt"
}

sums() {
    (cd "$dist" && rm -f SHA256SUMS && sha256sum -- * >../sums && mv ../sums SHA256SUMS)
}

notes() {
    local text
    text=$(awk -v heading="## [$version]" 'index($0, "## [") == 1 { inside = index($0, heading) == 1; next } inside' CHANGELOG.md)
    [ -n "$text" ] || { echo "CHANGELOG.md has no section [$version]" >&2; exit 1; }
    sed '/./,$!d' <<<"$text"
}

push_chart() {
    local helm
    scripts/require-registry.sh
    helm=$(scripts/go-program.sh helm4)
    # shellcheck disable=SC2086 # several words
    "$helm" push ${HELM_FLAGS:-} "$dist/plimsoll-$version.tgz" "oci://$REGISTRY/charts" 2>&1 | tee target/pushed-chart
    sed -n 's/^Digest: //p' target/pushed-chart >target/chart-digest
    [ -s target/chart-digest ]
}

sign() {
    local program image
    scripts/require-registry.sh
    read -ra flags <<<"${COSIGN_FLAGS:-}"
    for program in "${programs[@]}"; do
        image=$REGISTRY/$program@$(sed -n "s/^$program all - //p" target/images/digests)
        # Each architecture's image too.
        cosign sign --yes --recursive "${flags[@]}" "$image"
        cosign attest --yes "${flags[@]}" --type spdxjson --predicate "$dist/$program-$version.spdx.json" "$image"
    done
    cosign sign --yes "${flags[@]}" "$REGISTRY/charts/plimsoll@$(cat target/chart-digest)"
    cosign sign-blob --yes "${flags[@]}" --bundle "$dist/SHA256SUMS.sigstore.json" "$dist/SHA256SUMS" >/dev/null
}

case ${1:-} in
archives) archives "${2:?a folder}" ;;
krew | sboms | chart | images | sums | notes | sign) "$1" ;;
push-chart) push_chart ;;
*) sed -n '4,13s/^# *//p' "$0" >&2; exit 1 ;;
esac
