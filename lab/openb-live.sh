#!/usr/bin/env bash
# The openb trace through a real kube-scheduler: its 1,213 nodes as Node objects, its pods until 100% of the GPUs are asked for, the shipped
# configuration of kube-scheduler, and the shipped policy of the extender. Prints how much of the GPUs is given out, and beside it what the
# library gives out for the same seed. etcd, API server and scheduler run as bare processes; there are no kubelets, and nothing is in use.
#
# Usage: lab/openb-live.sh FOLDER NODES PODS [SEED [FLAG...]]
# FOLDER holds etcd, kube-apiserver, kube-scheduler and kubectl, as ~/.cache/plimsoll/kubernetes/*/bin after `make cluster`. NODES and PODS
# are files as of `openb`; FLAGs are the extender's. With BY=claims pods ask by ResourceClaims, and the GPUs of a node are in the order of their
# index, since there is no driver to sort them; with EXTENDER=none kube-scheduler asks nobody, and with BANDS=1 pods prefer nodes by their
# bands.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=$1 node_list=$2 pod_list=$3 seed=${4:-42} flags=("${@:5}")
cargo build --locked --release --package plimsoll-lab --package scheduler-extender --bin openb --bin scheduler-extender
. bench/control-plane.sh
ours=$(port) admin=$(port) metrics=$(port)
lists=(--nodes "$node_list" --pods "$pod_list" --seeds "$seed")

by_claims=()
[ "${BY:-units}" = claims ] && by_claims=(--by-claims) && flags+=(--claims)
target/release/openb "${lists[@]}" --objects "$work" "${by_claims[@]}"
create "$work/nodes.json"
if [ -n "${BANDS:-}" ]; then
  create deploy/tests/rendered/node-bands.yaml
  sleep 5 # until it is in force
fi
if [ "${#by_claims[@]}" -gt 0 ]; then
  create "$work/slices.json"
  create "$work/claims.json"
fi
create "$work/pods.json"
pods=$(wc -l <"$work/pods.json")
start extender target/release/scheduler-extender --listen-address "127.0.0.1:$ours" --admin-address "127.0.0.1:$admin" \
  --kubeconfig "$work/kubeconfig" --policy-file deploy/chart/policies/shipped.yaml "${flags[@]}"
until curl -sf "http://127.0.0.1:$admin/readyz" >/dev/null; do
  kill -0 "$started" 2>/dev/null || { cat "$work/extender.log" >&2; exit 1; }
  sleep 0.2
done

shipped_scheduler "$ours"
began=$SECONDS
start scheduler "$programs/kube-scheduler" --config="$work/scheduler.yaml" --secure-port="$metrics" --authorization-always-allow-paths=/metrics

count() { # NAME LABEL: of one line of the scheduler's metrics
  curl -sk "https://127.0.0.1:$metrics/metrics" | awk -v name="$1" -v label="$2" 'index($0, name) == 1 && index($0, label) { n += $2 } END { print int(n) }'
}
# Every pod has been tried once: it is bound, or waits as one that fits nowhere.
tried=0
until [ "$tried" -ge "$pods" ]; do
  sleep 2
  tried=$(($(count scheduler_schedule_attempts_total 'result="scheduled"') + $(count scheduler_pending_pods 'queue="unschedulable"')))
  [ -t 2 ] && printf '\r%d of %d pods' "$tried" "$pods" >&2
done
took=$((SECONDS - began))
sleep 5 # bindings under way

# The API server writes 1000 as 1k. Of pods that were refused in the same second as others were bound, the bound ones count as later.
# shellcheck disable=SC2016
given='def units: .metadata.labels.units // .spec.containers[0].resources.limits["aliyun.com/gpu-mem"] // "0"
    | if endswith("k") then rtrimstr("k") | tonumber * 1000 else tonumber end;
  def decided: .status.conditions[]? | select(.type == "PodScheduled");
  ([.items[] | decided | select(.status == "False").lastTransitionTime] | min) as $refused
  | ([.items[] | select(.spec.nodeName) | units] | add),
    ([.items[] | select($refused == null or decided.lastTransitionTime < $refused) | units] | add // 0)'
{ read -r bound; read -r before; } < <(ask "$url/api/v1/namespaces/default/pods" | jq "$given")
capacity=$(jq -s '[.[].metadata.annotations["plimsoll.dev/gpu-cards"] // "[]" | fromjson[].units] | add' "$work/nodes.json")
awk -v bound="$bound" -v before="$before" -v capacity="$capacity" -v seed="$seed" -v pods="$pods" -v took="$took" \
  'BEGIN { printf "live, seed %d: %.2f%% of the GPUs are given out, the first pod was refused at %d%%, %d pods a second\n",
    seed, 100 * bound / capacity, 100 * before / capacity, pods / took }'
[ "${#by_claims[@]}" -gt 0 ] || target/release/openb "${lists[@]}" --policy plimsoll,bestfit
