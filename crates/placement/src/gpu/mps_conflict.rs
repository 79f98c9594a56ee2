//! What a container has of its own at the paths where a client of NVIDIA's MPS needs mounts.
//!
//! A CDI device replaces a mount of the pod at the same path, so such a container cannot have both.

use std::fmt;

use super::ContainerRequest;

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

impl MpsConflict {
    /// What is in the way of a container with mounts and devices at these paths, in a pod with or without `hostIPC`.
    pub fn find<'p>(host_ipc: bool, paths: impl IntoIterator<Item = &'p str>) -> Option<Self> {
        let of_pod = host_ipc.then_some(Self::HostIpc);
        of_pod.or_else(|| paths.into_iter().filter(|path| !path.is_empty()).find_map(conflict))
    }
}

/// Whether a container that may share its GPUs cannot be a client of MPS, where `has_conflict` tells which have one.
pub fn excludes_mps(
    asks: &[ContainerRequest],
    has_conflict: impl Fn(&ContainerRequest) -> bool,
) -> bool {
    asks.iter().any(|ask| !ask.gpu_use.exclusive && has_conflict(ask))
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
