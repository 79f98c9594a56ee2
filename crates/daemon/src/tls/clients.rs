//! Which certificates of clients are taken.
//!
//! Invariant: a client has a certificate that a CA of the file has signed for clients and, where names are given, one
//! of these names.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};

use super::certificate::has_a_name_of;
use super::refused::explained;

/// A verifier of clients' certificates.
#[derive(Debug)]
pub(super) struct Clients {
    verifier: Arc<dyn ClientCertVerifier>,
    names: Vec<String>,
}

impl Clients {
    /// Takes clients with these CAs and one of these names; without names, every one of the CAs.
    pub(super) fn new(roots: Arc<RootCertStore>, names: &[String]) -> Result<Self, Error> {
        let provider = Arc::new(ring::default_provider());
        let built = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
        let verifier = built.map_err(|error| Error::General(error.to_string()))?;
        Ok(Self { verifier, names: names.to_vec() })
    }
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier.verify_client_cert(own, others, now).map_err(explained)?;
        if self.names.is_empty() || has_a_name_of(own, &self.names) {
            return Ok(verified);
        }
        tracing::debug!(names = ?self.names, "a client's certificate has none of these names");
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
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
