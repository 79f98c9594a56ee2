//! The address of a node's exporter.
//!
//! An annotation on the Node can override it, for exporters behind a proxy or on another network. So every account that
//! may annotate Nodes can make this program send a GET to any host and port. To limit the damage, the override is a
//! host and a port only, the path is fixed, redirects are not followed, no proxy is used, and only numbers under the
//! names in the policy are ever written. A token is sent over TLS alone, after the server's certificate was verified
//! ([`super::tls`]).

use cluster::NodeFacts;

/// The address of an exporter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    address: String,
}

impl Endpoint {
    /// `host:port`; an IPv6 address is in brackets.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }
}

/// Why a node's exporter has no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoEndpoint {
    /// The Node has neither an InternalIP nor the annotation, or the Service of the exporters no ready endpoint on it.
    #[error(
        "the Node has no InternalIP, or --exporter-service no ready endpoint on it; its annotation `{0}` can name the \
         exporter as host:port"
    )]
    NoAddress(String),
    /// The annotation is not `host:port`.
    #[error("the Node's annotation `{key}`: {error}")]
    Annotation {
        /// The annotation's key.
        key: String,
        /// What is wrong with it.
        error: cluster::ExporterError,
    },
}

/// The address of the node's exporter: the one in the annotation `key`, otherwise the node's InternalIP and `port`.
///
/// # Errors
/// When the annotation is not `host:port`, or there is neither an annotation nor an InternalIP.
pub fn endpoint(facts: &NodeFacts, port: u16, key: &str) -> Result<Endpoint, NoEndpoint> {
    let address = match (&facts.exporter, facts.internal_ip) {
        (Some(Ok(address)), _) => address.clone(),
        (Some(Err(error)), _) => {
            return Err(NoEndpoint::Annotation { key: key.to_owned(), error: error.clone() });
        }
        (None, Some(ip)) => std::net::SocketAddr::new(ip, port).to_string(),
        (None, None) => return Err(NoEndpoint::NoAddress(key.to_owned())),
    };
    Ok(Endpoint { address })
}
