//! The flags, each also an environment variable.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::learned_use;
use clap::Parser;
use settings::{ApiArgs, LoadArgs, NameArgs};

/// Answers kube-scheduler's extender calls: which nodes are not overloaded, which are best, and on
/// which GPU card a pod goes.
///
/// kube-scheduler needs two entries under `extenders` in its KubeSchedulerConfiguration, both with
/// `nodeCacheCapable: true`: one for all pods at http://HOST:19100/load-aware (filter, prioritize,
/// preempt), and one for GPU pods at http://HOST:19100/gpushare-scheduler (filter, preempt, bind).
#[derive(Debug, Clone, Parser)]
#[command(version, about, long_about)]
pub struct Args {
    /// Where to answer kube-scheduler.
    #[arg(
        long,
        env = "PLIMSOLL_LISTEN_ADDRESS",
        default_value = "[::]:19100",
        value_name = "IP:PORT"
    )]
    pub listen_address: SocketAddr,

    /// The load policy and its time zone.
    #[command(flatten)]
    pub load: LoadArgs,

    /// A second policy that decides without effect, to try it on the real cluster: what would be
    /// otherwise is counted, and `plimsoll policy diff` shows it. Read again when it changes; the last
    /// good one stays. A missing or faulty file is logged, and does not keep this program from starting.
    #[arg(long, env = "PLIMSOLL_SHADOW_POLICY_FILE", value_name = "PATH")]
    pub shadow_policy_file: Option<PathBuf>,

    /// Let the node_hot_value annotation of crane's own annotator count against a node, beside the
    /// bindings that this program sees itself. For clusters where crane's components still run.
    #[arg(long, env = "PLIMSOLL_CRANE_HOT_VALUE")]
    pub crane_hot_value: bool,

    /// Where the annotator answers with what workloads were seen to use, such as `http://annotator.plimsoll.svc:19106`. Without it,
    /// pods that no reading shows yet are estimated from their requests and limits.
    #[arg(long, env = "PLIMSOLL_LEARNED_USE_URL", value_name = "URL", value_parser = learned_use::Url::parse)]
    pub learned_use_url: Option<learned_use::Url>,

    /// How long a Bind call may take. Keep it below the httpTimeout of kube-scheduler's extender
    /// entry (5s by default): an answer that comes too late is no answer.
    #[arg(
        long,
        env = "PLIMSOLL_BIND_TIMEOUT",
        default_value = "4s",
        value_parser = daemon::positive_duration,
        value_name = "DURATION"
    )]
    pub bind_timeout: Duration,

    /// The API server.
    #[command(flatten)]
    pub api: ApiArgs,

    /// The names on the wire.
    #[command(flatten)]
    pub names: NameArgs,

    /// Logs and the admin endpoints.
    #[command(flatten)]
    pub daemon: daemon::DaemonArgs<19102>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use placement::names::Names;

    use super::*;

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
    }

    #[test]
    fn a_deadline_that_is_none_is_refused() {
        for text in ["0s", "-1s", "4", "soon"] {
            assert!(parse(&["--bind-timeout", text]).is_err(), "{text}");
        }
        assert!(parse(&["--bind-timeout=1500ms"]).is_ok());
    }
}
