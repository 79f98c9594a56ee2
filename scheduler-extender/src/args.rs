//! The flags, each also an environment variable.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, fmt::friendly::SpanParser};
use placement::names::Names;

/// Answers kube-scheduler's extender calls: which nodes are not overloaded, which are best, and on
/// which GPU card a pod goes.
///
/// kube-scheduler needs two entries under `extenders` in its KubeSchedulerConfiguration, both with
/// `nodeCacheCapable: true`: one for all pods at http://HOST:19100/load-aware (filter, prioritize),
/// and one for GPU pods at http://HOST:19100/gpushare-scheduler (filter, bind).
#[derive(Debug, Clone, Parser)]
#[command(version, about, long_about)]
pub struct Args {
    /// Where to answer kube-scheduler.
    #[arg(
        long,
        env = "PLIMSOLL_LISTEN_ADDRESS",
        default_value = "0.0.0.0:19100",
        value_name = "IP:PORT"
    )]
    pub listen_address: SocketAddr,

    /// The load policy (crane's DynamicSchedulerPolicy in YAML). Read again when it changes; a
    /// faulty change is logged and counted, and the policy before it stays.
    #[arg(
        long,
        env = "PLIMSOLL_POLICY_FILE",
        default_value = "/etc/plimsoll/policy.yaml",
        value_name = "PATH"
    )]
    pub policy_file: PathBuf,

    /// How long a Bind call may take. Keep it below the httpTimeout of kube-scheduler's extender
    /// entry (5s by default): an answer that comes too late is no answer.
    #[arg(
        long,
        env = "PLIMSOLL_BIND_TIMEOUT",
        default_value = "4s",
        value_parser = duration,
        value_name = "DURATION"
    )]
    pub bind_timeout: Duration,

    /// The API server's address and credentials [default: the pod's own service account].
    #[arg(long, env = "PLIMSOLL_KUBECONFIG", value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,

    /// The time zone of the times in load annotations. They are written as if they were UTC, so the
    /// annotator and this must agree; crane's own default is Asia/Shanghai.
    #[arg(
        long,
        env = "PLIMSOLL_TIME_ZONE",
        default_value = "UTC",
        value_parser = zone,
        value_name = "ZONE"
    )]
    pub time_zone: TimeZone,

    /// The names on the wire.
    #[command(flatten)]
    pub names: NameArgs,

    /// Logs and the admin endpoints.
    #[command(flatten)]
    pub daemon: daemon::DaemonArgs<19102>,
}

/// The names on the wire. Every Plimsoll program of a cluster must be given the same.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Names")]
pub struct NameArgs {
    /// The resource that pods ask for, in units of GPU memory.
    #[arg(
        long,
        env = "PLIMSOLL_GPU_RESOURCE",
        default_value = "aliyun.com/gpu-mem",
        value_name = "RESOURCE"
    )]
    pub gpu_resource: String,

    /// The resource that tells how many cards a node has.
    #[arg(
        long,
        env = "PLIMSOLL_GPU_COUNT_RESOURCE",
        default_value = "aliyun.com/gpu-count",
        value_name = "RESOURCE"
    )]
    pub gpu_count_resource: String,

    /// The domain of our own annotations.
    #[arg(
        long,
        env = "PLIMSOLL_ANNOTATION_PREFIX",
        default_value = "plimsoll.dev",
        value_name = "DOMAIN"
    )]
    pub annotation_prefix: String,
}

impl NameArgs {
    /// The same as placement's type.
    #[must_use]
    pub fn names(&self) -> Names {
        Names::new(&self.gpu_resource, &self.gpu_count_resource, &self.annotation_prefix)
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed: SignedDuration = SpanParser::new()
        .parse_duration(text)
        .map_err(|_| "expected a duration such as `4s` or `1500ms`".to_owned())?;
    let positive = Duration::try_from(parsed).ok().filter(|d| !d.is_zero());
    positive.ok_or_else(|| "expected a duration above 0".to_owned())
}

fn zone(text: &str) -> Result<TimeZone, String> {
    // The default must work where there is no time zone database.
    if text == "UTC" {
        return Ok(TimeZone::UTC);
    }
    TimeZone::get(text).map_err(|_| {
        "unknown; expected a name of the time zone database, such as `UTC` or `Asia/Shanghai` \
         (names other than UTC need /usr/share/zoneinfo)"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(flags: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from([&["scheduler-extender"], flags].concat())
    }

    #[test]
    fn the_flags_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_defaults_are_the_fields_own() {
        let args = parse(&[]).unwrap();
        assert_eq!(args.listen_address.port(), 19100);
        assert_eq!(args.bind_timeout, Duration::from_secs(4));
        assert_eq!(args.names.names(), Names::default());
        assert_eq!(args.time_zone, TimeZone::UTC);
    }

    #[test]
    fn a_deadline_that_is_none_is_refused() {
        for text in ["0s", "-1s", "4", "soon"] {
            assert!(parse(&["--bind-timeout", text]).is_err(), "{text}");
        }
        assert!(parse(&["--bind-timeout=1500ms"]).is_ok());
    }

    #[test]
    fn an_unknown_zone_is_refused() {
        assert!(parse(&["--time-zone=Mars/Olympus"]).is_err());
    }
}
