//! Why a poll failed.

use std::time::Duration;

use super::endpoint::NoEndpoint;

/// Largest body of an answer that is read, in bytes. One value takes 150 bytes in the detailed format, and a node has
/// tens to hundreds of values.
pub(super) const MAX_BODY: usize = 256 * 1024;

/// Why a poll of an exporter failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PollError {
    /// The exporter has no address.
    #[error(transparent)]
    NoEndpoint(#[from] NoEndpoint),
    /// The connection was refused, or the host is unreachable or unknown.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The server's certificate was not accepted, or the server does not speak TLS.
    #[error("TLS: {0}")]
    Tls(String),
    /// No complete answer in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The connection broke, or the answer is not HTTP.
    #[error("broken answer: {0}")]
    Broken(String),
    /// Status 401 or 403: the exporter wants a token, or another one.
    #[error("status {0}: it does not take our token; see --exporter-token-file")]
    Refused(u16),
    /// Another status than 200.
    #[error("status {0} where 200 was expected")]
    Status(u16),
    /// The body is longer than 256 KiB.
    #[error("more than {MAX_BODY} bytes")]
    TooLong,
    /// The body is not JSON of the requested format.
    #[error("{path} is not as documented: {problem}")]
    Body { path: &'static str, problem: String },
}

impl PollError {
    /// The value of the label `outcome` in metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::NoEndpoint(_) => "no_address",
            Self::Connect(_) => "connect",
            Self::Tls(_) => "tls",
            Self::Timeout(_) => "timeout",
            Self::Broken(_) => "broken",
            Self::Refused(_) => "refused",
            Self::Status(_) => "status",
            Self::TooLong => "too_long",
            Self::Body { .. } => "body",
        }
    }
}
