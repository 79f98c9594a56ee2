#!/usr/bin/env bash
# Gangs of GPU pods through a real kube-scheduler with the shipped configuration: how many are bound by half, whether a GPU ever has more than
# its units, and how long Binds take. etcd, API server and scheduler run as bare processes; there are no kubelets.
#
# Usage: lab/gangs.sh FOLDER [FLAG...]
# FOLDER holds etcd, kube-apiserver, kube-scheduler and kubectl of Kubernetes 1.37, as ~/.cache/plimsoll/kubernetes/*/bin after `make cluster`.
# FLAGs are those of the example `gangs`: `--gangs 1000`, `--nodes 20`, `--seed 42`, `--shares 1,2,3,4`, `--runs 20`, `--kill-every 3`, `--racks 20`,
# `--pods 64`. EXTENDER: a scheduler-extender that is built already.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=$1
cargo build --locked --release --package plimsoll-lab --example gangs
extender=${EXTENDER:-target/release/scheduler-extender}
[ -n "${EXTENDER:-}" ] || cargo build --locked --release --package scheduler-extender
gates=(--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true)
api_flags=("${gates[@]}" --runtime-config=scheduling.k8s.io/v1beta1=true)
. bench/control-plane.sh
ours=$(port) admin=$(port) metrics=$(port)
shipped_scheduler "$ours"
start scheduler "$programs/kube-scheduler" --config="$work/scheduler.yaml" --secure-port="$metrics" "${gates[@]}"
target/release/examples/gangs --api "$url" --token bench --metrics "http://127.0.0.1:$admin/metrics" --work "$work" "${@:2}" -- "$extender" \
  --listen-address "127.0.0.1:$ours" --admin-address "127.0.0.1:$admin" --kubeconfig "$work/kubeconfig" \
  --policy-file deploy/chart/policies/shipped.yaml
