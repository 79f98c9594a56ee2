//! The flags, each also an environment variable, by subject.

mod exporters;
mod lease;
mod prometheus;
mod taints;
mod writes;

use std::net::SocketAddr;

use clap::Parser;
use cluster::LabelSelector;
use settings::{ApiArgs, LoadArgs, NameArgs};

pub use self::exporters::ExporterArgs;
pub use self::lease::LeaseArgs;
pub use self::prometheus::PrometheusArgs;
pub use self::taints::{TAINT_KEY, TaintArgs, TaintHotNodes};
pub use self::writes::WriteArgs;

/// How many exporters are asked at the same time, of those that answered the last time within a second, and how many
/// nodes are written. Silent and slow exporters are asked apart from these, at most 4 times as many, and new ones, at
/// most 8 times as many. An answer takes some milliseconds, so that 32 at a time are thousands of nodes a second: what
/// keeps an annotator from more is its processor.
const CONCURRENCY: u16 = 32;

/// Writes each node's load on the Node object, where kube-scheduler's extender reads it.
///
/// Asks node-exporter-plus on every node for the metrics that the policy names, as
/// often as it says, and writes them as annotations in crane's format, together with the node's hot
/// value and the share of each GPU that pods hold. A node whose exporter does not answer is not
/// written: its last readings become stale.
#[derive(Debug, Clone, Parser)]
#[command(version, about, long_about)]
pub struct Args {
    /// The load policy and its time zone.
    #[command(flatten)]
    pub load: LoadArgs,

    /// The exporters.
    #[command(flatten)]
    pub exporters: ExporterArgs,

    /// A Prometheus in their place.
    #[command(flatten)]
    pub prometheus: PrometheusArgs,

    /// Take readings from metrics-server, through the API server, and ask no exporter: for clusters that have nothing
    /// else. It gives the use of CPU and mem_usage with _active and _avg_5m alone; what pods use is not learned then.
    /// Needs the right to list nodes of metrics.k8s.io.
    #[arg(
        long,
        env = "PLIMSOLL_METRICS_SERVER",
        conflicts_with_all = ["exporter_service", "exporter_ca_file", "prometheus_url"]
    )]
    pub metrics_server: bool,

    /// Which nodes are asked and written: a label selector, as kubectl takes it. Leave out nodes that
    /// cannot have an exporter. They get no hot value and no GPU share either [default: all nodes].
    #[arg(long, env = "PLIMSOLL_NODE_SELECTOR", value_name = "SELECTOR")]
    pub node_selector: Option<LabelSelector>,

    /// How many exporters are asked, and nodes written, at the same time. No flag: 32, and less in tests.
    #[arg(skip = CONCURRENCY)]
    pub concurrency: u16,

    /// When nodes are written.
    #[command(flatten)]
    pub writes: WriteArgs,

    /// Where GET /v1/readings answers with the last readings of all nodes, and GET /v1/workloads with what was learned,
    /// for the extender.
    #[arg(
        long,
        env = "PLIMSOLL_LISTEN_ADDRESS",
        default_value = "[::]:19106",
        value_name = "IP:PORT"
    )]
    pub listen_address: SocketAddr,

    /// Where all replicas answer on the port of --listen-address, as the name of their Service: one that does not lead
    /// reads there what the leader has learned, and goes on from it when it takes over.
    #[arg(
        long,
        env = "PLIMSOLL_REPLICAS_ADDRESS",
        value_parser = host_and_port,
        value_name = "HOST:PORT"
    )]
    pub replicas_address: Option<String>,

    /// The taint of hot nodes.
    #[command(flatten)]
    pub taints: TaintArgs,

    /// Nodes carry the labels gpu-band and cpu-band of Plimsoll's domain, 0 to 7, of which pods prefer the lower by an
    /// admission policy: for clusters whose scheduler asks no extender. Without it, labels that are found are cleared.
    #[arg(long, env = "PLIMSOLL_NODE_BANDS")]
    pub node_bands: bool,

    /// The Lease of several replicas.
    #[command(flatten)]
    pub lease: LeaseArgs,

    /// The API server.
    #[command(flatten)]
    pub api: ApiArgs,

    /// The names on the wire.
    #[command(flatten)]
    pub names: NameArgs,

    /// Logs and the admin endpoints.
    #[command(flatten)]
    pub daemon: daemon::DaemonArgs<19103>,
}

