//! Flags, each also an environment variable `PLIMSOLL_<FLAG>`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use placement::units::NodeName;
use settings::{ApiArgs, NameArgs};

use crate::admission::unclaimed::UnclaimedAction;
use crate::container::Mode;
use crate::host::HostPaths;
use crate::isolation::{MinIsolation, Policy, UnavailableAction};

/// Offers GPU memory to the kubelet and gives each container the GPU of its pod's claim.
///
/// Runs on every GPU node as a DaemonSet. GPUs come from NVML, claims from the
/// scheduler-extender's binding. Pods that the extender did not bind are refused with an event that
/// says so.
#[derive(Debug, Clone, Parser)]
#[command(version, max_term_width = 100)]
pub struct Args {
    /// This node's name in the cluster, from the downward API (spec.nodeName).
    #[arg(long, env = "PLIMSOLL_NODE_NAME", value_name = "NAME")]
    pub node_name: String,

    /// The folder that has the host's root, or what is needed of it: var/lib/kubelet/device-plugins,
    /// var/lib/kubelet/pod-resources, with --claims var/lib/kubelet/plugins_registry, var/run/cdi, sys/fs/cgroup,
    /// run/plimsoll-gpu, sys/bus/pci and proc. In a container, mount the host's there; its own /sys/fs/cgroup shows no
    /// other pod.
    #[arg(long, env = "PLIMSOLL_HOST_ROOT", default_value = "/", value_name = "DIR")]
    pub host_root: PathBuf,

    /// Serve shares of GPUs to ResourceClaims (DRA), on nodes with the label plimsoll.dev/gpu-mode=claims: see
    /// docs/claims.md.
    #[arg(long, env = "PLIMSOLL_CLAIMS")]
    pub claims: bool,

    /// How a container is given its GPU.
    #[arg(long, env = "PLIMSOLL_RESPONSE", value_enum, default_value_t = Mode::Cdi)]
    pub response: Mode,

    /// Folders of CDI specifications in the container runtime's order, separated by commas: the last goes first.
    /// NVIDIA's specification is looked for there, and what is wrong with it becomes an event on the Node.
    #[arg(
        long,
        env = "PLIMSOLL_NVIDIA_CDI_DIRS",
        default_value = "/etc/cdi,/var/run/cdi",
        value_delimiter = ',',
        value_name = "DIRS"
    )]
    pub nvidia_cdi_dirs: Vec<PathBuf>,

    /// What is done with a pod that something else than the scheduler-extender bound, as where its spec names the node:
    /// it is refused, or put on a GPU with room that takes new pods, and its claim written. A pod that the extender
    /// reserves the same room for is refused then. To place pods, lift the admission policy plimsoll-node-name too.
    #[arg(long, env = "PLIMSOLL_UNCLAIMED_PODS", value_enum, default_value_t = UnclaimedAction::Refuse)]
    pub unclaimed_pods: UnclaimedAction,

    /// What every container is held to at least, beyond which GPU it sees: its share of the GPU's memory, by NVIDIA's
    /// driver, by MPS, or not at all. `auto`: by what has been seen to hold without a setting of yours, which is
    /// nothing yet, so not at all: the driver's limit was tried on no GPU. A pod can ask for more by the annotation
    /// plimsoll.dev/gpu-isolation.
    #[arg(long, env = "PLIMSOLL_ISOLATION", value_enum, default_value_t = MinIsolation::Auto)]
    pub isolation: MinIsolation,

    /// What is done where --isolation cannot be enforced on this node: the next weaker mode is used and reported, or
    /// the container is refused. What a pod requires itself is never downgraded.
    #[arg(
        long,
        env = "PLIMSOLL_ISOLATION_UNAVAILABLE",
        value_enum,
        default_value_t = UnavailableAction::Downgrade
    )]
    pub isolation_unavailable: UnavailableAction,

    /// The host's folder of MPS, with the pipes of its control daemon in pipe/ and their shared memory in shm/, mounted
    /// here at the same path. The folder pipe/ is of the plugin's own user (root), and others cannot write there.
    /// Without it there is no MPS.
    #[arg(long, env = "PLIMSOLL_MPS_DIR", value_name = "DIR")]
    pub mps_dir: Option<PathBuf>,

    /// NVIDIA's management library: a path, or a name that the loader finds. Where a GPU of NVIDIA's is on the PCI bus
    /// and the library cannot be loaded for 15 minutes, the process ends: a container that was made before NVIDIA's
    /// runtime was set up never gets it.
    #[arg(long, env = "PLIMSOLL_NVML_LIBRARY", default_value = nvml::DEFAULT_LIBRARY, value_name = "LIBRARY")]
    pub nvml_library: PathBuf,

    /// The socket of `gpu-probe contexts`, which opens a CUDA context on a GPU to see whether programs of pods could.
    /// Two failures in a row close the GPU to new pods until a context opens. Without it no context is opened.
    #[arg(long, env = "PLIMSOLL_CONTEXT_PROBE_SOCKET", value_name = "SOCKET")]
    pub context_probe_socket: Option<PathBuf>,

    /// Whether the plugin is ready and idle on a node without a GPU: it offers nothing, asks the API server and the
    /// kubelet nothing, and looks again after 12 times --health-interval. For plugins that run on every node. A node
    /// with a display controller of NVIDIA's on its PCI bus has a GPU, also where --nvml-library does not tell of it.
    #[arg(long = "idle-without-cards", env = "PLIMSOLL_IDLE_WITHOUT_CARDS")]
    pub idle_without_gpus: bool,

    /// GPU memory of one unit, in MiB; the same on all nodes of a cluster. A node may have 32,768 units: each is a
    /// device in the list that the kubelet gets, and the device ids of a pod stand in the pod's status. A node with
    /// more offers no GPU, and the log names a unit that will do. Refused while containers of the node hold units of
    /// another size.
    #[arg(
        long,
        env = "PLIMSOLL_UNIT_MIB",
        default_value_t = 1024,
        value_parser = clap::value_parser!(u64).range(1..=1 << 20),
        value_name = "MIB"
    )]
    pub unit_mib: u64,

    /// Part of each GPU's memory that is not offered, in percent, beside what the driver keeps for itself by NVML,
    /// which is never offered.
    #[arg(
        long,
        env = "PLIMSOLL_RESERVE_PERCENT",
        default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=90),
        value_name = "PERCENT"
    )]
    pub reserve_percent: u8,

    /// Memory that pods may have of a GPU without memory of its own, in MiB: of a GPU that shares the host's memory,
    /// such as GB10. 0: such a GPU is not offered, and an event on the Node says so. The host's programs and the pods'
    /// other memory need the rest.
    #[arg(
        long,
        env = "PLIMSOLL_UNIFIED_MEMORY_MIB",
        default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(0..=1 << 30),
        value_name = "MIB"
    )]
    pub unified_memory_mib: u64,

    /// Time between two polls of each GPU's health, 100 ms to an hour. The processes on it are looked at half as
    /// often, where the pod is in the host's PID namespace (hostPID).
    #[arg(
        long,
        env = "PLIMSOLL_HEALTH_INTERVAL",
        default_value = "5s",
        value_parser = poll_interval,
        value_name = "DURATION"
    )]
    pub health_interval: Duration,

    /// Time between two comparisons of claims, the kubelet's records and the processes on the GPUs, 100 ms to an hour.
    /// What does not agree twice in a row is repaired, or told by an event.
    #[arg(
        long,
        env = "PLIMSOLL_AUDIT_INTERVAL",
        default_value = "60s",
        value_parser = poll_interval,
        value_name = "DURATION"
    )]
    pub audit_interval: Duration,

    /// Errors (XIDs) that say nothing about a GPU, separated by commas, beside those that applications cause: 13, 31,
    /// 43, 45, 68 and 109.
    #[arg(long, env = "PLIMSOLL_IGNORED_XIDS", value_delimiter = ',', value_name = "NUMBERS")]
    pub ignored_xids: Vec<u64>,

    /// Namespace of Aliyun's ConfigMap unhealthy-gpu-NODE. The GPUs that it lists take no pods, and unhealthy GPUs
    /// are written there. Without it the ConfigMap is left alone.
    #[arg(long, env = "PLIMSOLL_UNHEALTHY_GPUS_NAMESPACE", value_name = "NAMESPACE")]
    pub unhealthy_gpus_namespace: Option<String>,

    /// Whether the number of GPUs is written as aliyun.com/gpu-count into the Node's status, where Aliyun's tools read
    /// it. Needs the right to patch `nodes/status`.
    #[arg(long, env = "PLIMSOLL_REPORT_GPU_COUNT")]
    pub report_gpu_count: bool,

    /// How to reach the API server.
    #[command(flatten)]
    pub api: ApiArgs,

    /// The names on the wire.
    #[command(flatten)]
    pub names: NameArgs,

    /// Logs and the admin port, 19104 by default.
    #[command(flatten)]
    pub daemon: daemon::DaemonArgs<19104>,
}

