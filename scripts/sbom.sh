#!/usr/bin/env bash
# Prints what a program is made of, as SPDX 2.3 in JSON: the program, the crates that are compiled into it, and for an
# image the packages of Debian in it, of both architectures.
#
#   scripts/sbom.sh PROGRAM PACKAGE TARGET…
#
# PROGRAM is one of the images, or plimsoll. What it says follows from the commit alone.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
usage="usage: scripts/sbom.sh PROGRAM PACKAGE TARGET…"
program=${1:?$usage}
: "${2:?$usage}"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
commit=${PLIMSOLL_GIT-$(scripts/commit.sh)}
created=$(date --utc --date "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}" +%Y-%m-%dT%H:%M:%SZ)

# The checksums of crates, which Cargo.lock has.
checksums() {
    awk -F'"' '/^name = /{ name = $2 } /^version = /{ version = $2 } /^checksum = /{ print name "@" version " " $2 }' Cargo.lock |
        jq --raw-input --null-input '[inputs | split(" ") | {key: .[0], value: .[1]}] | from_entries'
}

# The packages of the lock as lines of JSON: name, version, architecture, checksum, path.
debian() {
    [ "$program" != plimsoll ] || return 0
    sed -n 's|^\(a[a-z0-9]*\) \(.*/\([^/_]*\)_\([^_]*\)_\([^_]*\)[.]deb\) \(.*\)|\3 \4 \5 \6 \2|p' deploy/runtime.lock | sed 's/%2b/+/g' |
        sort --unique | jq --raw-input --compact-output \
        'split(" ") | {name: .[0], version: .[1], arch: .[2], checksum: .[3], path: .[4]}'
}

jq --null-input --arg program "$program" --arg version "$version" --arg commit "$commit" --arg created "$created" \
    --slurpfile crates <(scripts/crates-in.sh "${@:2}") --slurpfile checksums <(checksums) --slurpfile debian <(debian) '
def id: gsub("[^A-Za-z0-9.]"; "-");
def package(id; name; version; license; from; purl; checksum):
    {SPDXID: ("SPDXRef-" + id), name: name, versionInfo: version, downloadLocation: from, filesAnalyzed: false,
     licenseConcluded: "NOASSERTION", licenseDeclared: license, copyrightText: "NOASSERTION",
     externalRefs: [{referenceCategory: "PACKAGE-MANAGER", referenceType: "purl", referenceLocator: purl}],
     checksums: (if checksum then [{algorithm: "SHA256", checksumValue: checksum}] else [] end)};
def declared: (. // "NOASSERTION") | gsub("/"; " OR ");
($crates | map(package("crate-\(.name)-\(.version)" | id; .name; .version; .license | declared;
    "https://crates.io/api/v1/crates/\(.name)/\(.version)/download"; "pkg:cargo/\(.name)@\(.version)";
    $checksums[0]["\(.name)@\(.version)"]))) as $of_cargo |
($debian | map(package("debian-\(.name)-\(.version)-\(.arch)" | id; .name; .version; "NOASSERTION"; "NOASSERTION";
    "pkg:deb/debian/\(.name)@\(.version | @uri)?arch=\(.arch)"; .checksum))) as $of_debian |
package($program | id; $program; $version; "Apache-2.0"; "NOASSERTION"; "pkg:generic/\($program)@\($version)"; null) as $itself |
{spdxVersion: "SPDX-2.3", dataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", name: "\($program)-\($version)",
 documentNamespace: "https://plimsoll.invalid/spdx/\($program)-\($version)-\($commit)",
 creationInfo: {created: $created, creators: ["Tool: plimsoll/scripts/sbom.sh"]},
 packages: ([$itself] + $of_cargo + $of_debian),
 relationships: ([{spdxElementId: "SPDXRef-DOCUMENT", relationshipType: "DESCRIBES", relatedSpdxElement: $itself.SPDXID}]
    + [$of_cargo + $of_debian | .[] | {spdxElementId: $itself.SPDXID, relationshipType: "CONTAINS", relatedSpdxElement: .SPDXID}])}'
