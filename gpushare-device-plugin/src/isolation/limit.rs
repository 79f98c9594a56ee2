//! The limit of a container on each of its cards, and its CDI device.
//!
//! A limit is a device of our CDI kind, named by its values, since the environment of a CDI specification overrides the
//! pod's own. Invariant: the name contains all values, so the device of an earlier process can be written again from
//! its name.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use cluster::{MPS_PIPES as PIPES_INSIDE, MPS_SHARED_MEMORY};
use placement::units::MiB;
use serde_json::{Value, json};

use super::support::{pipes, shared_memory};

/// NVIDIA's container toolkit reads these two from the container's OCI specification, in MiB, and has the driver limit
/// the container's control group.
const MEMORY_REQUEST: &str = "NVIDIA_GPU_MEMORY_REQUEST";
/// See [`MEMORY_REQUEST`].
const MEMORY_LIMIT: &str = "NVIDIA_GPU_MEMORY_LIMIT";
/// The memory limit of an MPS client, for each card ordinal that the client sees: `0=4096M`.
const MPS_MEMORY_LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
/// The largest percentage of the multiprocessors that a client of MPS uses.
const MPS_THREADS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
/// The folder with the pipes of a client's MPS server.
const MPS_PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// The largest number of cards of a container: more than any machine has.
const MAX_CARDS: u64 = 64;

/// The limit of a container on each of its cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limit {
    /// By the driver.
    Driver {
        /// Memory that is reserved.
        request: MiB,
        /// Memory that the container can use, at least `request`.
        limit: MiB,
    },
    /// By MPS.
    Mps {
        /// The number of cards that the container sees.
        cards: u32,
        /// Memory that the container can use on each.
        limit: MiB,
        /// Percent of each card's multiprocessors, 1 to 100; 100 is no limit.
        threads: u32,
    },
}

/// A text that is not the name of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a limit")]
pub struct NotALimit;

impl fmt::Display for Limit {
    /// The name of its CDI device.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver { request, limit } => write!(f, "driver-{}-{}", request.0, limit.0),
            Self::Mps { cards, limit, threads } => write!(f, "mps-{cards}-{}-{threads}", limit.0),
        }
    }
}

impl FromStr for Limit {
    type Err = NotALimit;

    fn from_str(name: &str) -> Result<Self, NotALimit> {
        let (mode, numbers) = name.split_once('-').ok_or(NotALimit)?;
        let numbers: Vec<u64> =
            numbers.split('-').map(str::parse).collect::<Result<_, _>>().map_err(|_| NotALimit)?;
        let limit = match (mode, &numbers[..]) {
            ("driver", &[request, limit]) => {
                Self::Driver { request: MiB(request), limit: MiB(limit) }
            }
            ("mps", &[cards @ 0..=MAX_CARDS, limit, threads]) => {
                Self::Mps { cards: small(cards)?, limit: MiB(limit), threads: small(threads)? }
            }
            _ => return Err(NotALimit),
        };
        // Each limit has one name: no signs, no leading zeros.
        if limit.to_string() == name { Ok(limit) } else { Err(NotALimit) }
    }
}

fn small(number: u64) -> Result<u32, NotALimit> {
    u32::try_from(number).map_err(|_| NotALimit)
}

impl Limit {
    /// Whether programs of the container are to be clients of MPS.
    pub fn is_by_mps(self) -> bool {
        matches!(self, Self::Mps { .. })
    }

    /// Its CDI device; `mps` is the folder of MPS on the host.
    pub fn device(&self, mps: Option<&Path>) -> Value {
        let edits = match *self {
            Self::Driver { request, limit } => json!({ "env": [
                format!("{MEMORY_REQUEST}={}", request.0),
                format!("{MEMORY_LIMIT}={}", limit.0),
            ] }),
            Self::Mps { cards, limit, threads } => {
                let limits: Vec<String> =
                    (0..cards).map(|card| format!("{card}={}M", limit.0)).collect();
                let mut env = vec![
                    format!("{MPS_PIPES}={PIPES_INSIDE}"),
                    format!("{MPS_MEMORY_LIMIT}={}", limits.join(",")),
                ];
                if threads < 100 {
                    env.push(format!("{MPS_THREADS}={threads}"));
                }
                json!({ "env": env, "mounts": mps.map(mounts).unwrap_or_default() })
            }
        };
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
    fn the_driver_is_told_request_and_limit_in_mib() {
        let limit = Limit::Driver { request: MiB(4096), limit: MiB(6144) };
        let expected = json!({ "name": "driver-4096-6144", "containerEdits": { "env": [
            "NVIDIA_GPU_MEMORY_REQUEST=4096", "NVIDIA_GPU_MEMORY_LIMIT=6144",
        ] } });
        assert_eq!(limit.device(None), expected);
    }

    #[test]
    fn mps_is_told_the_limit_of_each_card_and_its_pipes_are_mounted() {
        let limit = Limit::Mps { cards: 2, limit: MiB(4096), threads: 25 };
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
        let whole = Limit::Mps { cards: 1, limit: MiB(4096), threads: 100 };
        assert!(!whole.device(None).to_string().contains("THREAD"), "the whole card is no limit");
    }

    #[test]
    fn other_names_are_no_limits() {
        for name in [
            "mps-65-1-1",
            "GPU-a1b2",
            "driver-1",
            "driver-01-2",
            "driver-+1-2",
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
        fn a_limit_reads_back_from_its_name(a: u64, b: u64, cards in 0_u32..=64, threads: u32) {
            let limits = [
                Limit::Driver { request: MiB(a), limit: MiB(b) },
                Limit::Mps { cards, limit: MiB(a), threads },
            ];
            for limit in limits {
                prop_assert_eq!(limit.to_string().parse(), Ok(limit));
            }
        }
    }
}
