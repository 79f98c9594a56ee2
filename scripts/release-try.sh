#!/usr/bin/env bash
# A release as far as it goes on one machine: the images of target/images and the chart go into a registry of Debian's
# docker-registry on this machine, are pulled from there by digest, and compared. With cosign on the PATH they are
# signed with a key of this run, and verified. What needs a hosted workflow is not tried: keyless signatures, provenance,
# and plimsoll for macOS and Windows.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
for needed in docker-registry skopeo jq curl; do
    command -v "$needed" >/dev/null || { echo "$needed is missing: install Debian's package of that name" >&2; exit 1; }
done
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
rm -rf target/dist
work=$(mktemp -d)
registry=
at_end() {
    [ -z "$registry" ] || kill "$registry"
    rm -rf "$work"
}
trap at_end EXIT

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

if command -v cosign >/dev/null; then
    (cd "$work" && COSIGN_PASSWORD="" cosign generate-key-pair 2>/dev/null)
    export COSIGN_PASSWORD="" COSIGN_FLAGS="--key $work/cosign.key --tlog-upload=false"
    by_the_key=(--key "$work/cosign.pub" --insecure-ignore-tlog)
    # What cosign says is of interest where it fails.
    quietly() { "$@" >"$work/said" 2>&1 || { cat "$work/said" >&2; return 1; }; }
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
    echo "no cosign: signatures are not tried"
    scripts/release.sh sums
fi
(cd target/dist && sha256sum --check --quiet SHA256SUMS)
echo "the checksums of $(wc -l <target/dist/SHA256SUMS) files of $version are right"
