//! How connections to exporters are made, with or without TLS. No proxy is used.
//!
//! Invariant: a TLS connection is returned only after the exporter's certificate was verified.

use std::io;

use http::header::HeaderValue;
use tokio::net::TcpStream;

use super::endpoint::Endpoint;
use super::error::PollError;
use super::http::{Connection, Recipient};
use super::tls::{TlsSettings, is_tls};

/// The transport to all exporters.
#[derive(Debug)]
pub enum Transport {
    /// Plain HTTP.
    Plain,
    /// HTTPS.
    Secure(Box<TlsSettings>),
}

impl Transport {
    /// Whether it accepts the same servers as `other`, so that connections of `other` can be reused. The token may
    /// differ: it is sent with each request.
    pub(super) fn trusts_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Plain, Self::Plain) => true,
            (Self::Secure(ours), Self::Secure(theirs)) => {
                ours.ca == theirs.ca && ours.server_name == theirs.server_name
            }
            _ => false,
        }
    }

    /// The headers of requests to the exporter at `endpoint`. With TLS, the Host header is the name in its certificate.
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

    /// A new connection to the exporter at `endpoint`. A host name is resolved, and its addresses are tried in turn.
    ///
    /// # Errors
    /// If no address accepts the connection, or the certificate is not accepted.
    pub(super) async fn connect(&self, endpoint: &Endpoint) -> Result<Connection, PollError> {
        let stream =
            TcpStream::connect(endpoint.address()).await.map_err(|error| failed(&error))?;
        // Requests are written at once anyway; this only avoids a delay of the last part of a handshake.
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
