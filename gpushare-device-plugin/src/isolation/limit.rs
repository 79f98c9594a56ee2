//! The limit of a container on each of its GPUs, and its CDI device.
//!
//! A limit is a device of our CDI kind, named by its values, since the environment of a CDI specification overrides the
//! pod's own. Invariant: the name contains all values, so the device of an earlier process can be written again from
//! its name.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use cluster::{MPS_PIPES as PIPES_INSIDE, MPS_SHARED_MEMORY};
use placement::units::MiB;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Isolation;
use super::support::{pipes, shared_memory};

/// NVIDIA's container toolkit reads this from the container's OCI specification, in MiB, and has the driver limit the
/// container's control group.
const MEMORY_LIMIT: &str = "NVIDIA_GPU_MEMORY_LIMIT";
/// What the driver reserves, in MiB; NVIDIA's hook does nothing without it. Reserved is nothing: the driver adds it to
/// `dmem.min` of all groups above the container's, and takes it off there only when it is set to 0 before the group
/// goes, which no container runtime does
/// (<https://docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html>). Units are what keeps memory for a pod.
const NOTHING_RESERVED: &str = "NVIDIA_GPU_MEMORY_REQUEST=0";
/// The memory limit of an MPS client, for each GPU ordinal that the client sees: `0=4096M`.
const MPS_MEMORY_LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
/// The largest percentage of the multiprocessors that a client of MPS uses.
const MPS_THREADS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
/// The folder with the pipes of a client's MPS server.
const MPS_PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// The largest number of GPUs of a container: more than any machine has.
const MAX_GPUS: u32 = 64;

/// The limit of a container on each of its GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Limit {
    /// Memory by the driver.
    Driver {
        /// Memory that the container can use of each GPU.
        limit: MiB,
    },
    /// Memory and compute by MPS.
    Mps(MpsLimit),
    /// Memory by the driver and by MPS, compute by MPS.
    DriverAndMps(MpsLimit),
}

/// The limit of a client of MPS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MpsLimit {
    /// The number of GPUs that the container sees.
    pub gpus: u32,
    /// Memory that each of its processes can use of each GPU.
    pub limit: MiB,
    /// Percent of each GPU's multiprocessors, 1 to 100; 100 is no limit.
    pub threads: u32,
}

/// A text that is not the name of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a limit")]
pub struct NotALimit;

impl fmt::Display for Limit {
    /// The name of its CDI device.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver { limit } => write!(f, "driver-{}", limit.0),
            Self::Mps(mps) => write!(f, "mps-{mps}"),
            Self::DriverAndMps(mps) => write!(f, "driver-mps-{mps}"),
        }
    }
}

impl fmt::Display for MpsLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.gpus, self.limit.0, self.threads)
    }
}

impl From<Limit> for String {
    fn from(limit: Limit) -> Self {
        limit.to_string()
    }
}

impl TryFrom<String> for Limit {
    type Error = NotALimit;

    fn try_from(name: String) -> Result<Self, NotALimit> {
        name.parse()
    }
}

impl FromStr for Limit {
    type Err = NotALimit;

    fn from_str(name: &str) -> Result<Self, NotALimit> {
        let parts: Vec<&str> = name.split('-').collect();
        let limit = match parts[..] {
            ["driver", limit] => Self::Driver { limit: MiB(number(limit)?) },
            ["mps", gpus, limit, threads] => Self::Mps(mps_limit(gpus, limit, threads)?),
            ["driver", "mps", gpus, limit, threads] => {
                Self::DriverAndMps(mps_limit(gpus, limit, threads)?)
            }
            _ => return Err(NotALimit),
        };
        // Each limit has one name: no signs, no leading zeros.
        if limit.to_string() == name { Ok(limit) } else { Err(NotALimit) }
    }
}

fn mps_limit(gpus: &str, limit: &str, threads: &str) -> Result<MpsLimit, NotALimit> {
    let gpus = number(gpus)?;
    if gpus > MAX_GPUS {
        return Err(NotALimit);
    }
    Ok(MpsLimit { gpus, limit: MiB(number(limit)?), threads: number(threads)? })
}

fn number<N: FromStr>(text: &str) -> Result<N, NotALimit> {
    text.parse().map_err(|_| NotALimit)
}

impl Limit {
    /// The limit in this mode; `None` without one. `compute`: MPS also holds the container to its part of the compute.
    /// Its limit of memory is then given to MPS as well: a client's memory may be charged to the server's control
    /// group.
    pub fn of(isolation: Isolation, compute: bool, mps: MpsLimit) -> Option<Self> {
        match isolation {
            Isolation::None => None,
            Isolation::Driver if compute => Some(Self::DriverAndMps(mps)),
            Isolation::Driver => Some(Self::Driver { limit: mps.limit }),
            Isolation::Mps => Some(Self::Mps(mps)),
        }
    }

    /// The memory of each GPU to which the driver holds the container; `None` if it does not.
    pub fn by_driver(self) -> Option<MiB> {
        match self {
            Self::Driver { limit } | Self::DriverAndMps(MpsLimit { limit, .. }) => Some(limit),
            Self::Mps(_) => None,
        }
    }

    /// What MPS holds the container to; `None` if it is no client of MPS.
    pub fn by_mps(self) -> Option<MpsLimit> {
        match self {
            Self::Mps(mps) | Self::DriverAndMps(mps) => Some(mps),
            Self::Driver { .. } => None,
        }
    }

