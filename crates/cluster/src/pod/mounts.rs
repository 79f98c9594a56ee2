//! What a pod's containers have of their own at the paths where a client of NVIDIA's MPS needs mounts.
//!
//! A CDI device replaces a mount of the pod at the same path, so such a container cannot have both.

use std::collections::BTreeMap;
use std::fmt;

use super::{Container, Pod};

/// The memory that clients of MPS share with its servers, in a container.
pub const MPS_SHARED_MEMORY: &str = "/dev/shm";
/// The pipes of MPS, in a container.
pub const MPS_PIPES: &str = "/run/nvidia-mps";

/// Why a container cannot be a client of MPS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MpsConflict {
    /// Its pod uses the host's IPC namespace, and so the host's `/dev/shm`.
    HostIpc,
    /// It mounts something at [`MPS_SHARED_MEMORY`], above or below it.
    SharedMemory,
    /// It mounts something at [`MPS_PIPES`] or below it.
    Pipes,
}

impl fmt::Display for MpsConflict {
    /// What is in the way, and what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostIpc => write!(
                f,
                "its pod has `hostIPC`, and a client of MPS needs its server's {MPS_SHARED_MEMORY} in place of the host's: take \
                 `hostIPC` off"
            ),
            Self::SharedMemory => write!(
                f,
                "the container mounts something of its own at, above or below {MPS_SHARED_MEMORY}, where a client of MPS needs its \
                 server's memory: take that mount off"
            ),
            Self::Pipes => write!(
                f,
                "the container mounts something of its own at or below {MPS_PIPES}, where a client of MPS needs its pipes: mount it \
                 elsewhere"
            ),
        }
    }
}

impl Pod {
    /// The containers that cannot be clients of MPS, by name.
    pub fn mps_conflicts(&self) -> BTreeMap<String, MpsConflict> {
        let mut conflicts = BTreeMap::new();
        for container in self.spec.init_containers.iter().chain(&self.spec.containers) {
            let of_pod = self.spec.host_ipc.then_some(MpsConflict::HostIpc);
            if let Some(conflict) = of_pod.or_else(|| container.mps_conflict()) {
                conflicts.insert(container.name.clone(), conflict);
            }
        }
        conflicts
    }
}

impl Container {
    fn mps_conflict(&self) -> Option<MpsConflict> {
        let mounts = self.volume_mounts.iter().map(|mount| mount.mount_path.as_str());
        let devices = self.volume_devices.iter().map(|device| device.device_path.as_str());
        mounts.chain(devices).filter(|path| !path.is_empty()).find_map(conflict)
    }
}

fn conflict(path: &str) -> Option<MpsConflict> {
    let path = parts(path);
    let memory = parts(MPS_SHARED_MEMORY);
    let pipes = parts(MPS_PIPES);
    if begin_alike(&path, &memory) {
        return Some(MpsConflict::SharedMemory);
    }
    (begin_alike(&path, &pipes) && path.len() >= pipes.len()).then_some(MpsConflict::Pipes)
}

/// Whether one path is the other or is below it.
fn begin_alike(one: &[&str], other: &[&str]) -> bool {
    one.iter().zip(other).all(|(one, other)| one == other)
}

/// The parts of an absolute path, as the container runtime reads it: the kubelet takes a relative one from the root.
fn parts(path: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_at_above_or_below_the_shared_memory_is_in_its_way_however_it_is_written() {
        for path in [
            "/dev/shm",
            "/dev/shm/",
            "//dev/./shm",
            "dev/shm",
            "/dev/x/../shm",
            "/../dev/shm",
            "/dev",
            "/",
            "/dev/shm/cache",
        ] {
            assert_eq!(conflict(path), Some(MpsConflict::SharedMemory), "{path}");
        }
        for path in ["/dev/shm2", "/devices", "/dev/shared", "/data/dev/shm", "/dev/mqueue"] {
            assert_eq!(conflict(path), None, "{path}");
        }
    }

    #[test]
    fn what_is_at_or_below_the_pipes_is_in_their_way_and_a_volume_above_takes_them_in() {
        for path in ["/run/nvidia-mps", "/run/nvidia-mps/", "/run/nvidia-mps/log"] {
            assert_eq!(conflict(path), Some(MpsConflict::Pipes), "{path}");
        }
        for path in ["/run", "/run/nvidia", "/run/nvidia-mps-2"] {
            assert_eq!(conflict(path), None, "{path}");
        }
    }
}
