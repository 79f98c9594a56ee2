//! Which servers' certificates are taken, and what is said of those that are not.
//!
//! `tests/fixtures/tls` is made by OpenSSL 3.0: `self-signed.crt` by `openssl req -x509 -newkey rsa:2048 -days 36500
//! -addext subjectAltName=DNS:prometheus.example`, so that it is a CA's; `p521-ca.crt` and `p521.key` by the same with
//! a key on P-521; `of-p521.crt` is signed by that CA.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use daemon::follow::{Follower, NamedFile};
use daemon::tls::{ALGORITHMS, Identity, Servers};
use rustls::RootCertStore;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, DnsName, ServerName, UnixTime};
use support::authority::{Authority, self_signed};

const NAME: &str = "prometheus.example";

fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tls");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect()
}

/// Whether a client with these certificates in the file of its CA takes a server with that one, at a time.
fn verify_at(file: &str, shown: &str, name: &str, now: UnixTime) -> Result<(), String> {
    let mut roots = RootCertStore::empty();
    certificates(file).into_iter().for_each(|certificate| roots.add(certificate).unwrap());
    let servers = Servers::new(Arc::new(roots), None).unwrap();
    let name = ServerName::try_from(name).unwrap();
    let verified = servers.verify_server_cert(&certificates(shown)[0], &[], &name, &[], now);
    verified.map(drop).map_err(|error| error.to_string())
}

fn verify(file: &str, shown: &str, name: &str) -> Result<(), String> {
    verify_at(file, shown, name, UnixTime::now())
}

#[test]
fn a_self_signed_certificate_in_the_ca_file_is_admitted_by_name() {
    let by_openssl = fixture("self-signed.crt");
    let others = [Authority::new().pem(), self_signed(NAME).certificate.pem()].concat();
    for file in [by_openssl.clone(), [others, by_openssl.clone()].concat()] {
        assert_eq!(verify(&file, &by_openssl, NAME), Ok(()));
        let error = verify(&file, &by_openssl, "elsewhere.example").unwrap_err();
        assert!(error.contains("not valid for name"), "{error}");
        let long_ago = UnixTime::since_unix_epoch(Duration::from_secs(1_000_000_000));
        let error = verify_at(&file, &by_openssl, NAME, long_ago).unwrap_err();
        assert!(error.contains("not valid yet"), "{error}");
        let late = UnixTime::since_unix_epoch(Duration::from_secs(10_000_000_000));
        let error = verify_at(&file, &by_openssl, NAME, late).unwrap_err();
        assert!(error.contains("expired"), "{error}");
    }
}

#[test]
fn one_that_is_not_in_the_file_is_refused_with_the_remedy() {
    let (own, other) = (self_signed(NAME).certificate.pem(), self_signed(NAME).certificate.pem());
    for file in [other, Authority::new().pem(), fixture("self-signed.crt")] {
        let error = verify(&file, &own, NAME).unwrap_err();
        assert!(error.contains("the certificate is a CA's (CA:TRUE)"), "{error}");
        assert!(error.ends_with("or put a server's itself into the file"), "{error}");
    }
}

#[test]
fn a_certificate_of_a_kind_that_is_not_taken_is_refused_with_the_kinds_that_are() {
    let (ca, shown) = (fixture("p521-ca.crt"), fixture("of-p521.crt"));
    let error = verify(&ca, &shown, NAME).unwrap_err();
    assert!(error.ends_with(&format!("expected {ALGORITHMS}")), "{error}");
}

#[test]
fn what_any_other_certificate_lacks_is_still_told_as_before() {
    let authority = Authority::new();
    let signed = authority.sign(NAME).certificate.pem();
    assert_eq!(verify(&authority.pem(), &signed, NAME), Ok(()));
    let error = verify(&Authority::new().pem(), &signed, NAME).unwrap_err();
    // Both CAs have the same name.
    assert!(error.contains("BadSignature"), "{error}");
    // A server's own certificate in the file makes it no CA.
    assert!(verify(&signed, &signed, NAME).is_err());
}

/// What is said at the start of the files of a server, the replicas of which call each other.
fn start(certificate: &str, key: &str, client_ca: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let write = |flag, name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        NamedFile { flag, path }
    };
    let identity = Identity {
        certificate: write("--tls-cert-file", "tls.crt", certificate),
        key: write("--tls-key-file", "tls.key", key),
        client_ca: Some(write("--client-ca-file", "ca.crt", client_ca)),
        client_names: Vec::new(),
        peer_name: Some(DnsName::try_from(NAME).unwrap()),
    };
    Follower::open(identity).map(drop).map_err(|error| error.to_string())
}

#[test]
fn a_servers_own_certificate_or_key_that_is_never_taken_is_named_at_the_start() {
    let authority = Authority::new();
    let signed = authority.sign(NAME);
    let (certificate, key) = (signed.certificate.pem(), signed.key.serialize_pem());
    assert_eq!(start(&certificate, &key, &authority.pem()), Ok(()));

    let error = start(&certificate, &fixture("p521.key"), &authority.pem()).unwrap_err();
    assert!(error.starts_with("--tls-key-file "), "{error}");
    assert!(error.ends_with(&format!("expected a key of {ALGORITHMS}")), "{error}");

    let own = self_signed(NAME);
    let (certificate, key) = (own.certificate.pem(), own.key.serialize_pem());
    let error = start(&certificate, &key, &certificate).unwrap_err();
    assert!(error.starts_with("--tls-cert-file "), "{error}");
    assert!(error.contains("the certificate is a CA's (CA:TRUE)"), "{error}");

    let error = start(&fixture("of-p521.crt"), &key, &fixture("p521-ca.crt")).unwrap_err();
    assert!(error.ends_with(&format!("expected {ALGORITHMS}")), "{error}");
}
