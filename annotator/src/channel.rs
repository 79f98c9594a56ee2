//! How exporters are reached: by HTTP/1.1, without a proxy, and no redirect is followed.
//!
//! Invariant: over TLS each exporter is asked by a client of its own. All of them bear one name, and
//! a client that knew two would take one's connection for the other's.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Client, ClientBuilder, Response, redirect};
use rustls::ClientConfig;

use crate::endpoint::Endpoint;
use crate::poll::PollError;
use crate::tls::{Trust, is_tls, nobody};

/// Connections without TLS are kept for exporters that are asked again soon. With the usual period
/// of 3 minutes none is: thousands of idle connections would save one handshake a poll.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Why exporters cannot be reached at all.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The TLS library refuses.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
    /// The HTTP client refuses.
    #[error("no HTTP client can be set up: {0}")]
    Client(#[from] reqwest::Error),
}

/// The way to all exporters.
#[derive(Debug)]
pub enum Channel {
    /// Without TLS.
    Plain(Client),
    /// Over TLS, to whom we trust.
    Secure(Box<Trust>),
}

/// The way to one of them.
pub(crate) struct Line {
    client: Client,
    base: String,
    token: Option<HeaderValue>,
}

impl Channel {
    /// Without TLS.
    ///
    /// # Errors
    /// When the HTTP client cannot be set up.
    pub fn plain() -> Result<Self, SetupError> {
        Ok(Self::Plain(builder(nobody()?).build()?))
    }

    pub(crate) async fn to(&self, endpoint: &Endpoint) -> Result<Line, PollError> {
        match self {
            Self::Plain(client) => {
                let base = format!("http://{}", endpoint.address());
                Ok(Line { client: client.clone(), base, token: None })
            }
            Self::Secure(trust) => secure(trust, &look_up(endpoint).await?),
        }
    }
}

impl Line {
    pub(crate) async fn get(&self, path: &str) -> Result<Response, PollError> {
        let mut request = self.client.get(format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        request.send().await.map_err(|error| failure(&error))
    }
}

/// The URL holds the name, so that it is the name which is verified; the name leads to the node.
fn secure(trust: &Trust, at: &[SocketAddr]) -> Result<Line, PollError> {
    let nowhere = || PollError::Connect("the name has no address".to_owned());
    let port = at.first().ok_or_else(nowhere)?.port();
    let name = trust.name.as_ref();
    let client = builder(trust.tls.clone()).resolve_to_addrs(name, at).build();
    let client = client.map_err(|error| PollError::Tls(innermost(&error)))?;
    Ok(Line { client, base: format!("https://{name}:{port}"), token: trust.token.clone() })
}

/// An operator's annotation may name a host.
async fn look_up(endpoint: &Endpoint) -> Result<Vec<SocketAddr>, PollError> {
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

pub(crate) fn failure(error: &reqwest::Error) -> PollError {
    if is_tls(error) {
        PollError::Tls(innermost(error))
    } else if error.is_connect() || error.is_builder() {
        // What cannot be built is a URL with a host that nobody can have.
        PollError::Connect(innermost(error))
    } else {
        PollError::Broken(innermost(error))
    }
}

/// The outer errors repeat the URL and say that something failed; the cause is the last one.
fn innermost(error: &dyn Error) -> String {
    let mut at = error;
    while let Some(source) = at.source() {
        at = source;
    }
    at.to_string()
}
