//! A Prometheus in place of exporters.

use std::path::PathBuf;

use anyhow::bail;
use daemon::follow::NamedFile;
use reqwest::Url;

use crate::source::prometheus::{AccessFiles, QueriesFile};

/// The Prometheus.
#[derive(Debug, Clone, clap::Args)]
pub struct PrometheusArgs {
    /// Take readings from the Prometheus at this URL (scheme, host and port), and ask no exporter: one query for each
    /// metric of the policy, for all nodes together. What pods use is not learned then. Without
    /// --prometheus-queries-file for node_exporter's metrics of CPU and memory.
    #[arg(
        long,
        env = "PLIMSOLL_PROMETHEUS_URL",
        value_parser = prometheus_url,
        conflicts_with_all = ["exporter_service", "exporter_ca_file"],
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

    /// A JSON file with the queries: `{"time": QUERY, "metrics": {"cpu_usage_avg_5m": QUERY}}`. Each gives one value
    /// for each node: of metrics in percent, of time the Unix seconds of the newest sample, without which a reading has
    /// the time of the query. Read again when it changes.
    #[arg(
        long,
        env = "PLIMSOLL_PROMETHEUS_QUERIES_FILE",
        requires = "prometheus_url",
        value_name = "FILE"
    )]
    pub prometheus_queries_file: Option<PathBuf>,

    /// Accept Prometheus's certificate only if a CA in this PEM file has signed it. A URL with https:// needs it. Read
    /// again when it changes.
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
}

impl PrometheusArgs {
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
        let path = self.prometheus_queries_file.as_ref();
        let file = NamedFile::optional("--prometheus-queries-file", path);
        QueriesFile { file, label: self.prometheus_node_label.clone() }
    }

    /// The files with the credentials for Prometheus.
    pub(crate) fn prometheus_access(&self) -> AccessFiles {
        AccessFiles {
            ca: NamedFile::optional("--prometheus-ca-file", self.prometheus_ca_file.as_ref()),
            token: NamedFile::optional(
                "--prometheus-token-file",
                self.prometheus_token_file.as_ref(),
            ),
        }
    }
}

/// Accepts a URL without a user: it would be in logs, and a token has a file.
fn prometheus_url(text: &str) -> Result<Url, String> {
    Url::parse(text).ok().filter(is_plain).ok_or_else(|| {
        "expected http://HOST:PORT or https://HOST:PORT, without user and query".to_owned()
    })
}

/// Whether a URL has a host, and neither user nor query.
fn is_plain(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
}

/// Accepts a label's name; it becomes a part of queries.
fn label(text: &str) -> Result<String, String> {
    let is_legal = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if is_legal && text.starts_with(|first: char| !first.is_ascii_digit()) {
        Ok(text.to_owned())
    } else {
        Err("expected a label's name, such as instance or node".to_owned())
    }
}
