//! Owns the configuration texts of containerd, CNI, kubeadm and kube-proxy for one machine.
//!
//! They differ from a user's only where two kubelets share one kernel, or where cgroup version 1 must be allowed.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::settings::{KUBERNETES, Machine, POD_RANGE, SERVICE_RANGE};

/// Where containerd listens, inside a machine.
pub(crate) const SOCKET: &str = "/run/containerd/containerd.sock";

/// Writes what containerd needs before it starts.
pub(crate) fn write_runtime(machine: &Machine, folder: &Path, pause_image: &str) -> Result<()> {
    fs::write(folder.join("containerd.toml"), containerd(pause_image))?;
    let cni = folder.join("etc/cni/net.d");
    fs::create_dir_all(&cni)?;
    fs::write(cni.join("10-plimsoll.conflist"), conflist(machine))?;
    Ok(())
}

fn containerd(pause_image: &str) -> String {
    format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
address = "{SOCKET}"
[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{pause_image}"
[plugins.'io.containerd.cri.v1.runtime']
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "/etc/cni/net.d"
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = "runc"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
"#
    )
}

fn conflist(machine: &Machine) -> String {
    let range = machine.pod_range();
    format!(
        r#"{{"cniVersion": "1.0.0", "name": "plimsoll", "plugins": [
  {{"type": "ptp", "ipMasq": false, "ipam": {{"type": "host-local", "dataDir": "/run/cni-ipam",
    "ranges": [[{{"subnet": "{range}"}}]], "routes": [{{"dst": "0.0.0.0/0"}}]}}}},
  {{"type": "portmap", "capabilities": {{"portMappings": true}}}}
]}}
"#
    )
}

/// What `kubeadm init` is given.
pub(crate) fn init(machine: &Machine) -> String {
    let (address, registration) = (machine.address(), registration(machine));
    format!(
        r#"apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {{advertiseAddress: {address}, bindPort: 6443}}
{registration}---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: {KUBERNETES}
clusterName: plimsoll
networking: {{serviceSubnet: {SERVICE_RANGE}}}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
cgroupsPerQOS: true
enforceNodeAllocatable: ["none"]
failCgroupV1: false
failSwapOn: false
localStorageCapacityIsolation: false
protectKernelDefaults: true
resolvConf: ""
maxPods: 250
nodeStatusUpdateFrequency: 1s
evictionHard: {{memory.available: "1Mi"}}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
"#
    )
}

/// What `kubeadm join` is given; `token` and `hash` are what `kubeadm token create` printed.
pub(crate) fn join(machine: &Machine, control_plane: &Machine, token: &str, hash: &str) -> String {
    let (endpoint, registration) = (control_plane.address(), registration(machine));
    format!(
        r#"apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery:
  bootstrapToken: {{token: {token}, apiServerEndpoint: "{endpoint}:6443", caCertHashes: ["{hash}"]}}
{registration}"#
    )
}

fn registration(machine: &Machine) -> String {
    let (name, address, cgroup) = (machine.name, machine.address(), machine.cgroup());
    format!(
        r#"nodeRegistration:
  name: {name}
  criSocket: unix://{SOCKET}
  imagePullPolicy: IfNotPresent
  taints: []
  kubeletExtraArgs:
  - {{name: node-ip, value: {address}}}
  - {{name: cgroup-root, value: {cgroup}}}
"#
    )
}

/// kube-proxy's configuration; connection tracking limits belong to the host and stay as they are.
pub(crate) fn kube_proxy(machine: &Machine) -> String {
    let name = machine.name;
    format!(
        r#"apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {{kubeconfig: /etc/kubernetes/kube-proxy.conf}}
mode: nftables
clusterCIDR: {POD_RANGE}
hostnameOverride: {name}
conntrack: {{maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
"#
    )
}
