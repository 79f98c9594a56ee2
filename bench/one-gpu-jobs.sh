#!/usr/bin/env bash
# Jobs of one pod with one GPU a second, as in KAI's scale test: 4,000 on 500 nodes of 8 GPUs. Counts from the first Job's creation
# until the last pod is bound. etcd, API server, Job controller and scheduler (the shipped configuration, with more requests a second) run as
# bare processes; nodes are objects without kubelets.
#
# Usage: bench/one-gpu-jobs.sh FOLDER [NODES [JOBS]]
# FOLDER holds etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl, as ~/.cache/plimsoll/kubernetes/*/bin after `make cluster`.
# With EXTENDER=none kube-scheduler asks nobody, and counts GPUs by nodes alone.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=$1 nodes=${2:-500} jobs=${3:-4000}
cargo build --locked --release --package scheduler-extender
. bench/control-plane.sh
ours=$(port) admin=$(port) metrics=$(port) gpus=8 units=80

now=$(date -u +%Y-%m-%dT%H:%M:%SZ)
jq -nc --argjson nodes "$nodes" --argjson gpus "$gpus" --argjson units "$units" --arg now "$now" 'range($nodes) | . as $node |
  {cpu: "128", memory: "2Ti", pods: "250", "aliyun.com/gpu-mem": "\($gpus * $units)"} as $room |
  {kind: "Node", apiVersion: "v1", metadata: {name: "gpu-\($node)", annotations: {
    cpu_shared_busy_avg_5m: "0.\(10 + $node * 37 % 50)000,\($now)", mem_usage_avg_5m: "0.\(10 + $node * 11 % 50)000,\($now)",
    "plimsoll.dev/gpu-cards": [range($gpus) | {uuid: "GPU-\($node)-\(.)", index: ., model: "NVIDIA H100", memoryMiB: ($units * 1024),
      units: $units, numaNode: (. / 4 | floor), linked: ([range($gpus)] - [.]), healthy: true, pods: {}}] | tojson}},
    status: {capacity: $room, allocatable: $room, conditions: [{type: "Ready", status: "True"}]}}' >"$work/nodes.json"
create "$work/nodes.json"
# The readings last until the end.
sed 's/maxAge: 8m/maxAge: 24h/' deploy/chart/policies/shipped.yaml >"$work/policy.yaml"
if [ "${EXTENDER:-}" != none ]; then
  start extender target/release/scheduler-extender --listen-address "127.0.0.1:$ours" --admin-address "127.0.0.1:$admin" \
    --kubeconfig "$work/kubeconfig" --policy-file "$work/policy.yaml"
  until curl -sf "http://127.0.0.1:$admin/readyz" >/dev/null; do sleep 0.2; done
fi

often=(--kube-api-qps=5000 --kube-api-burst=5000)
start manager "$programs/kube-controller-manager" --kubeconfig="$work/kubeconfig" --controllers=job-controller --leader-elect=false \
  --secure-port="$(port)" "${often[@]}"
shipped_scheduler "$ours"
start scheduler "$programs/kube-scheduler" --config="$work/scheduler.yaml" --secure-port="$metrics" --authorization-always-allow-paths=/metrics
bound() {
  curl -sk "https://127.0.0.1:$metrics/metrics" | awk '/^scheduler_schedule_attempts_total.*result="scheduled"/ { n += $2 } END { print int(n) }' || true
}
until curl -skf "https://127.0.0.1:$metrics/metrics" >/dev/null; do sleep 0.2; done

# curl, since kubectl sends 50 requests a second.
for job in $(seq "$jobs"); do
  [ "$job" = 1 ] || echo next
  printf 'silent\nshow-error\ninsecure\nfail\noutput = "/dev/null"\nheader = "Authorization: Bearer bench"\nheader = "Content-Type: application/json"\n'
  printf 'url = "%s/apis/batch/v1/namespaces/default/jobs"\n' "$url"
  jq -nc --arg job "$job" --arg units "$units" '{metadata: {name: "job-\($job)"}, spec: {template: {spec: {restartPolicy: "Never", containers: [
    {name: "main", image: "none", resources: {limits: {"aliyun.com/gpu-mem": $units}}}]}}}} | "data = \(tojson | tojson)"' -r
done >"$work/jobs.curl"
began=$(date +%s%N)
curl --no-progress-meter --parallel --parallel-max 16 --config "$work/jobs.curl" &
posts=$!
now=0 since=$SECONDS
while [ "$now" -lt "$jobs" ]; do
  sleep 0.5
  before=$now now=$(bound)
  [ "$now" = "$before" ] || since=$SECONDS
  if [ $((SECONDS - since)) -gt 60 ]; then
    echo "only $now of $jobs pods are bound, and none in a minute" >&2
    exit 1
  fi
  [ -t 2 ] && printf '\r%d of %d pods' "$now" "$jobs" >&2
done
took=$((($(date +%s%N) - began) / 1000000))
wait "$posts"
! grep -m 1 "Skipping extender" "$work/scheduler.log" || exit 1

ask "$url/api/v1/namespaces/default/pods" | jq -r --arg took "$took" --arg nodes "$nodes" '[.items[] | select(.spec.nodeName)] as $pods |
  ($pods | map((.metadata.annotations["plimsoll.dev/gpu-claim"] // "{}") | fromjson | .main // {} | keys[]) | group_by(.)) as $gpus |
  "\($pods | length) jobs on \($nodes) nodes in \($took | tonumber / 1000) s: \(1000 * ($pods | length) / ($took | tonumber) * 10 | round / 10) a second; \($gpus | length) GPUs given out, \($gpus | map(select(length > 1)) | length) to more than one"'