    /// Its CDI device; `mps` is the folder of MPS on the host.
    pub fn device(&self, mps: Option<&Path>) -> Value {
        let mut env = Vec::new();
        if let Some(limit) = self.by_driver() {
            env.push(NOTHING_RESERVED.to_owned());
            env.push(format!("{MEMORY_LIMIT}={}", limit.0));
        }
        let Some(MpsLimit { gpus, limit, threads }) = self.by_mps() else {
            return json!({ "name": self.to_string(), "containerEdits": { "env": env } });
        };
        let limits: Vec<String> = (0..gpus).map(|gpu| format!("{gpu}={}M", limit.0)).collect();
        env.push(format!("{MPS_PIPES}={PIPES_INSIDE}"));
        env.push(format!("{MPS_MEMORY_LIMIT}={}", limits.join(",")));
        if threads < 100 {
            env.push(format!("{MPS_THREADS}={threads}"));
        }
        let edits = json!({ "env": env, "mounts": mps.map(mounts).unwrap_or_default() });
        json!({ "name": self.to_string(), "containerEdits": edits })
    }
}

/// Clients open the pipes and connect to the sockets, and make none. On a read-only mount they can do that, and neither
/// remove the daemon's nor put their own in their place. NVIDIA's container toolkit mounts them read-only too.
fn mounts(mps: &Path) -> Vec<Value> {
    // MPS's clients and servers share memory besides the pipes.
    vec![
        mount(&pipes(mps), PIPES_INSIDE, "ro"),
        mount(&shared_memory(mps), MPS_SHARED_MEMORY, "rw"),
    ]
}

fn mount(host: &Path, inside: &str, access: &str) -> Value {
    let options = [access, "nosuid", "nodev", "noexec", "bind"];
    json!({ "hostPath": host, "containerPath": inside, "options": options })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_driver_is_told_the_limit_in_mib_and_to_reserve_nothing() {
        let limit = Limit::Driver { limit: MiB(6144) };
        let expected = json!({ "name": "driver-6144", "containerEdits": { "env": [
            "NVIDIA_GPU_MEMORY_REQUEST=0", "NVIDIA_GPU_MEMORY_LIMIT=6144",
        ] } });
        assert_eq!(limit.device(None), expected);
    }

    #[test]
    fn one_device_has_the_drivers_limit_and_that_of_mps() {
        let share = MpsLimit { gpus: 1, limit: MiB(4096), threads: 25 };
        let device = Limit::DriverAndMps(share).device(Some(Path::new("/run/plimsoll-mps")));
        assert_eq!(device["name"], "driver-mps-1-4096-25");
        let by_driver = Limit::Driver { limit: MiB(4096) }.device(None);
        let by_mps = Limit::Mps(share).device(Some(Path::new("/run/plimsoll-mps")));
        let env = |device: &Value| device["containerEdits"]["env"].as_array().unwrap().clone();
        assert_eq!(env(&device), [env(&by_driver), env(&by_mps)].concat());
        assert_eq!(device["containerEdits"]["mounts"], by_mps["containerEdits"]["mounts"]);
    }

    #[test]
    fn mps_is_told_the_limit_of_each_gpu_and_its_pipes_are_mounted() {
        let limit = Limit::Mps(MpsLimit { gpus: 2, limit: MiB(4096), threads: 25 });
        let device = limit.device(Some(Path::new("/run/plimsoll-mps")));
        let edits = &device["containerEdits"];
        assert_eq!(
            edits["env"],
            json!([
                "CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps",
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M,1=4096M",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25",
            ])
        );
        let pipes = json!({
            "hostPath": "/run/plimsoll-mps/pipe",
            "containerPath": "/run/nvidia-mps",
            "options": ["ro", "nosuid", "nodev", "noexec", "bind"],
        });
        let memory = json!({
            "hostPath": "/run/plimsoll-mps/shm",
            "containerPath": "/dev/shm",
            "options": ["rw", "nosuid", "nodev", "noexec", "bind"],
        });
        assert_eq!(edits["mounts"], json!([pipes, memory]));
        let whole = Limit::Mps(MpsLimit { gpus: 1, limit: MiB(4096), threads: 100 });
        assert!(!whole.device(None).to_string().contains("THREAD"), "the whole GPU is no limit");
    }

    #[test]
    fn other_names_are_no_limits() {
        for name in [
            "mps-65-1-1",
            "GPU-a1b2",
            "driver-01",
            "driver-+1",
            "driver-1-2",
            "driver-mps-1-2",
            "driver-mps-65-1-1",
            "mps-driver-1-2-3",
            "mps-1-2",
            "none-1",
            "driver-1-2-3",
            "",
        ] {
            assert_eq!(name.parse::<Limit>(), Err(NotALimit), "{name}");
        }
    }

    proptest! {
        #[test]
        fn a_limit_reads_back_from_its_name(limit: u64, gpus in 0_u32..=64, threads: u32) {
            let mps = MpsLimit { gpus, limit: MiB(limit), threads };
            let limits = [
                Limit::Driver { limit: MiB(limit) },
                Limit::Mps(mps),
                Limit::DriverAndMps(mps),
            ];
            for limit in limits {
                prop_assert_eq!(limit.to_string().parse(), Ok(limit));
            }
        }
    }
}
