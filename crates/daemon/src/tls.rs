//! TLS for servers, with a certificate and key that may change while they run.
//!
//! Invariant: a handshake uses a certificate and the key that belongs to it: the last good pair of the files.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{Error, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::follow::{Current, FileError, NamedFile, Source};

/// The files of a server's certificate and key, in PEM.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The certificate, followed by the intermediate ones up to the CA.
    pub certificate: NamedFile,
    /// The certificate's key, unencrypted: PKCS#8, PKCS#1 or SEC1.
    pub key: NamedFile,
}

impl Source for Identity {
    type Value = ServerConfig;
    const WHAT: &'static str = "certificate";

    fn files(&self) -> Vec<&NamedFile> {
        vec![&self.certificate, &self.key]
    }

    fn parse(&self, contents: &[Vec<u8>]) -> Result<ServerConfig, FileError> {
        let [certificate, key] = contents else {
            return Err(self.certificate.error("its key was not read"));
        };
        config(self.chain(certificate)?, self.key(key)?).map_err(|error| self.blame(&error))
    }
}

impl Identity {
    fn chain(&self, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        match chain {
            Ok(chain) if !chain.is_empty() => Ok(chain),
            Ok(_) => Err(self.certificate.error("it holds no certificate; expected PEM")),
            Err(error) => Err(self.certificate.error(format!("{error}; expected PEM"))),
        }
    }

    fn key(&self, pem: &[u8]) -> Result<PrivateKeyDer<'static>, FileError> {
        // The parser's own message is left out: it may quote the file.
        let hint = "it holds no private key; expected PEM, unencrypted (PKCS#8, PKCS#1 or SEC1)";
        PrivateKeyDer::from_pem_slice(pem).map_err(|_| self.key.error(hint))
    }

    /// The error as one of the file that is at fault.
    fn blame(&self, error: &Error) -> FileError {
        match error {
            Error::InvalidCertificate(_) => self.certificate.error(error.to_string()),
            Error::InconsistentKeys(_) => {
                let certificate = self.certificate.path().display();
                self.key.error(format!("it is not the key of the certificate in {certificate}"))
            }
            _ => self.key.error(error.to_string()),
        }
    }
}

fn config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let config =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = config.with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Does the TLS handshakes of a server.
#[derive(Debug, Clone)]
pub struct Acceptor {
    current: Current<ServerConfig>,
    failures: Counter,
}

impl Acceptor {
    /// With the certificate that is in force when a client connects. `failures` counts the handshakes that fail.
    #[must_use]
    pub fn new(current: Current<ServerConfig>, failures: Counter) -> Self {
        Self { current, failures }
    }

    /// A handshake, within `limit`. Any client can make one fail, so a failure is counted and logged at debug level only.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        limit: Duration,
    ) -> Option<TlsStream<TcpStream>> {
        let config = Arc::clone(&self.current.borrow());
        let accepted = tokio::time::timeout(limit, TlsAcceptor::from(config).accept(stream)).await;
        let accepted = accepted.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
        let count = |error: &io::Error| {
            self.failures.inc();
            tracing::debug!(%error, "TLS handshake failed");
        };
        accepted.inspect_err(count).ok()
    }
}
