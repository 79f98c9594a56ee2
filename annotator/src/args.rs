//! The flags, each also an environment variable.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::{Parser, ValueEnum};
use cluster::{LabelSelector, ServicePort, Taint, TaintEffect};
use daemon::follow::NamedFile;
use jiff::SignedDuration;
use placement::publish::DEFAULT_DEAD_BAND;
use placement::taint::TaintRules;
use reqwest::Url;
use rustls::pki_types::DnsName;
use settings::{ApiArgs, LoadArgs, NameArgs};

use crate::exporter::credentials::CredentialFiles;
use crate::exporter::discovery::AddressTemplate;
use crate::source::prometheus::{AccessFiles, QueriesFile};
use crate::taints::TaintSettings;

/// The taint of nodes that are over a limit of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TaintHotNodes {
    /// None; those that are found are cleared.
    #[value(name = "off")]
    Off,
    /// Pods go there where no better node is left.
    #[value(name = "PreferNoSchedule")]
    Prefer,
    /// No pods go there but those that tolerate it.
    #[value(name = "NoSchedule")]
    Forbid,
}

/// Writes each node's load on the Node object, where kube-scheduler's extender reads it.
///
/// Asks node-exporter-plus on every node for the metrics that the policy's syncPolicy names, as
/// often as it says, and writes them as annotations in crane's format, together with the node's hot
/// value and the share of each GPU card that pods hold. A node whose exporter does not answer is not
/// written: its last readings become stale.
#[derive(Debug, Clone, Parser)]
#[command(version, about, long_about)]
pub struct Args {
    /// The load policy and its time zone.
    #[command(flatten)]
    pub load: LoadArgs,

