#!/bin/sh
# Gives the machine that it runs on NVIDIA GPUs that do not exist, to try GPU sharing without a GPU: a node of kind or minikube, for instance.
# Pods get their GPUs' device nodes and variables, and nothing that computes. Run it as root on the node:
#
#   CARDS=2 MEMORY_MIB=16384 sh stand-in-cards.sh
#
# It makes device nodes and the stand-in driver's script in /var/lib/plimsoll-stand-in, and /etc/cdi/nvidia.yaml, by which containerd gives
# them to containers (FOLDER and CDI_FOLDER name other folders). The driver's library belongs beside them, as libnvidia-ml.so.1 and
# as libcuda.so.1.
# docs/quick-start.md has the commands.
set -eu
cards=${CARDS:-2} memory=${MEMORY_MIB:-16384} folder=${FOLDER:-/var/lib/plimsoll-stand-in} cdi=${CDI_FOLDER:-/etc/cdi}/nvidia.yaml
wrong() {
    echo "$1" >&2
    exit "$2"
}
# JSON knows no number that begins with 0.
case $cards in 0* | *[!0-9]* | ???*) wrong "CARDS is 1 to 16, and not $cards" 2 ;; esac
[ "$cards" -le 16 ] || wrong "CARDS is 1 to 16, and not $cards" 2
case $memory in 0* | *[!0-9]* | ????????*) wrong "MEMORY_MIB is 1 to 9999999, and not $memory" 2 ;; esac
# It is a part of YAML, and of a command that removes it.
case $folder in
/*[!a-zA-Z0-9/._-]* | [!/]* | / | *//* | */. | */./* | */.. | */../*)
    wrong "FOLDER is an absolute path of letters, digits and /._-, and not $folder" 2
    ;;
esac
[ "$(id -u)" = 0 ] || wrong "run it as root: it makes device nodes" 1
[ ! -e /proc/driver/nvidia ] || wrong "this machine has a driver of NVIDIA's: its GPUs need no stand-in" 1
mark="# By stand-in-cards.sh of Plimsoll."
if [ -e "$cdi" ] && ! grep -qxF "$mark" "$cdi"; then
    wrong "$cdi is there already, and not by this script: move it away first" 1
fi
mkdir -p "$folder/dev" "${cdi%/*}"
# 195 is the major number of NVIDIA's devices. That of nvidia-uvm is another at each start of its driver; 253 is a free minor number.
[ -e "$folder/dev/nvidiactl" ] || mknod -m 666 "$folder/dev/nvidiactl" c 195 255
[ -e "$folder/dev/nvidia-uvm" ] || mknod -m 666 "$folder/dev/nvidia-uvm" c 195 253
listed="" devices="" card=0
while [ "$card" -lt "$cards" ]; do
    node=$folder/dev/nvidia$card
    [ -e "$node" ] || mknod -m 666 "$node" c 195 "$card"
    # GPUs of two nodes have different ones: the first part is the host name's checksum.
    uuid=$(printf 'GPU-%08x-5afe-4000-8000-%012x' "$(($(uname -n | cksum | cut -d ' ' -f 1) / 16 * 16 + card))" "$card")
    listed="$listed${listed:+,}
  {\"uuid\": \"$uuid\", \"index\": $card, \"minor\": $card, \"model\": \"stand-in\", \"memoryMiB\": $memory, \"numaNode\": 0, \"usedMiB\": 0,
   \"utilisation\": 0, \"temperature\": 40, \"powerMilliwatt\": 30000, \"healthy\": true, \"xid\": null}"
    devices="$devices
- name: $uuid
  containerEdits: {deviceNodes: [{path: /dev/nvidia$card, hostPath: $node}]}"
    card=$((card + 1))
done
# Both files are read while they are written: a runtime reads none of another ending.
printf '{"driver": "570.0", "cards": [%s]}\n' "$listed" >"$folder/nvml-script.json.new"
mv "$folder/nvml-script.json.new" "$folder/nvml-script.json"
cat >"$cdi.new" <<EOF
$mark
cdiVersion: 0.6.0
kind: nvidia.com/gpu
devices:$devices
containerEdits:
  env: [NVIDIA_VISIBLE_DEVICES=void]
  deviceNodes:
  - {path: /dev/nvidiactl, hostPath: $folder/dev/nvidiactl}
  - {path: /dev/nvidia-uvm, hostPath: $folder/dev/nvidia-uvm}
EOF
mv "$cdi.new" "$cdi"
# Those of a run with more GPUs.
while [ "$card" -lt 16 ]; do
    rm -f "$folder/dev/nvidia$card"
    card=$((card + 1))
done
echo "$(uname -n) has $cards GPUs of $memory MiB; to take them away: rm -r $folder $cdi"
