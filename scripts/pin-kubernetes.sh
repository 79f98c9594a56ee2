#!/usr/bin/env bash
# Pins a Kubernetes release for the end-to-end cluster: writes testing/e2e/go/releases/RELEASE/ with one Go module for
# Kubernetes and one for the etcd that the release's kubeadm names. Needs Go and a module proxy. The folder is all that
# `make e2e KUBERNETES=RELEASE` needs; to drop a release, delete its folder.
# With `--earlier`, it pins the control plane alone, in testing/e2e/go/earlier/RELEASE/: a test upgrades from that by kubeadm.
set -euo pipefail
programs="kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubeadm kubectl kubelet" earlier=""
if [ "${1:-}" = --earlier ]; then
    programs="kube-apiserver kube-controller-manager kube-scheduler kubeadm" earlier=1
    shift
fi
[[ ${1:-} =~ ^v1\.([0-9]+)\.([0-9]+)$ ]] || { echo "usage: $0 [--earlier] v1.MINOR.PATCH" >&2; exit 2; }
release=$1 staging=v0.${BASH_REMATCH[1]}.${BASH_REMATCH[2]}
go=$(cd "$(dirname "$0")/../testing/e2e/go" && pwd)
kubernetes=$go/releases/$release/kubernetes
[ -z "$earlier" ] || kubernetes=$go/earlier/$release
mkdir -p "$kubernetes"
cd "$kubernetes"
source=$(cd / && go mod download -json "k8s.io/kubernetes@$release" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
etcd=v$(sed -n 's/^\tDefaultEtcdVersion = "\([0-9.]*\)-[0-9]*"$/\1/p' "$source/cmd/kubeadm/app/constants/constants.go")

# Released programs are linked with the runtime defaults of the Go version that the release was made for.
{
    printf 'module plimsoll.dev/e2e/kubernetes\n\ngo 1.26\n\n'
    grep '^godebug ' "$source/go.mod"
    printf '\ntool (\n'
    for program in $programs; do
        printf '\tk8s.io/kubernetes/cmd/%s\n' "$program"
    done
    printf ')\n\nrequire k8s.io/kubernetes %s\n\n' "$release"
    # Its own go.mod takes these modules from ./staging, which a module proxy serves as modules of their own.
    sed -n "s|^\t\(k8s.io/[a-z0-9-]*\) => \./staging/.*|replace \1 => \1 $staging|p" "$source/go.mod"
} >go.mod
GOTOOLCHAIN=local go mod tidy
if [ -n "$earlier" ]; then
    echo "the control plane of $release is pinned in testing/e2e/go/earlier/$release"
    exit
fi
mkdir -p ../etcd
cd ../etcd
printf 'module plimsoll.dev/e2e/etcd\n\ngo 1.26\n\ntool go.etcd.io/etcd/server/v3\n\nrequire go.etcd.io/etcd/server/v3 %s\n' \
    "$etcd" >go.mod
GOTOOLCHAIN=local go mod tidy
echo "$release with etcd $etcd is pinned in testing/e2e/go/releases/$release"
