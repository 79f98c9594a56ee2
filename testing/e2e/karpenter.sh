#!/usr/bin/env bash
# What docs/autoscalers.md says of Karpenter, tried: Karpenter with its cloud provider kwok, whose machines are Node objects without
# kubelets, beside a real kube-scheduler with the shipped extender. etcd, API server and the rest run as bare processes; the script
# stands in for the kubelet and the device plugin. Prints each fact once it holds, and ends with 1 where one does not in two minutes.
#
# Usage: testing/e2e/karpenter.sh FOLDER
# FOLDER holds etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl, as ~/.cache/plimsoll/kubernetes/*/bin after
# `make cluster`. EXTENDER: a scheduler-extender that is built already.
set -euo pipefail
cd "$(dirname "$0")/../.."
programs=$1
if [ -z "${EXTENDER:-}" ]; then
  cargo build --locked --package scheduler-extender
  EXTENDER=target/debug/scheduler-extender
fi
karpenter=$(scripts/go-program.sh karpenter)
module=$(cd testing/e2e/go/karpenter && go list -m -f '{{.Dir}}' sigs.k8s.io/karpenter)
samples=deploy/samples/autoscalers
. bench/control-plane.sh
ours=$(port) admin=$(port) units=aliyun.com/gpu-mem

kubectl() { "$programs/kubectl" --kubeconfig "$work/kubeconfig" "$@"; }

fact() { # TEXT COMMAND...: it holds once the command succeeds
  local end=$((SECONDS + 120))
  until "${@:2}"; do
    if [ $SECONDS -ge $end ]; then
      echo "does not hold: $1" >&2
      kubectl get nodeclaims,nodes,pods,events >&2
      exit 1
    fi
    sleep 0.5
  done
  echo "$1"
}

pod() { # NAME UNITS [CARDS]
  jq -n --arg name "$1" --arg units "$2" --arg cards "${3:-1}" '{kind: "Pod", apiVersion: "v1",
    metadata: {name: $name, annotations: {"plimsoll.dev/gpu-card-count": $cards}},
    spec: {schedulerName: "plimsoll-scheduler", containers: [{
      name: "main", image: "none", resources: {limits: {"aliyun.com/gpu-mem": $units}}}]}}' >"$work/pod.json"
  create "$work/pod.json"
}

told() { # POD TEXT: an event of the pod has the text
  kubectl get events --field-selector "involvedObject.name=$1" -o jsonpath='{.items[*].message}' | grep -qF "$2"
}
claims() { # NUMBER
  [ "$(kubectl get nodeclaims -o name | wc -l)" = "$1" ]
}
made() { # NUMBER: so many NodeClaims have a Node
  claims "$1" && [ "$(kubectl get nodeclaims -o jsonpath='{.items[*].status.nodeName}' | wc -w)" = "$1" ]
}
newest() { # FIELD: of the last NodeClaim
  kubectl get nodeclaims --sort-by=.metadata.creationTimestamp -o json | jq -r ".items[-1] | $1"
}
newest_is() { # FIELD VALUE
  [ "$(newest "$1")" = "$2" ]
}
initialized='.status.conditions[] | select(.type == "Initialized")'
runs_on() { # POD NODE
  [ "$(kubectl get pod "$1" -o jsonpath='{.spec.nodeName}')" = "$2" ]
}
all_run_on() { # NAME NODE: the pods with the label NAME
  [ "$(kubectl get pods -l "app.kubernetes.io/name=$1" -o jsonpath='{.items[*].spec.nodeName}')" = "$2" ]
}
runs() { # NAME: a pod with the label NAME is placed
  [ -n "$(kubectl get pods -l "app.kubernetes.io/name=$1" -o jsonpath='{.items[*].spec.nodeName}')" ]
}
is_ending() { # POD
  [ -n "$(kubectl get pod "$1" -o jsonpath='{.metadata.deletionTimestamp}')" ]
}
buffer_fits() {
  [ "$(kubectl get capacitybuffers whole-gpu-node -o json |
    jq -r '.status.conditions[]? | select(.type == "Provisioning") | .status')" = True ]
}

