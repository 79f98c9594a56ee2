//! Which servers' certificates are taken.
//!
//! Invariant: a server has a certificate for the name that is asked for, within its time, that a CA of the file has
//! signed, or that is itself in the file: a self-signed one is often a CA's (`openssl req -x509` makes it so).

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::refused::{explained, is_of_a_ca};

/// A verifier of servers' certificates.
#[derive(Debug)]
pub struct Servers {
    verifier: Arc<WebPkiServerVerifier>,
    roots: Arc<RootCertStore>,
    name: Option<ServerName<'static>>,
}

impl Servers {
    /// Takes servers with these CAs, and with `name` in place of the one of each connection, if it is given.
    ///
    /// # Errors
    /// When there is no CA.
    pub fn new(
        roots: Arc<RootCertStore>,
        name: Option<ServerName<'static>>,
    ) -> Result<Self, Error> {
        let provider = Arc::new(ring::default_provider());
        let builder = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), provider);
        let verifier = builder.build().map_err(|error| Error::General(error.to_string()))?;
        Ok(Self { verifier, roots, name })
    }

    /// Whether the file has a certificate with the subject and key of this one.
    fn has(&self, own: &CertificateDer<'_>) -> bool {
        webpki::anchor_from_trusted_cert(own).is_ok_and(|own| self.roots.roots.contains(&own))
    }
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let name = self.name.as_ref().unwrap_or(name);
        match self.verifier.verify_server_cert(own, others, name, ocsp, now) {
            // Its time has been verified by then, and its name has not. Its key is proved by the handshake.
            Err(error) if is_of_a_ca(&error) && self.has(own) => {
                verify_server_name(&ParsedCertificate::try_from(own)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified.map_err(explained),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature).map_err(explained)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature).map_err(explained)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}
