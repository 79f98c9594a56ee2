//! Why certificates are refused whose owner cannot see it from the TLS library's error.

use std::sync::Arc;

use rustls::{CertificateError, Error, OtherError};

/// The keys and signatures of certificates that are taken: what *ring* has.
pub const ALGORITHMS: &str = "RSA of 2048 to 4096 bits, ECDSA on P-256 or P-384, or Ed25519, signed with SHA-256 or SHA-384 (by RSA also \
     with SHA-512)";

/// Why a certificate is refused, and what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    /// Its basic constraints say that it is a CA's.
    #[error(
        "the certificate is a CA's (CA:TRUE): give one without that which a CA of the file has signed, or put a server's \
         itself into the file"
    )]
    OfACa,
    /// Its key or a signature is of another kind.
    #[error(
        "the certificate's key or a signature is of a kind that is not taken; expected {ALGORITHMS}"
    )]
    Algorithm,
}

/// Whether a certificate is refused for being a CA's.
pub(super) fn is_of_a_ca(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(OtherError(cause))) = error else {
        return false;
    };
    cause.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity)
}

/// The error with what to do, if it is of these kinds.
pub(super) fn explained(error: Error) -> Error {
    use CertificateError as Of;
    let refused = match &error {
        error if is_of_a_ca(error) => Refused::OfACa,
        #[expect(deprecated, reason = "the library may still return it")]
        Error::InvalidCertificate(
            Of::UnsupportedSignatureAlgorithm
            | Of::UnsupportedSignatureAlgorithmContext { .. }
            | Of::UnsupportedSignatureAlgorithmForPublicKeyContext { .. },
        ) => Refused::Algorithm,
        _ => return error,
    };
    // An error that its text shows in words; those of certificates show their debug form.
    Error::Other(OtherError(Arc::new(refused)))
}

/// The reason in an explained error.
pub(super) fn reason(error: &Error) -> Option<Refused> {
    let Error::Other(OtherError(cause)) = error else { return None };
    cause.downcast_ref().copied()
}
