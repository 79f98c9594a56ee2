//! How connections to exporters are made, with or without TLS. No proxy is used.
//!
//! Invariant: over TLS a connection comes about only after the exporter's certificate was verified.

use std::io;

use http::header::HeaderValue;
use tokio::net::TcpStream;

use super::endpoint::Endpoint;
use super::error::PollError;
use super::http::{Connection, Recipient};
use super::tls::{TlsSettings, is_tls};

/// How all exporters are reached.
#[derive(Debug)]
pub enum Transport {
    /// Plain HTTP.
    Plain,
    /// HTTPS.
    Secure(Box<TlsSettings>),
}

impl Transport {
    /// Whether it accepts the same servers as `other`, so that their connections are as good as its own. The token may
    /// differ: each request carries it anew.
    pub(super) fn trusts_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Plain, Self::Plain) => true,
            (Self::Secure(ours), Self::Secure(theirs)) => {
                ours.ca == theirs.ca && ours.server_name == theirs.server_name
            }
            _ => false,
        }
    }

    /// What requests to the exporter at `endpoint` contain. The host of one behind TLS is the name that its certificate
    /// carries.
    pub(super) fn recipient(&self, endpoint: &Endpoint) -> Result<Recipient, PollError> {
        let (host, authorization) = match self {
            Self::Plain => (endpoint.address().to_owned(), None),
            Self::Secure(settings) => {
                let port = endpoint.address().rsplit(':').next().unwrap_or_default();
                let host = format!("{}:{port}", settings.server_name.as_ref());
                (host, settings.authorization.clone())
            }
        };
        let host = HeaderValue::try_from(host);
        let host = host.map_err(|error| PollError::Connect(error.to_string()))?;
        Ok(Recipient { host, authorization })
    }

    /// A new connection to the exporter at `endpoint`. Its name, if it is one, is resolved, and its addresses are tried in
    /// turn.
    ///
    /// # Errors
    /// When no address takes the connection, or the certificate is not accepted.
    pub(super) async fn connect(&self, endpoint: &Endpoint) -> Result<Connection, PollError> {
        let stream =
            TcpStream::connect(endpoint.address()).await.map_err(|error| failed(&error))?;
        // Requests are written at once as it is; it only spares the last part of a handshake a delay.
        stream.set_nodelay(true).map_err(|error| failed(&error))?;
        match self {
            Self::Plain => Ok(Connection::over(stream)),
            Self::Secure(settings) => {
                let name = settings.server_name.clone().into();
                let opened = settings.connector.connect(name, stream).await;
                Ok(Connection::over(opened.map_err(|error| failed(&error))?))
            }
        }
    }
}

/// An error before the first request.
fn failed(error: &io::Error) -> PollError {
    match is_tls(error) {
        true => PollError::Tls(error.to_string()),
        false => PollError::Connect(error.to_string()),
    }
}
