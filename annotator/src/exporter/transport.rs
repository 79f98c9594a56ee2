//! HTTP/1.1 requests to exporters, with or without TLS. No proxy is used, and no redirect is followed.
//!
//! Invariant: over TLS each exporter is asked by an HTTP client of its own. All exporters' certificates carry the same
//! name, and a client shared by two exporters would reuse the connection of one for the other.

use std::net::SocketAddr;
use std::time::Duration;

use daemon::Causes;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Client, ClientBuilder, Response, redirect};
use rustls::ClientConfig;

use super::endpoint::Endpoint;
use super::error::PollError;
use super::tls::{TlsSettings, empty_roots, is_tls};

/// How long an idle connection without TLS is kept. With the usual period of 3 minutes none is reused: keeping
/// thousands of idle connections would save one handshake a poll.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Why no transport can be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The TLS library's error.
    #[error("TLS cannot be set up")]
    Tls(#[from] rustls::Error),
    /// The HTTP client's error.
    #[error("no HTTP client can be set up")]
    Client(#[from] reqwest::Error),
}

/// How all exporters are reached.
#[derive(Debug)]
pub enum Transport {
    /// Plain HTTP, with one client for all exporters.
    Plain(Client),
    /// HTTPS.
    Secure(Box<TlsSettings>),
}

/// The way to one exporter.
#[derive(Debug)]
pub struct Connection {
    client: Client,
    /// Scheme, host and port.
    base_url: String,
    /// The value of the Authorization header.
    authorization: Option<HeaderValue>,
}

impl Transport {
    /// Plain HTTP.
    ///
    /// # Errors
    /// When the HTTP client cannot be set up.
    pub fn plain() -> Result<Self, SetupError> {
        // reqwest wants a TLS configuration even where it is never used.
        Ok(Self::Plain(builder(empty_roots()?).build()?))
    }

    pub(super) async fn to(&self, endpoint: &Endpoint) -> Result<Connection, PollError> {
        match self {
            Self::Plain(client) => {
                let base_url = format!("http://{}", endpoint.address());
                Ok(Connection { client: client.clone(), base_url, authorization: None })
            }
            Self::Secure(settings) => secure(settings, &resolve(endpoint).await?),
        }
    }
}

impl Connection {
    pub(super) async fn get(&self, path: &str) -> Result<Response, PollError> {
        let mut request = self.client.get(format!("{}{path}", self.base_url));
        if let Some(value) = &self.authorization {
            request = request.header(AUTHORIZATION, value);
        }
        request.send().await.map_err(|error| request_error(&error))
    }
}

/// The URL holds the certificates' name, so that TLS verifies it; the client resolves that name to the node's addresses.
fn secure(settings: &TlsSettings, addresses: &[SocketAddr]) -> Result<Connection, PollError> {
    let unresolved = || PollError::Connect("the name has no address".to_owned());
    let port = addresses.first().ok_or_else(unresolved)?.port();
    let name = settings.server_name.as_ref();
    let client = builder(settings.config.clone()).resolve_to_addrs(name, addresses).build();
    let client = client.map_err(|error| PollError::Tls(Causes(&error).innermost()))?;
    let authorization = settings.authorization.clone();
    Ok(Connection { client, base_url: format!("https://{name}:{port}"), authorization })
}

/// The addresses of an endpoint: an operator's annotation may name a host instead of an address.
async fn resolve(endpoint: &Endpoint) -> Result<Vec<SocketAddr>, PollError> {
    let found = tokio::net::lookup_host(endpoint.address()).await;
    found.map(Iterator::collect).map_err(|error| PollError::Connect(error.to_string()))
}

fn builder(tls: ClientConfig) -> ClientBuilder {
    Client::builder()
        .tls_backend_preconfigured(tls)
        .http1_only()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .tcp_nodelay(true)
        .pool_max_idle_per_host(1)
        .pool_idle_timeout(KEEP_ALIVE)
        .user_agent(concat!("plimsoll-annotator/", env!("CARGO_PKG_VERSION")))
}

pub(super) fn request_error(error: &reqwest::Error) -> PollError {
    // The outer errors repeat the URL and say that something failed.
    let cause = || Causes(error).innermost();
    if is_tls(error) {
        PollError::Tls(cause())
    } else if error.is_connect() || error.is_builder() {
        // A URL that cannot be built has an impossible host, such as 1.2.3.456.
        PollError::Connect(cause())
    } else {
        PollError::Broken(cause())
    }
}
