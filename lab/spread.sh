#!/usr/bin/env bash
# How the replicas of a service spread over nodes of unequal load, on a real kube-scheduler: stock, and with the extender under a policy and
# the configuration that `plimsoll scheduler-config` writes for it. etcd, API server and schedulers run as bare processes; nodes are
# objects without kubelets, with readings of exact values. A service has as many replicas as there are nodes: 3, 10 and 50.
#
# Usage: lab/spread.sh POLICY [OUT [FLAG...]]
# Prints a table in Markdown; OUT is a file for each repetition's figures as JSON. FLAGs are those of the example `spread`: `--only
# '10 nodes, none'`, `--repetitions 10`, `--beside crane=FILE` (another policy in a column of its own), `--bands` (a column for node bands,
# from Kubernetes 1.36 on).
# PROGRAMS: a folder with etcd, kube-apiserver, kube-scheduler and kubectl (default: ~/.cache/plimsoll/kubernetes/*/bin, as `make cluster`
# leaves it). EXTENDER, PLIMSOLL: a scheduler-extender and a plimsoll that are built already.
#
# The nodes have 16 cores and 64 GiB. Beside a colder node or zone the others are at 60% CPU; uneven loads are normal around 45%, drawn with
# fixed seeds, the deviations those of the closed loop's cells S40 and S55 without load awareness. Memory is two thirds as loaded as CPU.
# Other pods request what is in use / 0.65, at most 70% of a node, so that three replicas of a tenth of a node fit everywhere, and
# stock's LeastAllocated sees the colder node too. Replicas request what they use; of their workload nothing was learned.
set -euo pipefail
cd "$(dirname "$0")/.."
policy=$1 json=${2:+--json=$2}
build=()
[ -n "${EXTENDER:-}" ] || build+=(--package scheduler-extender --bin scheduler-extender)
[ -n "${PLIMSOLL:-}" ] || build+=(--package plimsoll-cli --bin plimsoll)
cargo build --locked --package plimsoll-lab --example spread "${build[@]}"
programs=${PROGRAMS:-$(printf "%s\n" ~/.cache/plimsoll/kubernetes/v*/bin | sort --version-sort | tail -1)}
. bench/control-plane.sh
if [[ " ${*:3} " = *" --bands "* ]]; then
  sed "s/^  matchConditions:/&\n  - {name: one-scheduler, expression: \"object.spec.schedulerName == 'bands'\"}/" \
    deploy/tests/rendered/node-bands.yaml >"$work/node-bands.yaml"
  create "$work/node-bands.yaml"
  sleep 5 # until it is in force
fi

target/debug/examples/spread --api "$url" --token bench --kubeconfig "$work/kubeconfig" --work "$work" \
  --scheduler "$programs/kube-scheduler" --extender "${EXTENDER:-target/debug/scheduler-extender}" \
  --plimsoll "${PLIMSOLL:-target/debug/plimsoll}" --policy "$policy" ${json:+"$json"} "${@:3}"
