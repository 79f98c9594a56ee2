//! The files with the CA and the token for exporters, as a source for [`daemon::follow`].

use daemon::follow::{FileError, NamedFile, Source};
use daemon::token::token;
use http::header::HeaderValue;

use super::tls::{self, TlsSettings};
use super::transport::Transport;

/// The files of the credentials.
#[derive(Debug, Clone)]
pub(crate) struct CredentialFiles {
    /// PEM certificates, one of which must have signed the exporter's.
    pub ca: NamedFile,
    /// The file with the token.
    pub token: Option<NamedFile>,
}

impl CredentialFiles {
    fn tls_settings(&self, ca: &[u8], token: Option<&[u8]>) -> Result<TlsSettings, FileError> {
        let connector = tls::trust(ca).map_err(|problem| not_a_ca(&self.ca, &problem))?;
        let authorization = self.token.as_ref().zip(token).map(|(file, text)| bearer(file, text));
        Ok(TlsSettings { connector, ca: ca.to_owned(), authorization: authorization.transpose()? })
    }
}

impl Source for CredentialFiles {
    type Value = Transport;

    const WHAT: &'static str = "credentials for exporters";

    fn files(&self) -> Vec<&NamedFile> {
        [Some(&self.ca), self.token.as_ref()].into_iter().flatten().collect()
    }

    fn parse(&self, contents: &[Vec<u8>]) -> Result<Transport, FileError> {
        let ca = contents.first().map(Vec::as_slice).unwrap_or_default();
        let settings = self.tls_settings(ca, contents.get(1).map(Vec::as_slice))?;
        Ok(Transport::Secure(Box::new(settings)))
    }
}

/// The error of a file that should have the certificates of a CA.
pub(crate) fn not_a_ca(file: &NamedFile, problem: &str) -> FileError {
    file.error(format!("{problem}; expected PEM certificates of a CA"))
}

/// `Bearer <token>`, marked so that it is never logged.
pub(crate) fn bearer(file: &NamedFile, text: &[u8]) -> Result<HeaderValue, FileError> {
    let bytes = [b"Bearer ", token(file, text)?].concat();
    let mut header = HeaderValue::try_from(bytes).map_err(|error| file.error(error.to_string()))?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use daemon::follow::Follower;

    use super::*;

    fn files(ca: PathBuf, token: Option<PathBuf>) -> CredentialFiles {
        let token = token.map(|path| NamedFile { flag: "--exporter-token-file", path });
        let ca = NamedFile { flag: "--exporter-ca-file", path: ca };
        CredentialFiles { ca, token }
    }

    fn error(ca: &str, token: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let ca_file = folder.path().join("ca");
        let token_file = folder.path().join("token");
        fs::write(&ca_file, ca).unwrap();
        fs::write(&token_file, token).unwrap();
        Follower::open(files(ca_file, Some(token_file))).map(drop).unwrap_err().to_string()
    }

    fn ca() -> String {
        support::authority::Authority::new().pem()
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
    fn a_token_that_is_no_header_value_is_an_error_that_does_not_repeat_it() {
        for token in ["", " \n", "two words", "two\nlines", "schlüssel", "a\0b"] {
            let error = error(&ca(), token);
            assert!(error.starts_with("--exporter-token-file /"), "{error}");
            assert!(token.trim().is_empty() || !error.contains(token), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = files("/nowhere/ca".into(), None).read().unwrap_err().to_string();
        assert!(error.starts_with("--exporter-ca-file /nowhere/ca: No such file"), "{error}");
    }
}
