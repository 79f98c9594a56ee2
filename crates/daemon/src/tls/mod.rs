//! TLS for servers, with a certificate and key that may change at run time, and optionally with client certificates.
//!
//! Invariant: a handshake uses a matching pair of certificate and key: the last good one of the files. If client
//! certificates are required, the handshake of a client without one fails, or of one without an admitted name.

mod certificate;
mod clients;
mod peers;
mod refused;
mod servers;

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use crate::metrics::{Counter, Gauge, Labelled, Registry};
use jiff::Timestamp;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, DnsName, PrivateKeyDer};
use rustls::{Error, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::follow::{Current, FileError, NamedFile, Source};
use crate::{Context, Status};

use certificate::first_end;
use clients::Clients;
pub use peers::Peers;
pub use refused::ALGORITHMS;
pub use servers::Servers;

/// The files of a server's certificate and key, in PEM.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The certificate, followed by the intermediate ones up to the CA.
    pub certificate: NamedFile,
    /// The certificate's key, unencrypted: PKCS#8, PKCS#1 or SEC1.
    pub key: NamedFile,
    /// The certificates of the clients' CAs: every client needs a certificate of one of them. Without this file, every
    /// client is accepted.
    pub client_ca: Option<NamedFile>,
    /// Names of which a client's certificate must have one: as a DNS name, or as the common name of its subject. If
    /// there are none, every certificate of the CAs is taken.
    pub client_names: Vec<String>,
    /// The DNS name by which servers with such a certificate verify each other ([`Peers`]). If it is set, a certificate
    /// that is not valid for that is refused.
    pub peer_name: Option<DnsName<'static>>,
}

impl Source for Identity {
    type Value = ServerTls;
    const WHAT: &'static str = "certificate";

    fn files(&self) -> Vec<&NamedFile> {
        [&self.certificate, &self.key].into_iter().chain(&self.client_ca).collect()
    }

    fn parse(&self, contents: &[Vec<u8>]) -> Result<ServerTls, FileError> {
        let Parsed { chain, key, clients, clients_end } = self.parsed(contents)?;
        if let (Some(name), Some(clients)) = (&self.peer_name, &clients) {
            self.check_peer(&chain, clients, name)?;
        }
        let certificate_end = first_end(&chain);
        let config =
            config(chain, key, clients, &self.client_names).map_err(|error| self.blame(&error))?;
        Ok(ServerTls { config: Arc::new(config), certificate_end, clients_end })
    }
}

/// What a server's files hold together.
#[derive(Debug, Clone)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    /// When the first certificate of the server's chain ends; `None` if that cannot be read.
    pub certificate_end: Option<Timestamp>,
    /// When the first of the clients' CAs ends; `None` without such a file, or if that cannot be read.
    pub clients_end: Option<Timestamp>,
}

/// The parsed content of the files.
struct Parsed {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    clients: Option<Arc<RootCertStore>>,
    clients_end: Option<Timestamp>,
}

impl Identity {
    fn parsed(&self, contents: &[Vec<u8>]) -> Result<Parsed, FileError> {
        let [certificate, key, clients @ ..] = contents else {
            return Err(self.certificate.error("its key was not read"));
        };
        let cas = self.client_ca.as_ref().map(|file| roots(file, &clients.concat()));
        let (clients, end) = cas.transpose()?.unzip();
        let chain = chain(&self.certificate, certificate)?;
        let key = self.key(key)?;
        Ok(Parsed { chain, key, clients: clients.map(Arc::new), clients_end: end.flatten() })
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
            // It has been parsed, and is none that the TLS library can use.
            Error::General(_) => self.key.error(format!("expected a key of {ALGORITHMS}")),
            _ => self.key.error(error.to_string()),
        }
    }
}

/// The certificates in a file, at least one.
fn chain(file: &NamedFile, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) => Err(file.error("it holds no certificate; expected PEM")),
        Err(error) => Err(file.error(format!("{error}; expected PEM"))),
    }
}

/// The certificates of CAs in a file; each must be one that can be trusted. And when the first of them ends.
fn roots(file: &NamedFile, pem: &[u8]) -> Result<(RootCertStore, Option<Timestamp>), FileError> {
    let mut roots = RootCertStore::empty();
    let certificates = chain(file, pem)?;
    let end = first_end(&certificates);
    for certificate in certificates {
        roots.add(certificate).map_err(|error| file.error(error.to_string()))?;
    }
    Ok((roots, end))
}

