//! Owns the configuration of containerd, CNI, kubeadm, kubelet and kube-proxy for one node.
//!
//! It differs from a user's only where two kubelets share one kernel, or where cgroup version 1 must be allowed. All
//! pinned releases take the same texts; a field that only some of them know belongs here, decided by the release.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::build::release::Release;
use crate::node::CONTAINERD_SOCKET as SOCKET;
use crate::node::spec::{NodeSpec, POD_RANGE, SERVICE_RANGE};

/// The file, inside a node, that pods with the node's resolver get, such as CoreDNS.
pub(crate) const PODS_RESOLVER: &str = "/etc/kubernetes/pods-resolv.conf";
/// CoreDNS needs one to forward other names to. None can be reached from here.
pub(crate) const NO_NAME_SERVER: &str = "nameserver 192.0.2.53\n";

/// Writes the configuration of containerd and CNI into the node's folder.
pub(crate) fn write_runtime(node: &NodeSpec, folder: &Path, sandbox: &str) -> Result<()> {
    fs::write(folder.join("containerd.toml"), containerd(sandbox))?;
    let cni = folder.join("etc/cni/net.d");
    fs::create_dir_all(&cni)?;
    fs::write(cni.join("10-plimsoll.conflist"), conflist(node))?;
    Ok(())
}

fn containerd(sandbox: &str) -> String {
    format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
address = "{SOCKET}"
[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{sandbox}"
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

fn conflist(node: &NodeSpec) -> String {
    let range = node.pod_range();
    format!(
        r#"{{"cniVersion": "1.0.0", "name": "plimsoll", "plugins": [
  {{"type": "ptp", "ipMasq": false, "ipam": {{"type": "host-local", "dataDir": "/run/cni-ipam",
    "ranges": [[{{"subnet": "{range}"}}]], "routes": [{{"dst": "0.0.0.0/0"}}]}}}},
  {{"type": "portmap", "capabilities": {{"portMappings": true}}}}
]}}
"#
    )
}

/// The configuration of `kubeadm init`, which installs `release`. etcd leaves it to the kernel when its log reaches the
/// disk: a killed etcd loses nothing by that, only a host that loses its power would.
pub(crate) fn init(node: &NodeSpec, release: Release) -> String {
    let address = node.address();
    let registration = registration(node);
    format!(
        r#"apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {{advertiseAddress: {address}, bindPort: 6443}}
{registration}---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: {release}
clusterName: plimsoll
etcd: {{local: {{extraArgs: [{{name: unsafe-no-fsync, value: "true"}}]}}}}
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
resolvConf: {PODS_RESOLVER}
maxPods: 250
nodeStatusUpdateFrequency: 1s
evictionHard: {{memory.available: "1Mi"}}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
"#
    )
}

/// The configuration of `kubeadm join`. `token` and `hash` are what `kubeadm token create` printed.
pub(crate) fn join(node: &NodeSpec, control_plane: &NodeSpec, token: &str, hash: &str) -> String {
    let endpoint = control_plane.address();
    let registration = registration(node);
    format!(
        r#"apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery:
  bootstrapToken: {{token: {token}, apiServerEndpoint: "{endpoint}:6443", caCertHashes: ["{hash}"]}}
{registration}"#
    )
}

fn registration(node: &NodeSpec) -> String {
    let name = node.name;
    let address = node.address();
    let cgroup = node.cgroup();
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

/// The configuration of kube-proxy. It leaves the host's limits of connection tracking as they are.
pub(crate) fn kube_proxy(node: &NodeSpec) -> String {
    let name = node.name;
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
