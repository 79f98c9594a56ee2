//! TLS to exporters: the CA that is trusted, the name that certificates carry, the token that is sent.
//!
//! Nodes are reached by IP addresses, which no certificate names. So every exporter shows a certificate for one and the
//! same DNS name, and that name is verified whatever the address. Invariant: the token is sent only after the server's
//! certificate was verified, since the TLS handshake comes before the request.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use daemon::tls::{ALGORITHMS, Servers};
use http::header::HeaderValue;
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{AlertDescription, ClientConfig, OtherError, RootCertStore};
use tokio_rustls::TlsConnector;

/// The DNS name that every exporter's certificate must carry.
pub(super) const SERVER_NAME: &str = "node-exporter-plus";

/// The TLS settings of connections to exporters.
#[derive(Clone)]
pub(crate) struct TlsSettings {
    /// Trusts the CA.
    pub connector: TlsConnector,
    /// The content of the CA's file, to detect a change of the CA.
    pub ca: Vec<u8>,
    /// The value of the Authorization header, if there is a token.
    pub authorization: Option<HeaderValue>,
}

impl fmt::Debug for TlsSettings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut settings = formatter.debug_struct("TlsSettings");
        settings.field("authorization", &self.authorization).finish_non_exhaustive()
    }
}

/// A configuration that trusts the certificates in `pem`; without `pem` it trusts none, since reqwest requires a
/// configuration even if it is never used.
///
/// # Errors
/// A message, when `pem` holds no certificate or one that cannot be read.
pub(crate) fn client_config_of(pem: Option<&[u8]>) -> Result<ClientConfig, String> {
    let roots = pem.map(roots).transpose()?;
    client_config(roots).map_err(|error| error.to_string())
}

/// A connector that trusts the certificates in `pem`.
///
/// # Errors
/// A message, when `pem` holds no certificate or one that cannot be read.
pub(super) fn trust(pem: &[u8]) -> Result<TlsConnector, String> {
    Ok(TlsConnector::from(Arc::new(client_config_of(Some(pem))?)))
}

fn client_config(roots: Option<RootCertStore>) -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?;
    let mut config = match roots {
        None => builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth(),
        Some(roots) => {
            let servers = Arc::new(Servers::new(Arc::new(roots), None)?);
            builder.dangerous().with_custom_certificate_verifier(servers).with_no_client_auth()
        }
    };
    // Sessions are kept by server name, which is the same for all exporters.
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for parsed in CertificateDer::pem_slice_iter(pem) {
        let certificate = parsed.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() { Err("it holds no certificate".to_owned()) } else { Ok(roots) }
}

/// The text of the TLS library's error, if one is in the chain.
pub(crate) fn tls_cause(error: &(dyn Error + 'static)) -> Option<String> {
    let error = tls_error(error)?;
    Some(match error {
        // So end the handshakes of a server whose certificate has a key of another kind.
        rustls::Error::AlertReceived(AlertDescription::HandshakeFailure) => {
            format!("{error}: its certificate must be of {ALGORITHMS}")
        }
        rustls::Error::Other(OtherError(refused)) => refused.to_string(),
        error => error.to_string(),
    })
}

/// The TLS library's error is wrapped in an [`std::io::Error`], whose `source` does not return it.
fn tls_error<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    error
        .downcast_ref::<rustls::Error>()
        .or_else(|| wrapped.and_then(|wrapped| tls_error(wrapped)))
        .or_else(|| error.source().and_then(tls_error))
}
