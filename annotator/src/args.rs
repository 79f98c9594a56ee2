//! The flags, each also an environment variable.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use jiff::tz::TimeZone;
use placement::names::Names;

/// Writes each node's load on the Node object, where kube-scheduler's extender finds it.
///
/// Asks node-exporter-plus on every node for the metrics that the policy's syncPolicy names, as
/// often as it says, and writes them as annotations in crane's format, together with the node's hot
/// value and the share of each GPU card that pods hold. A node whose exporter does not answer is
/// left alone: its last readings expire by themselves.
#[derive(Debug, Clone, Parser)]
#[command(version, about, long_about)]
pub struct Args {
    /// The load policy (crane's DynamicSchedulerPolicy in YAML). Read again when it changes; a
    /// faulty change is logged and counted, and the policy before it stays.
    #[arg(
        long,
        env = "PLIMSOLL_POLICY_FILE",
        default_value = "/etc/plimsoll/policy.yaml",
        value_name = "PATH"
    )]
    pub policy_file: PathBuf,

    /// The port at which each node's exporter answers, on the node's InternalIP. A Node annotation
    /// <prefix>/exporter: "host:port" says otherwise for one node; whoever may write it chooses
    /// where this program sends its requests.
    #[arg(
        long,
        env = "PLIMSOLL_EXPORTER_PORT",
        default_value_t = 19101,
        value_parser = clap::value_parser!(u16).range(1..),
        value_name = "PORT"
    )]
    pub exporter_port: u16,

    /// How long an exporter may take to answer.
    #[arg(
        long,
        env = "PLIMSOLL_POLL_TIMEOUT",
        default_value = "3s",
        value_parser = positive,
        value_name = "DURATION"
    )]
    pub poll_timeout: Duration,

    /// How many nodes are asked and written at the same time.
    #[arg(
        long,
        env = "PLIMSOLL_CONCURRENCY",
        default_value_t = 32,
        value_parser = clap::value_parser!(u16).range(1..),
        value_name = "NODES"
    )]
    pub concurrency: u16,

    /// The API server's address and credentials [default: the pod's own service account].
    #[arg(long, env = "PLIMSOLL_KUBECONFIG", value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,

    /// The time zone of the times in load annotations. They are written as if they were UTC, so the
    /// extender and this must agree; crane's own default is Asia/Shanghai.
    #[arg(
        long,
        env = "PLIMSOLL_TIME_ZONE",
        default_value = "UTC",
        value_parser = zone,
        value_name = "ZONE"
    )]
    pub time_zone: TimeZone,

    /// The resource that pods ask for, in units of GPU memory.
    #[arg(
        long,
        env = "PLIMSOLL_GPU_RESOURCE",
        default_value = "aliyun.com/gpu-mem",
        value_name = "RESOURCE"
    )]
    pub gpu_resource: String,

    /// The domain of our own annotations.
    #[arg(
        long,
        env = "PLIMSOLL_ANNOTATION_PREFIX",
        default_value = "plimsoll.dev",
        value_name = "DOMAIN"
    )]
    pub annotation_prefix: String,

    /// Logs and the admin endpoints.
    #[command(flatten)]
    pub daemon: daemon::DaemonArgs<19103>,
}

impl Args {
    /// The names on the wire. Nothing here reads or writes the number of cards.
    #[must_use]
    pub fn names(&self) -> Names {
        let unused = Names::default();
        Names::new(&self.gpu_resource, unused.gpu_count_resource(), &self.annotation_prefix)
    }
}

fn positive(text: &str) -> Result<Duration, String> {
    let parsed = daemon::duration(text).map_err(|error| error.to_string())?;
    if parsed.is_zero() { Err("expected a duration above 0".to_owned()) } else { Ok(parsed) }
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
        Args::try_parse_from([&["annotator"], flags].concat())
    }

    #[test]
    fn the_flags_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_defaults_are_the_fields_own() {
        let args = parse(&[]).unwrap();
        assert_eq!(args.names(), Names::default());
        assert_eq!((args.exporter_port, args.concurrency), (19101, 32));
        assert_eq!(args.poll_timeout, Duration::from_secs(3));
        assert_eq!(args.time_zone, TimeZone::UTC);
        assert_eq!(args.daemon.settings().admin.port(), 19103);
    }

    #[test]
    fn what_could_never_work_is_refused() {
        for flag in [
            "--poll-timeout=0s",
            "--poll-timeout=3",
            "--concurrency=0",
            "--exporter-port=0",
            "--time-zone=Mars/Olympus",
        ] {
            assert!(parse(&[flag]).is_err(), "{flag}");
        }
    }
}
