//! How Prometheus is reached: the CA that is trusted, and the token that is sent.
//!
//! Invariants: the token is sent over TLS alone, after the server's certificate was verified; no redirect is followed and no
//! proxy is used.

use std::time::Duration;

use daemon::follow::{FileError, NamedFile, Source};
use http::header::HeaderValue;
use reqwest::{Client, redirect};

use crate::exporter::credentials::bearer;
use crate::exporter::tls;

/// Time for one query, answer included.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// The files with the credentials for Prometheus.
#[derive(Debug, Clone)]
pub struct AccessFiles {
    /// PEM certificates, one of which must have signed Prometheus's; `None` without TLS.
    pub ca: Option<NamedFile>,
    /// The file with the token. There is none without a CA.
    pub token: Option<NamedFile>,
}

/// A client and its Authorization header.
#[derive(Debug)]
pub struct Access {
    pub(super) client: Client,
    pub(super) authorization: Option<HeaderValue>,
}

impl Source for AccessFiles {
    type Value = Access;

    const WHAT: &'static str = "credentials for Prometheus";

    fn files(&self) -> Vec<&NamedFile> {
        self.ca.iter().chain(&self.token).collect()
    }

    fn parse(&self, contents: &[Vec<u8>]) -> Result<Access, FileError> {
        let mut contents = contents.iter();
        let mut content = |file: &Option<NamedFile>| file.as_ref().and_then(|_| contents.next());
        let (ca, token) = (content(&self.ca), content(&self.token));
        let flag = NamedFile { flag: "--prometheus-url", path: Default::default() };
        let named = self.ca.as_ref().unwrap_or(&flag);
        let tls = tls::client_config_of(ca.map(Vec::as_slice));
        let tls = tls.map_err(|problem| {
            named.error(format!("{problem}; expected PEM certificates of a CA"))
        })?;
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .no_proxy()
            .redirect(redirect::Policy::none())
            .timeout(TIMEOUT)
            .build();
        let client = client.map_err(|error| named.error(daemon::Causes(&error).to_string()))?;
        let authorization = self.token.as_ref().zip(token).map(|(file, text)| bearer(file, text));
        Ok(Access { client, authorization: authorization.transpose()? })
    }
}
