#!/usr/bin/env bash
# A release as far as it goes on one machine: the images of target/images and the chart go into a registry of Debian's
# docker-registry on this machine, are pulled from there by digest, and compared. With cosign on the PATH they are
# signed with a key of this run, and verified. What scripts/build-plimsoll.sh has put into target/plimsoll/OS_ARCH is packed,
# and run where it is for Linux. What was not tried is listed at the end; some of it needs a hosted workflow.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
missing=
for needed in docker-registry skopeo jq curl; do
    command -v "$needed" >/dev/null || missing+=" $needed"
done
[ -z "$missing" ] || { echo "Missing:$missing. On Debian: apt-get install$missing" >&2; exit 1; }
[ -s target/images/digests ] || { echo "No images are in target/images: make images" >&2; exit 1; }
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
not_tried=("keyless signatures and provenance: the workflow alone can make them")
rm -rf target/dist
work=$(mktemp -d)
registry=
at_end() {
    [ -z "$registry" ] || kill "$registry"
    rm -rf "$work"
}
trap at_end EXIT
# What a command says is of interest where it fails.
quietly() { "$@" >"$work/said" 2>&1 || { cat "$work/said" >&2; return 1; }; }

port=$((20000 + $$ % 10000))
cat >"$work/config.yml" <<CONFIG
version: 0.1
storage: {filesystem: {rootdirectory: $work/registry}}
http: {addr: "127.0.0.1:$port"}
CONFIG
docker-registry serve "$work/config.yml" >"$work/log" 2>&1 &
registry=$!
until curl --fail --silent --output /dev/null "http://127.0.0.1:$port/v2/"; do
    kill -0 "$registry" || { cat "$work/log" >&2; exit 1; }
done
export REGISTRY=127.0.0.1:$port/plimsoll SOURCE=${SOURCE:-https://example.com/plimsoll}

echo "== images and chart into a registry on this machine"
PUSH_FLAGS=--dest-tls-verify=false scripts/images.sh push
for part in sboms chart images; do scripts/release.sh "$part"; done
HELM_FLAGS=--plain-http scripts/release.sh push-chart

# By digest, as a node pulls: what comes back is what the digest says, down to the last layer.
while read -r image; do
    name=${image%:*@*} digest=${image##*@}
    skopeo copy --quiet --all --preserve-digests --src-tls-verify=false "docker://$name@$digest" "dir:$work/pulled"
    [ "sha256:$(sha256sum <"$work/pulled/manifest.json" | cut -c 1-64)" = "$digest" ]
    rm -r "$work/pulled"
    echo "pulled by digest: $name@$digest"
done <target/dist/images.txt
helm=$(scripts/go-program.sh helm4)
"$helm" template plimsoll "oci://$REGISTRY/charts/plimsoll@$(cat target/chart-digest)" --plain-http --kube-version 1.36.0 >"$work/rendered"
[ "$(grep -c "image: $REGISTRY/" "$work/rendered")" -ge 4 ]
echo "the chart, pulled by digest, names the images of its release"

echo "== plimsoll's archives"
there=
for system in {linux,darwin,windows}_{amd64,arm64}; do
    if [ -d "target/plimsoll/$system" ]; then
        there=1
    else
        not_tried+=("plimsoll for $system: nothing is in target/plimsoll/$system")
    fi
done
# Those that are missing are listed at the end.
[ -z "$there" ] || quietly scripts/release.sh archives target/plimsoll
for archive in target/dist/plimsoll_"${version}"_*.tar.gz; do
    [ -f "$archive" ] || continue
    rm -rf "$work/archive" && mkdir "$work/archive"
    tar --extract --gzip --file "$archive" --directory "$work/archive"
    run=()
    case $archive-$(uname -m) in
    *linux_amd64*-x86_64 | *linux_arm64*-aarch64) ;;
    *linux_amd64*) run=(qemu-x86_64) ;;
    *linux_arm64*) run=(qemu-aarch64) ;;
    *) not_tried+=("that ${archive##*/} runs: it is for another system"); continue ;;
    esac
    [ "$("${run[@]}" "$work/archive/plimsoll" --version)" = "plimsoll $version" ]
    echo "packed, and runs: ${archive##*/}"
done
if ! scripts/release.sh krew 2>"$work/said"; then
    not_tried+=("krew's manifest: $(<"$work/said")")
fi

if command -v cosign >/dev/null; then
    echo "== signatures, with a key of this run"
    (cd "$work" && COSIGN_PASSWORD="" cosign generate-key-pair 2>/dev/null)
    export COSIGN_PASSWORD="" COSIGN_FLAGS="--key $work/cosign.key --tlog-upload=false"
    by_the_key=(--key "$work/cosign.pub" --insecure-ignore-tlog)
    scripts/release.sh sums
    quietly scripts/release.sh sign
    while read -r image; do
        image=${image%:*@*}@${image##*@}
        quietly cosign verify "${by_the_key[@]}" "$image"
        quietly cosign verify-attestation "${by_the_key[@]}" --type spdxjson "$image"
        echo "signature and SBOM verified: $image"
    done <target/dist/images.txt
    bundle=(--bundle target/dist/SHA256SUMS.sigstore.json)
    quietly cosign verify-blob "${by_the_key[@]}" "${bundle[@]}" target/dist/SHA256SUMS
    # A changed file does not pass.
    { cat target/dist/SHA256SUMS; echo changed; } >"$work/changed"
    if cosign verify-blob "${by_the_key[@]}" "${bundle[@]}" "$work/changed" 2>/dev/null; then
        echo "a changed file was verified" >&2
        exit 1
    fi
    echo "the signature of SHA256SUMS verified, and refused for a changed file"
else
    not_tried+=("signatures: cosign is not on the PATH")
    scripts/release.sh sums
fi
(cd target/dist && sha256sum --check --quiet SHA256SUMS)
echo "the checksums of $(wc -l <target/dist/SHA256SUMS) files of $version are right"

printf 'NOT TRIED: %s\n' "${not_tried[@]}"