fn config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    clients: Option<Arc<RootCertStore>>,
    client_names: &[String],
) -> Result<ServerConfig, Error> {
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?;
    let verifying = match clients {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            builder.with_client_cert_verifier(Arc::new(Clients::new(roots, client_names)?))
        }
    };
    let mut config = verifying.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The metrics of a server with TLS; clones share them.
#[derive(Debug, Clone)]
pub struct TlsMetrics {
    ends: Labelled<Gauge, 1>,
    failures: Counter,
}

impl TlsMetrics {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            ends: registry.gauges(
                "plimsoll_certificate_not_after_seconds",
                ["file"],
                "When the first certificate of a file of TLS ends, in Unix time",
            ),
            failures: registry.counter(
                "plimsoll_tls_handshake_failures_total",
                "Connections that ended before their TLS handshake was done",
            ),
        }
    }

    /// An acceptor whose failed handshakes and certificates show in these metrics.
    #[must_use]
    pub fn acceptor(&self, current: Current<ServerTls>, context: &Context) -> Acceptor {
        context.before_scrape(self, current.clone(), Self::set);
        let ends = current.clone();
        context.health().look("certificate-end", move || {
            let tls = Arc::clone(&ends.borrow());
            let ends = [("certificate", tls.certificate_end), ("client CA", tls.clients_end)];
            end_status(&ends, Timestamp::now())
        });
        Acceptor::new(current, self.failures.clone())
    }

    /// How many handshakes failed.
    #[must_use]
    pub fn failed_handshakes(&self) -> u64 {
        self.failures.get()
    }

    /// Sets when the certificates in force end. An end that is unknown is absent.
    fn set(&self, tls: &Current<ServerTls>) {
        let tls = Arc::clone(&tls.borrow());
        self.ends.clear();
        for (file, end) in [("certificate", tls.certificate_end), ("client_ca", tls.clients_end)] {
            if let Some(end) = end {
                self.ends.with([file]).set(end.as_second());
            }
        }
    }
}

/// Days before the end of a certificate from which it is warned of.
const WARNED_DAYS: i64 = 30;

/// Whether certificates last, by the one that ends first.
fn end_status(ends: &[(&str, Option<Timestamp>)], now: Timestamp) -> Status {
    const RENEW: &str = "renew its Secret: plimsoll scheduler certificates --new, or your issuer (docs/certificates.md)";
    let known = ends.iter().filter_map(|(file, end)| Some((file, (*end)?)));
    let Some((file, end)) = known.min_by_key(|(_, end)| *end) else {
        return Status::unknown("no certificate tells its end", RENEW);
    };
    let days = (end.as_second() - now.as_second()).div_euclid(86_400);
    match days {
        ..0 => Status::failed(format!("the {file} in use has ended"), RENEW),
        0..WARNED_DAYS => Status::warning(format!("the {file} in use ends in {days} days"), RENEW),
        _ => Status::ok(format!("the {file} in use ends in {days} days")),
    }
}

/// Does the TLS handshakes of a server.
#[derive(Debug, Clone)]
pub struct Acceptor {
    current: Current<ServerTls>,
    failures: Counter,
}

impl Acceptor {
    /// An acceptor that uses the certificate in force when a client connects. `failures` counts failed handshakes.
    #[must_use]
    pub fn new(current: Current<ServerTls>, failures: Counter) -> Self {
        Self { current, failures }
    }

    /// Counts a connection that ended before its handshake.
    pub(crate) fn count_failure(&self) {
        self.failures.inc();
    }

    /// A handshake, within `limit`. Any client can make one fail, so a failure is counted and logged at debug level
    /// only.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        limit: Duration,
    ) -> Option<TlsStream<TcpStream>> {
        let config = Arc::clone(&self.current.borrow().config);
        tokio::time::timeout(limit, TlsAcceptor::from(config).accept(stream))
            .await
            .unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
            .inspect_err(|error: &io::Error| {
                self.count_failure();
                tracing::debug!(%error, "TLS handshake failed");
            })
            .ok()
    }
}
