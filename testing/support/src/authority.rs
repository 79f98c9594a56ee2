//! A certificate authority for the tests of TLS: its certificate, those that it signs, and clients that trust it alone.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
};
use rustls::client::WantsClientCert;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
use tokio_rustls::TlsConnector;

/// A CA with a key of its own, which signs for any name.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
pub struct Signed {
    /// The certificate.
    pub certificate: Certificate,
    /// Its key.
    pub key: KeyPair,
}

/// A certificate for a DNS name that no other has signed, and that is a CA's: as `openssl req -x509` makes it.
#[must_use]
pub fn self_signed(name: &str) -> Signed {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    Signed { certificate: params.self_signed(&key).unwrap(), key }
}

impl Authority {
    /// A new CA.
    #[expect(clippy::new_without_default, reason = "each is another one")]
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its certificate in PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A new certificate for a DNS name.
    #[must_use]
    pub fn sign(&self, name: &str) -> Signed {
        self.sign_for(name, &[])
    }

    /// As [`Authority::sign`], for servers and for no clients.
    #[must_use]
    pub fn sign_for_servers(&self, name: &str) -> Signed {
        self.sign_for(name, &[ExtendedKeyUsagePurpose::ServerAuth])
    }

    /// As [`Authority::sign`], with this common name of the subject.
    #[must_use]
    pub fn sign_as(&self, common_name: &str, name: &str) -> Signed {
        self.sign_with(name, |params| {
            params.distinguished_name.push(DnType::CommonName, common_name);
        })
    }

    /// As [`Authority::sign`], valid until the beginning of that year.
    #[must_use]
    pub fn sign_until(&self, name: &str, year: i32) -> Signed {
        self.sign_with(name, |params| params.not_after = date_time_ymd(year, 1, 1))
    }

    fn sign_with(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Signed {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        change(&mut params);
        Signed { certificate: params.signed_by(&key, &self.0).unwrap(), key }
    }

    fn sign_for(&self, name: &str, purposes: &[ExtendedKeyUsagePurpose]) -> Signed {
        self.sign_with(name, |params| params.extended_key_usages = purposes.to_vec())
    }

    /// A client that trusts this CA alone.
    #[must_use]
    pub fn client(&self) -> TlsConnector {
        Arc::new(self.trusting().with_no_client_auth()).into()
    }

    /// A client that trusts this CA alone, and shows this certificate.
    #[must_use]
    pub fn client_with(&self, signed: &Signed) -> TlsConnector {
        let (certificate, key) = (signed.certificate.der().clone(), signed.key.serialize_der());
        let key = PrivateKeyDer::Pkcs8(key.into());
        let config = self.trusting().with_client_auth_cert(vec![certificate], key).unwrap();
        Arc::new(config).into()
    }

    fn trusting(&self) -> ConfigBuilder<ClientConfig, WantsClientCert> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
    }
}

impl Signed {
    /// The files of a TLS secret, by name, in PEM.
    #[must_use]
    pub fn files(&self) -> [(&'static str, String); 2] {
        [("tls.crt", self.certificate.pem()), ("tls.key", self.key.serialize_pem())]
    }
}