ready() { # NODE: without units, as a node is before its device plugin has registered
  kubectl patch node "$1" --subresource=status --patch "{\"status\": {\"capacity\": {\"$units\": null},
    \"allocatable\": {\"$units\": null}, \"conditions\": [{\"type\": \"Ready\", \"status\": \"True\"}]}}" >/dev/null
}
report() { # NODE GPUS UNITS: of each GPU
  kubectl annotate node "$1" plimsoll.dev/gpu-cards="$(jq -nc --arg node "$1" --argjson cards "$2" --argjson units "$3" '
    [range($cards) | {uuid: "GPU-\($node)-\(.)", index: ., model: "kwok", memoryMiB: ($units * 1024), units: $units, healthy: true,
      pods: {}}]')" >/dev/null
  kubectl patch node "$1" --subresource=status --patch "{\"status\": {\"capacity\": {\"$units\": \"$(($2 * $3))\"},
    \"allocatable\": {\"$units\": \"$(($2 * $3))\"}, \"conditions\": [{\"type\": \"Ready\", \"status\": \"True\"}]}}" >/dev/null
}
end() { # POD: its containers have ended
  kubectl patch pod "$1" --subresource=status --patch '{"status": {"phase": "Succeeded"}}' >/dev/null
  kubectl delete pod "$1" --grace-period=0 --force >/dev/null 2>&1
}

# The instance types of the sample, and one of two GPUs, which costs more. kwok knows no other resources.
jq -n '[["g5.xlarge", 4, 1], ["g5.2xlarge", 8, 2], ["g5.4xlarge", 16, 3], ["two-cards", 32, 9]][] as [$name, $cpu, $price] | {
  name: $name, architecture: "amd64", operatingSystems: ["linux"],
  resources: {cpu: "\($cpu)", memory: "\($cpu * 4)Gi", "ephemeral-storage": "100Gi"},
  offerings: [{Price: $price, Available: true, Requirements: [
    {key: "karpenter.sh/capacity-type", operator: "In", values: ["on-demand"]},
    {key: "topology.kubernetes.io/zone", operator: "In", values: ["a"]}]}]}' | jq -s . >"$work/instance-types.json"
cat >"$work/node-pool.yaml" <<'END'
apiVersion: karpenter.kwok.sh/v1alpha1
kind: KWOKNodeClass
metadata:
  name: default
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata:
  name: default
spec:
  template:
    metadata:
      labels:
        gpushare: "true"
    spec:
      requirements:
      - key: kubernetes.io/os
        operator: In
        values: [linux]
      nodeClassRef:
        group: karpenter.kwok.sh
        kind: KWOKNodeClass
        name: default
      expireAfter: Never
  disruption:
    consolidationPolicy: WhenEmpty
    consolidateAfter: Never
END
for crds in "$module/pkg/apis/crds" "$module/kwok/apis/crds"; do kubectl apply -f "$crds" >/dev/null; done
kubectl wait --for=condition=Established crd --all >/dev/null
kubectl apply -f "$work/node-pool.yaml" >/dev/null

start extender "$EXTENDER" --listen-address "127.0.0.1:$ours" --admin-address "127.0.0.1:$admin" \
  --kubeconfig "$work/kubeconfig" --policy-file deploy/chart/policies/shipped.yaml
until curl -sf "http://127.0.0.1:$admin/readyz" >/dev/null; do sleep 0.2; done
sed -e "s|scheduler-extender.plimsoll.svc:19100|127.0.0.1:$ours|" -e "s|/etc/kubernetes/scheduler.conf|$work/kubeconfig|" \
  -e 's|leaderElect: true|leaderElect: false|' deploy/chart/kube-scheduler/shipped.yaml >"$work/scheduler.yaml"
echo 'profiles: [{schedulerName: plimsoll-scheduler}]' >>"$work/scheduler.yaml"
start scheduler "$programs/kube-scheduler" --config="$work/scheduler.yaml" --secure-port="$(port)"
# Makes the pods of a Deployment, and nothing else.
start controllers "$programs/kube-controller-manager" --kubeconfig="$work/kubeconfig" --leader-elect=false --secure-port="$(port)" \
  --controllers=deployment-controller,replicaset-controller
