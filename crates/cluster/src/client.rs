//! A client of the API server, with timeouts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// Timeout of connecting.
const CONNECT: Duration = Duration::from_secs(5);

/// Timeout of reading. The API server writes a bookmark on an idle watch about once a minute, so a watch without a byte
/// for this long is a connection that broke without a word, not a quiet cluster. It also ends idle connections, before
/// the API server does after 90 s: a request that is sent while the server closes has no certain outcome.
const READ: Duration = Duration::from_secs(80);

/// Why a client cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig cannot be used.
    #[error("--kubeconfig {path}", path = path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: kube::config::KubeconfigError,
    },
    /// No kubeconfig was given, and this is no pod.
    #[error("this is no pod with a service account, so give --kubeconfig")]
    NotInCluster(#[from] kube::config::InClusterError),
    /// The certificates or credentials cannot be used.
    #[error("cannot set up the client for {server}")]
    Setup {
        /// The API server's address.
        server: String,
        /// What is wrong.
        source: Box<kube::Error>,
    },
}

/// A client from `kubeconfig`, or else from the service account of the pod that this runs in.
///
/// # Errors
///
/// Where the configuration cannot be read or used. No call is made yet.
pub async fn client(kubeconfig: Option<&Path>) -> Result<Client, ClientError> {
    let mut config = match kubeconfig {
        Some(path) => from_file(path).await?,
        None => Config::incluster()?,
    };
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(READ);
    config.reset_reader_on_write = true;
    // No call is retried here. A caller that sends a binding twice could not tell whether the first one was carried
    // out.
    config.default_retry = false;
    let server = config.cluster_url.to_string();
    Client::try_from(config)
        .map_err(|source| ClientError::Setup { server, source: Box::new(source) })
}

async fn from_file(path: &Path) -> Result<Config, ClientError> {
    let options = KubeConfigOptions::default();
    let config = match Kubeconfig::read_from(path) {
        Ok(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &options).await,
        Err(source) => Err(source),
    };
    config.map_err(|source| ClientError::Kubeconfig { path: path.to_owned(), source })
}
