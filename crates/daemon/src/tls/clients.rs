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

/// A verifier of clients' certificates; without names it takes every one of the CAs.
pub(super) fn verifier(
    roots: Arc<RootCertStore>,
    names: &[String],
) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
    let verifier = verifier.map_err(|error| Error::General(error.to_string()))?;
    Ok(match names {
        [] => verifier,
        names => Arc::new(Named { verifier, names: names.to_vec() }),
    })
}

#[derive(Debug)]
struct Named {
    verifier: Arc<dyn ClientCertVerifier>,
    names: Vec<String>,
}

impl ClientCertVerifier for Named {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier.verify_client_cert(own, others, now)?;
        if has_a_name_of(own, &self.names) {
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
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}
