//! Where a node's exporter answers.
//!
//! Whoever may annotate Nodes can make this program send a GET to any host and port of their choice
//! (the override exists for exporters behind a proxy or on another network). The damage is kept
//! small: host and port only, the path is ours, redirects are not followed, no proxy is used, and
//! only numbers under the names in the policy are ever repeated. A token goes out over TLS alone,
//! to a server that has proved itself first ([`crate::tls`]).

use cluster::NodeFacts;

/// Where an exporter answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    address: String,
}

impl Endpoint {
    /// `host:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }
}

/// Why it is not known where a node's exporter answers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoEndpoint {
    /// The node has no address.
    #[error("the Node has no InternalIP; its annotation `{0}` can name the exporter as host:port")]
    NoAddress(String),
    /// The operator's annotation is no address.
    #[error("the Node's annotation `{key}`: {error}")]
    Annotation {
        /// The annotation's key.
        key: String,
        /// What is wrong with it.
        error: cluster::ExporterError,
    },
}

/// Where the node's exporter answers: where the operator's annotation says, or else at its
/// InternalIP and `port`. `key` is the annotation's.
///
/// # Errors
/// When the annotation is no `host:port`, or there is neither.
pub fn endpoint(facts: &NodeFacts, port: u16, key: &str) -> Result<Endpoint, NoEndpoint> {
    let address = match (&facts.exporter, facts.internal_ip) {
        (Some(Ok(address)), _) => address.clone(),
        (Some(Err(error)), _) => {
            return Err(NoEndpoint::Annotation { key: key.to_owned(), error: error.clone() });
        }
        // Brackets an IPv6 address.
        (None, Some(ip)) => std::net::SocketAddr::new(ip, port).to_string(),
        (None, None) => return Err(NoEndpoint::NoAddress(key.to_owned())),
    };
    Ok(Endpoint { address })
}
