//! Where this process finds the host's files.
//!
//! Invariant: nothing of these paths goes to the kubelet, the container runtime or a container. The kubelet knows the
//! plugin's socket by its name alone, and a CDI specification by the folder that it lies in.

use std::path::{Path, PathBuf};

/// The host's files, below `--host-root`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPaths {
    /// The kubelet's folder for device plugins, with its `kubelet.sock` and its checkpoint.
    pub device_plugins: PathBuf,
    /// The kubelet's folder in which plugins register, as drivers of ResourceClaims do.
    pub plugins_registry: PathBuf,
    /// The socket of the kubelet's PodResources API.
    pub pod_resources: PathBuf,
    /// The folder of CDI specifications in which ours is written.
    pub cdi: PathBuf,
    /// The root of the control groups. They tell whether a pod that is gone still has processes, and which version they
    /// are.
    pub cgroups: PathBuf,
    /// A folder that is emptied at a boot. What pods were granted is kept there, for a plugin that restarts while a pod
    /// that was deleted by force still runs.
    pub state: PathBuf,
    /// `/proc`, which tells of which pod and container a process is.
    pub proc: PathBuf,
    /// The kernel's folder of PCI devices.
    pub pci: PathBuf,
}

impl HostPaths {
    /// Those of a host whose root is at `root`.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        Self {
            device_plugins: root.join("var/lib/kubelet/device-plugins"),
            plugins_registry: root.join("var/lib/kubelet/plugins_registry"),
            pod_resources: root.join("var/lib/kubelet/pod-resources/kubelet.sock"),
            cdi: root.join("var/run/cdi"),
            cgroups: root.join("sys/fs/cgroup"),
            state: root.join("run/plimsoll-gpu"),
            proc: root.join("proc"),
            pci: root.join("sys/bus/pci/devices"),
        }
    }
}