    /// The port of each node's exporter, on the node's InternalIP. A Node annotation
    /// PREFIX/exporter: "host:port" overrides both for one node, so anyone who may write it chooses
    /// where this program sends its requests.
    #[arg(
        long,
        env = "PLIMSOLL_EXPORTER_PORT",
        default_value_t = 19101,
        value_parser = clap::value_parser!(u16).range(1..),
        value_name = "PORT"
    )]
    pub exporter_port: u16,

    /// Where each node's exporter answers, host:port in which {node} stands for the node's name:
    /// {node}.metrics.example:9443. For exporters behind names or a proxy. The annotation goes before it.
    #[arg(
        long,
        env = "PLIMSOLL_EXPORTER_ADDRESS",
        value_parser = AddressTemplate::parse,
        conflicts_with = "exporter_service",
        value_name = "HOST:PORT"
    )]
    pub exporter_address: Option<AddressTemplate>,

    /// A headless Service whose pods are the exporters: each node's is the ready endpoint that names the
    /// node, at the Service's port, or the one of that name where it has several. For exporters that are
    /// not on their node's own network. The annotation goes before it.
    #[arg(
        long,
        env = "PLIMSOLL_EXPORTER_SERVICE",
        value_parser = exporter_service,
        value_name = "NAMESPACE/NAME[:PORT]"
    )]
    pub exporter_service: Option<ServicePort>,

    /// Take readings from the Prometheus at this URL (scheme, host and port), and ask no exporter: one query for each
    /// metric of the policy, for all nodes together. What pods use is not learned then. Without --prometheus-queries-file
    /// for node_exporter's metrics of CPU and memory.
    #[arg(
        long,
        env = "PLIMSOLL_PROMETHEUS_URL",
        value_parser = prometheus_url,
        conflicts_with_all = ["exporter_address", "exporter_service", "exporter_ca_file"],
        value_name = "URL"
    )]
    pub prometheus_url: Option<Url>,

    /// The label of Prometheus's series that names the node: by its name or its InternalIP, with or without a port.
    #[arg(
        long,
        env = "PLIMSOLL_PROMETHEUS_NODE_LABEL",
        default_value = "instance",
        value_parser = label,
        value_name = "LABEL"
    )]
    pub prometheus_node_label: String,

    /// A JSON file with the queries: {"time": QUERY, "metrics": {"cpu_usage_avg_5m": QUERY}}. Each gives one value for each node:
    /// of metrics in percent, of time the Unix seconds of the newest sample, without which a reading has the time of the
    /// query. Read again when it changes.
    #[arg(
        long,
        env = "PLIMSOLL_PROMETHEUS_QUERIES_FILE",
        requires = "prometheus_url",
        value_name = "FILE"
    )]
    pub prometheus_queries_file: Option<PathBuf>,

    /// Accept Prometheus's certificate only if a CA in this PEM file has signed it. A URL with https:// needs it. Read again
    /// when it changes.
    #[arg(
        long,
        env = "PLIMSOLL_PROMETHEUS_CA_FILE",
        requires = "prometheus_url",
        value_name = "FILE"
    )]
    pub prometheus_ca_file: Option<PathBuf>,

    /// Send Prometheus the bearer token in this file, after its certificate was verified. Read again when it changes.
    #[arg(
        long,
        env = "PLIMSOLL_PROMETHEUS_TOKEN_FILE",
        requires = "prometheus_ca_file",
        value_name = "FILE"
    )]
    pub prometheus_token_file: Option<PathBuf>,

    /// Take readings from metrics-server, through the API server, and ask no exporter: for clusters that have nothing else. It
    /// gives cpu_usage and mem_usage with _active and _avg_5m alone; what pods use is not learned then. Needs the right to
    /// list nodes of metrics.k8s.io.
    #[arg(
        long,
        env = "PLIMSOLL_METRICS_SERVER",
        conflicts_with_all = ["exporter_address", "exporter_service", "exporter_ca_file", "prometheus_url"]
    )]
    pub metrics_server: bool,

    /// Ask exporters over TLS, and accept only certificates that are signed by a CA in this PEM file.
    /// Read again when it changes.
    #[arg(long, env = "PLIMSOLL_EXPORTER_CA_FILE", value_name = "FILE")]
    pub exporter_ca_file: Option<PathBuf>,

    /// The DNS name that every exporter's certificate must carry. It is the same for all, since nodes
    /// are reached by their addresses.
    #[arg(
        long,
        env = "PLIMSOLL_EXPORTER_SERVER_NAME",
        default_value = "node-exporter-plus",
        value_parser = server_name,
        value_name = "NAME"
    )]
    pub exporter_server_name: DnsName<'static>,

    /// Send exporters the bearer token in this file, after their certificate was verified. Read again
    /// when it changes.
    #[arg(
        long,
        env = "PLIMSOLL_EXPORTER_TOKEN_FILE",
        requires = "exporter_ca_file",
        value_name = "FILE"
    )]
    pub exporter_token_file: Option<PathBuf>,

    /// How long an exporter may take to answer.
    #[arg(
        long,
        env = "PLIMSOLL_POLL_TIMEOUT",
        default_value = "3s",
        value_parser = daemon::positive_duration,
        value_name = "DURATION"
    )]
    pub poll_timeout: Duration,

    /// Which nodes are asked and written: a label selector, as kubectl takes it. Leave out nodes that
    /// cannot have an exporter. They get no GPU share either [default: all nodes].
    #[arg(long, env = "PLIMSOLL_NODE_SELECTOR", value_name = "SELECTOR")]
    pub node_selector: Option<LabelSelector>,

    /// How many exporters are asked at the same time, of those that answered the last time within a
    /// second, and how many nodes are written. Silent and slow exporters are asked apart from these, at
    /// most 4 times as many, and new ones, at most 8 times as many.
    #[arg(
        long,
        env = "PLIMSOLL_CONCURRENCY",
        default_value_t = 32,
        value_parser = clap::value_parser!(u16).range(1..),
        value_name = "NODES"
    )]
    pub concurrency: u16,

    /// How far a value may move from what is written before it is written for that: a fraction of 1, and of the value where
    /// that is above 1. What crosses a limit of the policy is always written, and what is written never expires while its
    /// exporter answers. 0: whatever moved is written.
    #[arg(
        long,
        env = "PLIMSOLL_DEAD_BAND",
        default_value_t = DEFAULT_DEAD_BAND,
        value_parser = dead_band,
        value_name = "FRACTION"
    )]
    pub dead_band: f64,

    /// How far apart nodes are written, all in one burst: each write of a Node makes kube-scheduler retry every pod that an
    /// extender rejected, and many writes at once hardly more often than one. What is new does not wait, and what crosses a
    /// limit waits 15s at most. 0s: each poll writes for itself; otherwise 5s to 2m.
    #[arg(
        long,
        env = "PLIMSOLL_BURST_INTERVAL",
        default_value = "45s",
        value_parser = burst_interval,
        value_name = "DURATION"
    )]
    pub burst_interval: Duration,

    /// How often exporters are asked what each pod uses, from which the use of workloads is learned; 0s:
    /// never. Over 5m, what is learned misses peaks; 15m is the most.
    #[arg(
        long,
        env = "PLIMSOLL_POD_USE_PERIOD",
        default_value = "1m",
        value_parser = pod_use_period,
        value_name = "DURATION"
    )]
    pub pod_use_period: Duration,

    /// Where GET /v1/workloads answers what was learned, for the extender.
    #[arg(
        long,
        env = "PLIMSOLL_LISTEN_ADDRESS",
        default_value = "[::]:19106",
        value_name = "IP:PORT"
    )]
    pub listen_address: SocketAddr,

    /// Whether a node over a limit of the policy, hard or soft, carries a taint, which kube-scheduler honours
    /// without a call. With NoSchedule the pods of DaemonSets need a toleration. With off, taints that are
    /// found are cleared.
    #[arg(long, env = "PLIMSOLL_TAINT_HOT_NODES", default_value = "off", value_name = "EFFECT")]
    pub taint_hot_nodes: TaintHotNodes,

    /// The taint's key. Cluster Autoscaler leaves keys that begin as the default does out of its templates of
    /// new nodes.
    #[arg(
        long,
        env = "PLIMSOLL_TAINT_KEY",
        default_value = "status-taint.cluster-autoscaler.kubernetes.io/plimsoll-hot",
        value_parser = taint_key,
        value_name = "KEY"
    )]
    pub taint_key: String,

    /// How long a load must be over its limit before the taint is set.
    #[arg(
        long,
        env = "PLIMSOLL_TAINT_AFTER",
        default_value = "1m",
        value_parser = daemon::duration,
        value_name = "DURATION"
    )]
    pub taint_after: Duration,

    /// How far below its limit a load must be again before the taint is cleared: a fraction of a whole.
    #[arg(
        long,
        env = "PLIMSOLL_TAINT_MARGIN",
        default_value_t = 0.05,
        value_parser = taint_margin,
        value_name = "FRACTION"
    )]
    pub taint_margin: f64,

    /// The Lease by which one of several replicas is chosen: it polls and writes, the others wait. In the
    /// namespace of the pod, or of the kubeconfig's context. Without it this must be the only replica
    /// [default: none].
    #[arg(long, env = "PLIMSOLL_LEASE_NAME", value_name = "NAME")]
    pub lease_name: Option<String>,

    /// How long the others wait after the last renewal before one of them takes the Lease. A replica that
    /// cannot renew it stops writing after two thirds of that. Whole seconds, up to 5m.
    #[arg(
        long,
        env = "PLIMSOLL_LEASE_DURATION",
        default_value = "15s",
        value_parser = lease_duration,
        value_name = "DURATION"
    )]
    pub lease_duration: Duration,

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

