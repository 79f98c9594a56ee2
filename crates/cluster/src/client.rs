//! A client of the API server, with timeouts.

use std::net::IpAddr;
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
    Ok(client_and_place(kubeconfig).await?.0)
}

/// Where the API server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerPlace {
    /// At a loopback address: of a cluster on this machine alone.
    Loopback,
    /// At any other address or name.
    Elsewhere,
}

/// As [`client()`], and where the API server is.
///
/// # Errors
///
/// As [`client()`].
pub async fn client_and_place(
    kubeconfig: Option<&Path>,
) -> Result<(Client, ServerPlace), ClientError> {
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
    let place = ServerPlace::of(config.cluster_url.host().unwrap_or_default());
    let client = Client::try_from(config)
        .map_err(|source| ClientError::Setup { server, source: Box::new(source) })?;
    Ok((client, place))
}

impl ServerPlace {
    /// Of a URL's host. A name that is resolved to a loopback address is elsewhere, but for `localhost`.
    fn of(host: &str) -> Self {
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        let is_loopback = address.map(|address| address.to_canonical().is_loopback());
        if is_loopback.unwrap_or(host == "localhost") { Self::Loopback } else { Self::Elsewhere }
    }
}

async fn from_file(path: &Path) -> Result<Config, ClientError> {
    let options = KubeConfigOptions::default();
    let config = match Kubeconfig::read_from(path) {
        Ok(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &options).await,
        Err(source) => Err(source),
    };
    config.map_err(|source| ClientError::Kubeconfig { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_at_a_loopback_address_by_its_address_or_as_localhost() {
        for host in ["127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]", "localhost"] {
            assert_eq!(ServerPlace::of(host), ServerPlace::Loopback, "{host}");
        }
        for host in
            ["10.96.0.1", "0.0.0.0", "[fd00::1]", "kubernetes.default.svc", "localhost.a", ""]
        {
            assert_eq!(ServerPlace::of(host), ServerPlace::Elsewhere, "{host}");
        }
    }
}
