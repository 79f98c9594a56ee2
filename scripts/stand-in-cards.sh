#!/bin/sh
# Gives the machine that it runs on NVIDIA cards that do not exist, to try GPU sharing without a GPU: a node of kind or minikube, for instance.
# Pods get their cards' device nodes and variables, and nothing that computes. Run it as root on the node:
#
#   CARDS=2 MEMORY_MIB=16384 sh stand-in-cards.sh
#
# It makes device nodes and the stand-in driver's script in /var/lib/plimsoll-stand-in, and /etc/cdi/nvidia.yaml, by which containerd gives
# them to containers. The driver's library belongs beside them, as libnvidia-ml.so.1. docs/quick-start.md has the commands.
set -eu
cards=${CARDS:-2} memory=${MEMORY_MIB:-16384} folder=${FOLDER:-/var/lib/plimsoll-stand-in} cdi=/etc/cdi/nvidia.yaml
case $cards$memory in *[!0-9]*) echo "CARDS and MEMORY_MIB are numbers: CARDS=2 MEMORY_MIB=16384" >&2; exit 2 ;; esac
[ "$cards" -ge 1 ] && [ "$cards" -le 16 ] || { echo "CARDS is 1 to 16, and not $cards" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "run it as root: it makes device nodes" >&2; exit 1; }
if [ -e /proc/driver/nvidia ]; then
    echo "this machine has a driver of NVIDIA's: its cards need no stand-in" >&2
    exit 1
fi
if [ -e "$cdi" ] && ! grep -q "$folder/dev/" "$cdi"; then
    echo "$cdi is there already, and not by this script: move it away first" >&2
    exit 1
fi
mkdir -p "$folder/dev" /etc/cdi
# 195 is the major number of NVIDIA's devices.
[ -e "$folder/dev/nvidiactl" ] || mknod -m 666 "$folder/dev/nvidiactl" c 195 255
listed="" devices="" card=0
while [ "$card" -lt "$cards" ]; do
    node=$folder/dev/nvidia$card
    [ -e "$node" ] || mknod -m 666 "$node" c 195 "$card"
    # Of two nodes, no cards have the same: the first part is the host name's checksum.
    uuid=$(printf 'GPU-%08x-5afe-4000-8000-%012x' "$(($(uname -n | cksum | cut -d ' ' -f 1) / 16 * 16 + card))" "$card")
    listed="$listed${listed:+,}
  {\"uuid\": \"$uuid\", \"index\": $card, \"minor\": $card, \"model\": \"stand-in\", \"memoryMiB\": $memory, \"numaNode\": 0, \"usedMiB\": 0,
   \"utilisation\": 0, \"temperature\": 40, \"powerMilliwatt\": 30000, \"healthy\": true, \"xid\": null}"
    devices="$devices
- name: $uuid
  containerEdits: {deviceNodes: [{path: /dev/nvidia$card, hostPath: $node}]}"
    card=$((card + 1))
done
printf '{"driver": "570.0", "cards": [%s]}\n' "$listed" >"$folder/nvml-script.json"
# A runtime reads no file of another ending while it is written.
cat >"$cdi.new" <<EOF
cdiVersion: 0.6.0
kind: nvidia.com/gpu
devices:$devices
containerEdits:
  env: [NVIDIA_VISIBLE_DEVICES=void]
  deviceNodes: [{path: /dev/nvidiactl, hostPath: $folder/dev/nvidiactl}]
EOF
mv "$cdi.new" "$cdi"
echo "$(uname -n) has $cards cards of $memory MiB; to take them away: rm -r $folder $cdi"
