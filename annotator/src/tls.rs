//! Whom the annotator takes for an exporter, and what it shows them: a CA, a name, a token.
//!
//! Nodes are called by their IP addresses, which no certificate names. So every exporter shows a
//! certificate for one and the same name, and it is that name which is verified, whatever the
//! address. Invariant: the token goes to holders of such a certificate alone, since TLS is settled
//! before the request is sent.

use std::error::Error;
use std::sync::Arc;

use daemon::follow::{FileError, NamedFile, Source};
use daemon::token::token;
use reqwest::header::HeaderValue;
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, DnsName};
use rustls::{ClientConfig, RootCertStore};

use crate::channel::Channel;

/// What it takes to talk to exporters over TLS.
#[derive(Debug, Clone)]
pub struct Trust {
    /// Verifies against the CA.
    pub tls: ClientConfig,
    /// The name that certificates must carry.
    pub name: DnsName<'static>,
    /// The value of the Authorization header, if there is a token.
    pub token: Option<HeaderValue>,
}

/// Believes nobody: for clients that speak no TLS, which reqwest wants to be set up for it all the
/// same.
pub(crate) fn nobody() -> Result<ClientConfig, rustls::Error> {
    config(RootCertStore::empty())
}

fn config(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions()?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    // Sessions are kept by name, and all exporters bear the same.
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Where trust comes from.
#[derive(Debug, Clone)]
pub struct Sources {
    /// PEM certificates: an exporter's must be signed by one of them.
    pub ca: NamedFile,
    /// The name that it must carry.
    pub server_name: DnsName<'static>,
    /// The file that holds the token.
    pub token: Option<NamedFile>,
}

impl Sources {
    fn trust(&self, ca: &[u8], token: Option<&[u8]>) -> Result<Trust, FileError> {
        let refused = |problem: String| {
            self.ca.error(format!("{problem}; expected PEM certificates of a CA"))
        };
        let tls = roots(ca).and_then(|roots| config(roots).map_err(|error| error.to_string()));
        let shown = self.token.as_ref().zip(token).map(|(file, text)| bearer(file, text));
        let name = self.server_name.clone();
        Ok(Trust { tls: tls.map_err(refused)?, name, token: shown.transpose()? })
    }
}

impl Source for Sources {
    type Made = Channel;

    const WHAT: &'static str = "credentials for exporters";

    fn files(&self) -> Vec<&NamedFile> {
        [Some(&self.ca), self.token.as_ref()].into_iter().flatten().collect()
    }

    fn make(&self, contents: &[Vec<u8>]) -> Result<Channel, FileError> {
        let content = |place: usize| contents.get(place).map(Vec::as_slice);
        let trust = self.trust(content(0).unwrap_or_default(), content(1))?;
        Ok(Channel::Secure(Box::new(trust)))
    }
}

fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() { Err("it holds no certificate".to_owned()) } else { Ok(roots) }
}

/// The header's value, which no log shows.
fn bearer(file: &NamedFile, text: &[u8]) -> Result<HeaderValue, FileError> {
    let value = [b"Bearer ", token(file, text)?].concat();
    let mut value = HeaderValue::try_from(value).map_err(|error| file.error(error.to_string()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Whether TLS itself is what failed. It is told through IO errors, which hide what they carry from
/// those who ask for their source.
#[must_use]
pub fn is_tls(error: &(dyn Error + 'static)) -> bool {
    let carried = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    error.is::<rustls::Error>()
        || carried.is_some_and(|carried| is_tls(carried))
        || error.source().is_some_and(is_tls)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use daemon::follow::Follower;

    use super::*;

    fn sources(ca: PathBuf, token: Option<PathBuf>) -> Sources {
        let token = token.map(|path| NamedFile { flag: "--exporter-token-file", path });
        let server_name = DnsName::try_from("node-exporter-plus").unwrap();
        Sources { ca: NamedFile { flag: "--exporter-ca-file", path: ca }, server_name, token }
    }

    fn error(ca: &str, token: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let (ca_file, token_file) = (folder.path().join("ca"), folder.path().join("token"));
        fs::write(&ca_file, ca).unwrap();
        fs::write(&token_file, token).unwrap();
        Follower::open(sources(ca_file, Some(token_file))).map(drop).unwrap_err().to_string()
    }

    fn ca() -> String {
        rcgen::generate_simple_self_signed(vec!["ca".to_owned()]).unwrap().cert.pem()
    }

    #[test]
    fn a_file_that_holds_no_ca_is_an_error_that_names_flag_and_file() {
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let torn = "-----BEGIN CERTIFICATE-----\nAAAA\n";
        for text in ["", "hello", broken, torn] {
            let error = error(text, "token");
            assert!(error.starts_with("--exporter-ca-file /"), "{error}");
            assert!(error.ends_with("expected PEM certificates of a CA"), "{error}");
        }
    }

    #[test]
    fn a_token_that_cannot_be_sent_is_an_error_that_does_not_repeat_it() {
        for token in ["", " \n", "two words", "two\nlines", "schlüssel", "a\0b"] {
            let error = error(&ca(), token);
            assert!(error.starts_with("--exporter-token-file /"), "{error}");
            assert!(token.trim().is_empty() || !error.contains(token), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = sources("/nowhere/ca".into(), None).read().unwrap_err().to_string();
        assert!(error.starts_with("--exporter-ca-file /nowhere/ca: No such file"), "{error}");
    }
}