KUBECONFIG=$work/kubeconfig DISABLE_LEADER_ELECTION=true FEATURE_GATES=NodeOverlay=true,CapacityBuffer=true SYSTEM_NAMESPACE=kube-system \
  METRICS_PORT=$(port) HEALTH_PROBE_PORT=$(port) INSTANCE_TYPES_FILE_PATH=$work/instance-types.json start karpenter "$karpenter"

pod small 4
fact 'without an overlay Karpenter refuses a pod that asks for units' told small 'Failed to schedule pod'
fact 'and makes no node for it' claims 0

kubectl apply -f "$samples/karpenter-node-overlay.yaml" >/dev/null
fact 'with the overlay it makes one node' made 1
fact 'of the cheapest instance type that the overlay is for' newest_is '.metadata.labels["node.kubernetes.io/instance-type"]' g5.xlarge
fact 'for the units of the pod' newest_is ".spec.resources.requests[\"$units\"]" 4
one=$(newest .status.nodeName)
ready "$one"
fact 'a ready node without units is not initialized' newest_is "$initialized | .reason" ResourceNotRegistered
report "$one" 1 22
fact 'a node that reports its units is' newest_is "$initialized | .status" True
fact 'and takes the pod' runs_on small "$one"
pod large 23
fact 'a pod that asks for one unit more than the overlay has is refused' told large 'Failed to schedule pod'
fact 'and makes no node' claims 1
kubectl delete pod large >/dev/null

sed -e 's|gpu-mem-of-one-a10g|two-cards|' -e 's|\[g5.*\]|[two-cards]|' -e 's|"22"|"160"|' \
  "$samples/karpenter-node-overlay.yaml" | kubectl apply -f - >/dev/null
pod left 45
fact 'with an overlay for another instance type it makes a node of two cards' made 2
two=$(newest .status.nodeName)
report "$two" 2 80
fact 'a pod is on one card of it' runs_on left "$two"
pod right 45
fact 'and a second one on the other' runs_on right "$two"
pod waiting 40
fact 'of 70 units, 35 on each card, Karpenter believes that they fit a pod of 40' told waiting ", node/$two"
fact 'kube-scheduler asks the extender, and the pod waits' runs_on waiting ''
fact 'and no node is made for it' claims 2
kubectl delete pod waiting >/dev/null

kubectl apply -f "$samples/spare-node.yaml" >/dev/null
fact 'the placeholder has a node made' made 3
spare=$(newest .status.nodeName)
report "$spare" 2 80
fact 'and takes it' all_run_on spare-gpu-node "$spare"
first=$(kubectl get pods -l app.kubernetes.io/name=spare-gpu-node -o jsonpath='{.items[0].metadata.name}')
pod waiting 40
fact 'the pod that waits preempts it' is_ending "$first"
fact 'a new placeholder has another node made' made 4
end "$first"
fact 'the pod takes the place of the first' runs_on waiting "$spare"
next=$(newest .status.nodeName)
report "$next" 2 80
fact 'and the new one its node' all_run_on spare-gpu-node "$next"

second=$(kubectl get pods -l app.kubernetes.io/name=spare-gpu-node -o jsonpath='{.items[0].metadata.name}')
kubectl scale deployment spare-gpu-node --replicas=0 >/dev/null
fact 'without placeholders' is_ending "$second"
end "$second"
kubectl apply -f "$samples/capacity-buffer.yaml" >/dev/null
fact 'a CapacityBuffer of a whole node takes the empty one' buffer_fits
fact 'and has none made' claims 4
pod whole 120 2
fact 'a pod takes that node' runs_on whole "$next"
fact 'and the buffer has another one made' made 5
report "$(newest .status.nodeName)" 2 80
fact 'which it takes' buffer_fits
kubectl delete capacitybuffer whole-gpu-node >/dev/null