fn host_and_port(text: &str) -> Result<String, String> {
    cluster::exporter_address(text).map_err(|error| error.to_string())
}

impl Args {
    /// Whether readings come from the exporters of the nodes.
    pub(crate) fn polls_exporters(&self) -> bool {
        self.prometheus.prometheus_url.is_none() && !self.metrics_server
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::CommandFactory;
    use placement::names::Names;

    use super::*;

    fn parse(flags: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from([&["annotator"], flags].concat())
    }

    #[test]
    fn the_flags_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn defaults_are_as_documented() {
        let args = parse(&[]).unwrap();
        assert_eq!(args.names.names(), Names::default());
        assert_eq!((args.exporters.exporter_port, args.concurrency), (19101, 32));
        assert_eq!(args.exporters.poll_timeout, Duration::from_secs(3));
        assert_eq!(args.daemon.settings().admin.port(), 19103);
        assert_eq!(args.exporters.pod_use_period, Duration::from_secs(60));
        assert_eq!(args.listen_address.port(), 19106);
        assert_eq!(
            (args.writes.dead_band, args.writes.burst_interval),
            (0.2, Duration::from_secs(45))
        );
        assert_eq!(
            (args.lease.lease_name, args.lease.lease_duration),
            (None, Duration::from_secs(15))
        );
    }

    #[test]
    fn invalid_values_are_refused() {
        for flag in [
            "--listen-address=19106",
            "--dead-band=-0.1",
            "--dead-band=1",
            "--dead-band=NaN",
            "--dead-band=5%",
            "--burst-interval=4s",
            "--burst-interval=121s",
            "--lease-duration=0s",
            "--taint-hot-nodes=NoExecute",
            "--lease-duration=1500ms",
            "--lease-duration=6m",
            "--exporter-port=0",
            "--exporter-service=exporters",
            "--prometheus-url=ftp://prometheus",
            "--prometheus-url=prometheus:9090",
            "--prometheus-url=http://user:word@prometheus",
            "--prometheus-url=http://prometheus?query=up",
            "--prometheus-node-label=a)",
            "--prometheus-node-label=",
            "--prometheus-queries-file=/queries.json",
            "--prometheus-ca-file=/ca",
            "--time-zone=Mars/Olympus",
            "--node-selector=type!=a b",
        ] {
            assert!(parse(&[flag]).is_err(), "{flag}");
        }
    }

    #[test]
    fn prometheus_takes_the_place_of_exporters_and_tls_has_a_ca() {
        let http = "--prometheus-url=http://p:9090";
        let https = "--prometheus-url=https://p:9090/prefix";
        fn url(flags: &[&str]) -> anyhow::Result<Option<reqwest::Url>> {
            parse(flags).unwrap().prometheus.prometheus_url()
        }
        assert!(parse(&[http, "--exporter-service=a/b"]).is_err());
        assert!(parse(&[http, "--exporter-ca-file=/ca"]).is_err());
        assert!(parse(&[http, "--prometheus-token-file=/token"]).is_err());
        assert!(
            parse(&[http, "--metrics-server"]).is_err() && parse(&["--metrics-server"]).is_ok()
        );
        assert!(url(&[http]).unwrap().is_some() && url(&[]).unwrap().is_none());
        assert!(
            url(&[https, "--prometheus-ca-file=/ca", "--prometheus-token-file=/token"]).is_ok()
        );
        let error = url(&[https]).unwrap_err().to_string();
        assert!(error.contains("--prometheus-ca-file"), "{error}");
        assert!(url(&[http, "--prometheus-ca-file=/ca"]).is_err());
    }

    #[test]
    fn a_token_without_a_ca_is_refused() {
        let error = parse(&["--exporter-token-file=/token"]).unwrap_err().to_string();
        assert!(error.contains("--exporter-ca-file <FILE>"), "{error}");
        assert!(parse(&["--exporter-token-file=/token", "--exporter-ca-file=/ca"]).is_ok());
    }
}