impl Args {
    /// Whether readings come from the exporters of the nodes.
    pub(crate) fn asks_exporters(&self) -> bool {
        self.prometheus_url.is_none() && !self.metrics_server
    }

    /// The URL of Prometheus, where readings come from there.
    pub(crate) fn prometheus_url(&self) -> anyhow::Result<Option<Url>> {
        let Some(url) = &self.prometheus_url else { return Ok(None) };
        match (url.scheme(), &self.prometheus_ca_file) {
            ("https", None) => bail!("--prometheus-url {url}: https needs --prometheus-ca-file"),
            ("http", Some(_)) => bail!(
                "--prometheus-url {url}: with --prometheus-ca-file it must begin with https://"
            ),
            _ => Ok(Some(url.clone())),
        }
    }

    /// Where the queries of Prometheus come from.
    pub(crate) fn queries_file(&self) -> QueriesFile {
        let named = |path| NamedFile { flag: "--prometheus-queries-file", path };
        let file = self.prometheus_queries_file.clone().map(named);
        QueriesFile { file, label: self.prometheus_node_label.clone() }
    }

    /// The files with the credentials for Prometheus.
    pub(crate) fn prometheus_access(&self) -> AccessFiles {
        let named =
            |flag, path: &Option<PathBuf>| path.clone().map(|path| NamedFile { flag, path });
        AccessFiles {
            ca: named("--prometheus-ca-file", &self.prometheus_ca_file),
            token: named("--prometheus-token-file", &self.prometheus_token_file),
        }
    }