impl Args {
    /// The policy of `--isolation` and `--isolation-unavailable`.
    pub fn isolation_policy(&self) -> Policy {
        Policy { minimum: self.isolation, unavailable: self.isolation_unavailable }
    }

    /// Where the host's files are.
    pub fn host(&self) -> HostPaths {
        HostPaths::below(&self.host_root)
    }

    /// The name of `--node-name`.
    pub fn node(&self) -> NodeName {
        NodeName::from(self.node_name.as_str())
    }
}

fn poll_interval(text: &str) -> Result<Duration, String> {
    let interval = daemon::duration(text).map_err(|error| error.to_string())?;
    let allowed = Duration::from_millis(100)..=Duration::from_secs(3600);
    if !allowed.contains(&interval) {
        return Err(format!("`{text}`: expected a duration from 100ms to 1h"));
    }
    Ok(interval)
}

#[cfg(test)]
mod tests {
    use placement::names::Names;

    use super::*;

    fn parse(flags: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from([&["gpushare-device-plugin", "--node-name=n"], flags].concat())
    }

    #[test]
    fn the_defaults_are_as_documented() {
        let args = parse(&[]).unwrap();
        assert_eq!(args.names.names(), Names::default());
        assert_eq!(
            (args.unit_mib, args.response, args.health_interval),
            (1024, Mode::Cdi, Duration::from_secs(5))
        );
        let socket = "/var/lib/kubelet/pod-resources/kubelet.sock";
        assert_eq!(args.host().pod_resources, PathBuf::from(socket));
    }

    #[test]
    fn a_unit_of_nothing_and_a_reserve_of_a_whole_gpu_are_refused() {
        assert!(parse(&["--unit-mib=0"]).is_err());
        assert!(parse(&["--unit-mib=1"]).is_ok());
        assert!(parse(&["--reserve-percent=91"]).is_err());
    }

    #[test]
    fn health_intervals_are_durations_of_at_most_an_hour() {
        let half_a_second = parse(&["--health-interval", "0.5s"]).unwrap();
        assert_eq!(half_a_second.health_interval, Duration::from_millis(500));
        let minutes = parse(&["--health-interval", "5m"]).unwrap();
        assert_eq!(minutes.health_interval, Duration::from_secs(300));
        for wrong in ["0s", "99ms", "61m", "5", "nan", "-1s", ""] {
            assert!(parse(&["--health-interval", wrong]).is_err(), "{wrong}");
        }
    }
}
