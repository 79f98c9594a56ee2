//! Flags, each also an environment variable `PLIMSOLL_<FLAG>`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use placement::units::NodeName;
use settings::{ApiArgs, NameArgs};

use crate::container::Mode;

/// Offers GPU memory to the kubelet and gives each container the card of its pod's claim.
///
/// Runs on every GPU node as a DaemonSet. Cards come from NVML, claims from the
/// scheduler-extender's binding. Pods that the extender did not bind are refused with an event that
/// says so.
#[derive(Debug, Clone, Parser)]
#[command(version, max_term_width = 100)]
pub struct Args {
    /// This node's name in the cluster, from the downward API (spec.nodeName).
    #[arg(long, env = "PLIMSOLL_NODE_NAME", value_name = "NAME")]
    pub node_name: String,

    /// The kubelet's folder for device plugins, with its kubelet.sock.
    #[arg(
        long,
        env = "PLIMSOLL_DEVICE_PLUGIN_DIR",
        default_value = "/var/lib/kubelet/device-plugins",
        value_name = "DIR"
    )]
    pub device_plugin_dir: PathBuf,

    /// The socket of the kubelet's PodResources API.
    #[arg(
        long,
        env = "PLIMSOLL_POD_RESOURCES_SOCKET",
        default_value = "/var/lib/kubelet/pod-resources/kubelet.sock",
        value_name = "SOCKET"
    )]
    pub pod_resources_socket: PathBuf,

    /// How a container is given its card.
    #[arg(long, env = "PLIMSOLL_RESPONSE", value_enum, default_value_t = Mode::Cdi)]
    pub response: Mode,

    /// Folder of CDI specifications that the container runtime reads; ours is written here.
    #[arg(long, env = "PLIMSOLL_CDI_DIR", default_value = "/var/run/cdi", value_name = "DIR")]
    pub cdi_dir: PathBuf,

    /// Kind of the CDI devices in NVIDIA's own specification, one for each card, named by UUID.
    #[arg(
        long,
        env = "PLIMSOLL_NVIDIA_CDI_KIND",
        default_value = "nvidia.com/gpu",
        value_name = "VENDOR/CLASS"
    )]
    pub nvidia_cdi_kind: String,

    /// NVIDIA's management library: a path, or a name that the loader finds.
    #[arg(long, env = "PLIMSOLL_NVML_LIBRARY", default_value = nvml::DEFAULT_LIBRARY, value_name = "LIBRARY")]
    pub nvml_library: PathBuf,

    /// Card memory of one unit, in MiB; the same on all nodes of a cluster. At least 256, since the
    /// kubelet writes every unit's id into its pod's status.
    #[arg(
        long,
        env = "PLIMSOLL_UNIT_MIB",
        default_value_t = 1024,
        value_parser = clap::value_parser!(u64).range(256..=1 << 20),
        value_name = "MIB"
    )]
    pub unit_mib: u64,

    /// Time between two polls of each card's health, 100 ms to an hour.
    #[arg(
        long,
        env = "PLIMSOLL_HEALTH_INTERVAL",
        default_value = "5s",
        value_parser = health_interval,
        value_name = "DURATION"
    )]
    pub health_interval: Duration,

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
    /// The name of `--node-name`.
    pub fn node(&self) -> NodeName {
        NodeName::from(self.node_name.as_str())
    }
}

fn health_interval(text: &str) -> Result<Duration, String> {
    let interval = daemon::duration(text).map_err(|error| error.to_string())?;
    let allowed = Duration::from_millis(100)..=Duration::from_secs(3600);
    let wrong = || format!("`{text}`: expected a duration from 100ms to 1h");
    allowed.contains(&interval).then_some(interval).ok_or_else(wrong)
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
    }

    #[test]
    fn a_unit_below_256_mib_is_refused() {
        assert!(parse(&["--unit-mib=255"]).is_err());
        assert!(parse(&["--unit-mib=256"]).is_ok());
    }

    #[test]
    fn health_intervals_are_durations_of_at_most_an_hour() {
        let parsed = |text| parse(&["--health-interval", text]).map(|args| args.health_interval);
        assert_eq!(parsed("0.5s").unwrap(), Duration::from_millis(500));
        assert_eq!(parsed("5m").unwrap(), Duration::from_secs(300));
        for wrong in ["0s", "99ms", "61m", "5", "nan", "-1s", ""] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