    /// The taint of hot nodes; `None` where there is none.
    pub(crate) fn taint(&self) -> Option<TaintSettings> {
        let effect = match self.taint_hot_nodes {
            TaintHotNodes::Off => return None,
            TaintHotNodes::Prefer => TaintEffect::PreferNoSchedule,
            TaintHotNodes::Forbid => TaintEffect::NoSchedule,
        };
        let after = SignedDuration::try_from(self.taint_after).unwrap_or(SignedDuration::MAX);
        let rules = TaintRules { after, margin: self.taint_margin };
        Some(TaintSettings { taint: Taint { key: self.taint_key.clone(), effect }, rules })
    }

    /// The files with the credentials for exporters; `None` where they are asked without TLS.
    pub(crate) fn credential_files(&self) -> Option<CredentialFiles> {
        let named = |flag, path| NamedFile { flag, path };
        let token = self.exporter_token_file.clone();
        Some(CredentialFiles {
            ca: named("--exporter-ca-file", self.exporter_ca_file.clone()?),
            server_name: self.exporter_server_name.clone(),
            token: token.map(|path| named("--exporter-token-file", path)),
        })
    }
}

/// Accepts a URL without a user: it would be in logs, and a token has a file.
fn prometheus_url(text: &str) -> Result<Url, String> {
    let fits = |url: &Url| {
        let plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
        matches!(url.scheme(), "http" | "https") && url.has_host() && plain
    };
    let url = Url::parse(text).ok().filter(fits);
    url.ok_or_else(|| {
        "expected http://HOST:PORT or https://HOST:PORT, without user and query".to_owned()
    })
}

/// Accepts a label's name; it becomes a part of queries.
fn label(text: &str) -> Result<String, String> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let fits = text.bytes().all(legal) && text.starts_with(|first: char| !first.is_ascii_digit());
    fits.then(|| text.to_owned())
        .ok_or_else(|| "expected a label's name, such as instance or node".to_owned())
}

fn exporter_service(text: &str) -> Result<ServicePort, String> {
    ServicePort::parse(text)
        .ok_or_else(|| "expected NAMESPACE/NAME or NAMESPACE/NAME:PORT-NAME".to_owned())
}

/// Accepts 0, and what is neither too short for a mean nor too long for a comparison of two answers.
fn pod_use_period(text: &str) -> Result<Duration, String> {
    zero_or(10..=900, "expected 0s, or 10s to 15m", text)
}

/// Accepts 0 and more, below 1.
fn dead_band(text: &str) -> Result<f64, String> {
    let fraction: Option<f64> = text.parse().ok();
    let fraction = fraction.filter(|fraction| (0.0..1.0).contains(fraction));
    fraction.ok_or_else(|| "expected a fraction of at least 0 and below 1, such as 0.05".to_owned())
}

/// Accepts 0, and what is neither shorter than a burst takes nor longer than readings can wait for.
fn burst_interval(text: &str) -> Result<Duration, String> {
    zero_or(5..=120, "expected 0s, or 5s to 2m", text)
}