# Of a Deployment, so that it is made again.
end waiting
end whole
jq '{kind: "Deployment", apiVersion: "apps/v1", metadata: {name: "moved"}, spec: {
  selector: {matchLabels: {"app.kubernetes.io/name": "moved"}}, template: {
    metadata: {labels: {"app.kubernetes.io/name": "moved"}, annotations: {"karpenter.sh/do-not-disrupt": "true"}}, spec: .spec}}}
  | .spec.template.spec.containers[0].resources.limits[] = "40"' "$work/pod.json" >"$work/moved.json"
create "$work/moved.json"
fact 'a pod of 40 units is placed beside the node with 35 free on each card' runs moved
kubectl annotate pod --all --overwrite karpenter.sh/do-not-disrupt=true >/dev/null
kubectl patch nodepool default --type=merge \
  --patch '{"spec": {"disruption": {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "0s"}}}' >/dev/null
fact 'Karpenter removes the empty nodes' claims 3
moved=$(kubectl get pods -l app.kubernetes.io/name=moved -o jsonpath='{.items[0].metadata.name}')
fact 'and not the node of that pod, whose annotation forbids it' \
  told "$(kubectl get pod "$moved" -o jsonpath='{.spec.nodeName}')" karpenter.sh/do-not-disrupt
kubectl annotate pod "$moved" karpenter.sh/do-not-disrupt- >/dev/null
fact 'without the annotation it evicts that pod' is_ending "$moved"
end "$moved"
fact 'and removes its node' claims 2
moved=$(kubectl get pods -l app.kubernetes.io/name=moved -o jsonpath='{.items[0].metadata.name}')
fact 'since it believes that 70 units on two cards are enough' told "$moved" ", node/$two"
fact 'the pod waits' runs_on "$moved" ''
fact 'and no node is made for it' claims 2

# Node bands: the pods of any scheduler prefer nodes by labels that no NodePool has.
kubectl scale deployment moved --replicas=0 >/dev/null
create deploy/tests/rendered/node-bands.yaml
kubectl label node "$one" plimsoll.dev/cpu-band=0 >/dev/null
kubectl label node "$two" plimsoll.dev/cpu-band=7 >/dev/null
plain() { # NAME CPU: a Deployment of one pod
  jq -n --arg name "$1" --arg cpu "$2" '{kind: "Deployment", apiVersion: "apps/v1", metadata: {name: $name}, spec: {
    selector: {matchLabels: {"app.kubernetes.io/name": $name}}, template: {metadata: {labels: {"app.kubernetes.io/name": $name}}, spec: {
      schedulerName: "plimsoll-scheduler", containers: [{name: "main", image: "none", resources: {requests: {cpu: $cpu}}}]}}}}' >"$work/plain.json"
  create "$work/plain.json"
}
jq .spec.template "$work/moved.json" | jq '. + {kind: "Pod", apiVersion: "v1"} | .metadata.name = "asked"' >"$work/asked.json"
gets_preferences() { kubectl create --dry-run=server -o json -f "$work/asked.json" | jq -e .spec.affinity >/dev/null; }
fact 'with node bands a pod gets preferences' gets_preferences
plain large 20
fact 'the last band has room for it alone, and it goes there' all_run_on large "$two"
fact 'no node is made for it' claims 2
plain more 14
fact 'a pod that fits on no node has one made, which has no bands' made 3
three=$(newest .status.nodeName)
report "$three" 1 22
fact 'and goes there' all_run_on more "$three"
kubectl label node "$three" plimsoll.dev/cpu-band=0 >/dev/null
large=$(kubectl get pods -l app.kubernetes.io/name=large -o jsonpath='{.items[0].metadata.name}')
kubectl scale deployment large --replicas=0 >/dev/null
end "$large"
more=$(kubectl get pods -l app.kubernetes.io/name=more -o jsonpath='{.items[0].metadata.name}')
fact 'Karpenter evicts it from the first band, since it fits on a node of the last' is_ending "$more"
end "$more"
fact 'and removes the node' claims 2
fact 'it is on the node of the last band' all_run_on more "$two"
