//! The HTTP client for calls to the leader: over TLS with this replica's certificate if it has one, otherwise plain
//! HTTP.
//!
//! Invariant: a replica with a certificate sends nothing to a server without a certificate of the same CA and name.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use daemon::follow::{Current, FileError, NamedFile, Source};
use daemon::tls::Peers;
use reqwest::{Client, ClientBuilder, RequestBuilder};
use tokio::sync::watch;

use crate::http_client::{self, SetupError};

/// Concurrent forwarded requests. kube-scheduler binds up to 478 pods at once.
pub(super) const AT_ONCE: usize = 512;

/// The timeout of a connection to the leader. The address of a deleted pod may not answer at all.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// The HTTP client for the leader.
#[derive(Debug, Clone)]
pub struct LeaderClient {
    scheme: &'static str,
    current: Current<Client>,
}

/// Builds a new client when the certificate's files change. The connections of the previous client end with it.
#[derive(Debug)]
pub struct SecureClients(pub Peers);

impl LeaderClient {
    /// A client for plain HTTP.
    ///
    /// # Errors
    ///
    /// Where no HTTP client can be set up.
    pub fn plain() -> Result<Self, SetupError> {
        let client = bounded(http_client::builder()?).build()?;
        Ok(Self { scheme: "http", current: watch::channel(Arc::new(client)).1 })
    }

    /// A client for TLS: each request uses the newest client of `current`.
    #[must_use]
    pub fn secure(current: Current<Client>) -> Self {
        Self { scheme: "https", current }
    }

    /// A request to the leader at that address.
    pub(super) fn post(&self, leader: SocketAddr, path: &str) -> RequestBuilder {
        let client = Arc::clone(&self.current.borrow());
        client.post(format!("{}://{leader}{path}", self.scheme))
    }
}

impl Source for SecureClients {
    type Value = Client;
    const WHAT: &'static str = Peers::WHAT;

    fn files(&self) -> Vec<&NamedFile> {
        self.0.files()
    }

    fn parse(&self, contents: &[Vec<u8>]) -> Result<Client, FileError> {
        let builder = http_client::builder_with(self.0.parse(contents)?).https_only(true);
        bounded(builder).build().map_err(|error| {
            let problem = format!("no HTTP client can be set up with it: {error}");
            self.0.certificate().error(problem)
        })
    }
}

fn bounded(builder: ClientBuilder) -> ClientBuilder {
    builder.connect_timeout(CONNECT_TIMEOUT).pool_max_idle_per_host(AT_ONCE)
}