fn zero_or(
    seconds: RangeInclusive<u64>,
    expected: &'static str,
    text: &str,
) -> Result<Duration, String> {
    let duration = daemon::duration(text).map_err(|error| error.to_string())?;
    let fits = duration.is_zero() || seconds.contains(&duration.as_secs());
    fits.then_some(duration).ok_or_else(|| expected.to_owned())
}

fn taint_key(text: &str) -> Result<String, String> {
    let key = placement::selector::is_key(text).then(|| text.to_owned());
    key.ok_or_else(|| "expected NAME or PREFIX/NAME, as the key of a label".to_owned())
}

fn taint_margin(text: &str) -> Result<f64, String> {
    let margin = text.parse::<f64>().ok().filter(|margin| (0.0..1.0).contains(margin));
    margin.ok_or_else(|| "expected a fraction from 0 to below 1, such as 0.05".to_owned())
}

/// Accepts what a Lease can say.
fn lease_duration(text: &str) -> Result<Duration, String> {
    let duration = daemon::duration(text).map_err(|error| error.to_string())?;
    let fits = duration.subsec_nanos() == 0 && (1..=300).contains(&duration.as_secs());
    fits.then_some(duration).ok_or_else(|| "expected whole seconds, 1s to 5m".to_owned())
}

/// Accepts a DNS name that is one in a URL, too: URLs take names such as `0x7f` for IP addresses.
fn server_name(text: &str) -> Result<DnsName<'static>, String> {
    let url = Url::parse(&format!("https://{text}/")).ok();
    let name = DnsName::try_from(text.to_owned()).ok();
    name.filter(|_| url.is_some_and(|url| url.domain().is_some()))
        .ok_or_else(|| "expected a DNS name, as certificates carry them".to_owned())
}

#[cfg(test)]
mod tests {
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
        assert_eq!((args.exporter_port, args.concurrency), (19101, 32));
        assert_eq!(args.poll_timeout, Duration::from_secs(3));
        assert_eq!(args.daemon.settings().admin.port(), 19103);
        assert_eq!(args.pod_use_period, Duration::from_secs(60));
        assert_eq!(args.listen_address.port(), 19106);
        assert_eq!((args.dead_band, args.burst_interval), (0.05, Duration::from_secs(45)));
        assert_eq!((args.lease_name, args.lease_duration), (None, Duration::from_secs(15)));
    }

    #[test]
    fn invalid_values_are_refused() {
        for flag in [
            "--poll-timeout=0s",
            "--poll-timeout=3",
            "--pod-use-period=9s",
            "--pod-use-period=16m",
            "--pod-use-period=60",
            "--listen-address=19106",
            "--dead-band=-0.1",
            "--dead-band=1",
            "--dead-band=NaN",
            "--dead-band=5%",
            "--burst-interval=4s",
            "--burst-interval=121s",
            "--lease-duration=0s",
            "--taint-hot-nodes=NoExecute",
            "--taint-margin=5",
            "--taint-key=a key",
            "--lease-duration=1500ms",
            "--lease-duration=6m",
            "--concurrency=0",
            "--exporter-port=0",
            "--exporter-address=metrics:9443",
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
            "--exporter-server-name=two words",
            "--exporter-server-name=10.0.0.1",
            "--exporter-server-name=::1",
            "--exporter-server-name=0x7f",
            "--node-selector=type!=a b",
        ] {
            assert!(parse(&[flag]).is_err(), "{flag}");
        }
    }

    #[test]
    fn exporters_are_found_in_one_way() {
        let (address, service) = ("--exporter-address={node}:1", "--exporter-service=a/b");
        assert!(parse(&[address]).is_ok() && parse(&[service]).is_ok());
        assert!(parse(&[address, service]).is_err());
    }

    #[test]
    fn prometheus_takes_the_place_of_exporters_and_tls_has_a_ca() {
        let (http, https) =
            ("--prometheus-url=http://p:9090", "--prometheus-url=https://p:9090/prefix");
        let url = |flags: &[&str]| parse(flags).unwrap().prometheus_url();
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
