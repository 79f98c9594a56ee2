//! Where exporters are found, and how they are asked.

use std::path::PathBuf;
use std::time::Duration;

use cluster::ServicePort;
use daemon::follow::NamedFile;

use crate::exporter::credentials::CredentialFiles;

/// How long an exporter may take to answer. One that works needs milliseconds, and one that takes longer is polled
/// apart from the others: a longer wait would gain nothing.
const POLL_TIMEOUT: Duration = Duration::from_secs(3);

/// How often exporters are asked what each pod uses, from which the use of workloads is learned. Over 5 minutes, what
/// is learned would miss peaks; under 10 seconds, two answers are too close for a mean.
const POD_USE_PERIOD: Duration = Duration::from_secs(60);

/// The exporters.
#[derive(Debug, Clone, clap::Args)]
pub struct ExporterArgs {
    /// The port of each node's exporter, on the node's InternalIP. A Node annotation
    /// `PREFIX/exporter: "host:port"` overrides both for one node, so anyone who may write it chooses
    /// where this program sends its requests.
    #[arg(
        long,
        env = "PLIMSOLL_EXPORTER_PORT",
        default_value_t = 19101,
        value_parser = clap::value_parser!(u16).range(1..),
        value_name = "PORT"
    )]
    pub exporter_port: u16,

    /// A headless Service whose pods are the exporters: each node's is the ready endpoint that names the
    /// node, at the Service's port, or the one of that name where it has several. For exporters that are
    /// not on their node's own network, such as monitoring/exporters:statistics. The annotation goes before it.
    #[arg(
        long,
        env = "PLIMSOLL_EXPORTER_SERVICE",
        value_parser = exporter_service,
        value_name = "NAMESPACE/NAME[:PORT]"
    )]
    pub exporter_service: Option<ServicePort>,

    /// Ask exporters over TLS, and accept only certificates for the DNS name node-exporter-plus that
    /// are signed by a CA in this PEM file. Read again when it changes.
    #[arg(long, env = "PLIMSOLL_EXPORTER_CA_FILE", value_name = "FILE")]
    pub exporter_ca_file: Option<PathBuf>,

    /// Send exporters the bearer token in this file, after their certificate was verified. Read again
    /// when it changes.
    #[arg(
        long,
        env = "PLIMSOLL_EXPORTER_TOKEN_FILE",
        requires = "exporter_ca_file",
        value_name = "FILE"
    )]
    pub exporter_token_file: Option<PathBuf>,

    /// How long an exporter may take to answer. No flag: 3 s, and another in tests.
    #[arg(skip = POLL_TIMEOUT)]
    pub poll_timeout: Duration,

    /// How often exporters are asked what each pod uses; 0: never, and nothing is learned. No flag: a minute, and never
    /// in most tests.
    #[arg(skip = POD_USE_PERIOD)]
    pub pod_use_period: Duration,
}

impl ExporterArgs {
    /// The files with the credentials for exporters; `None` where they are asked without TLS.
    pub(crate) fn credential_files(&self) -> Option<CredentialFiles> {
        let token = self.exporter_token_file.as_ref();
        Some(CredentialFiles {
            ca: NamedFile::optional("--exporter-ca-file", self.exporter_ca_file.as_ref())?,
            token: NamedFile::optional("--exporter-token-file", token),
        })
    }
}

fn exporter_service(text: &str) -> Result<ServicePort, String> {
    ServicePort::parse(text)
        .ok_or_else(|| "expected NAMESPACE/NAME or NAMESPACE/NAME:PORT-NAME".to_owned())
}
