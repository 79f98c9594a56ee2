//! How Prometheus is reached: the CA that is trusted, and the token that is sent.
//!
//! Invariants: the token is sent over TLS alone, after the server's certificate was verified; no redirect is followed
//! and no proxy is used.

use std::time::Duration;

use daemon::follow::{FileError, NamedFile, Source};
use http::header::HeaderValue;
use reqwest::{Client, redirect};

use crate::exporter::credentials::{bearer, not_a_ca};
use crate::exporter::tls;

/// Time for one query, answer included.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// The files with the credentials for Prometheus.
#[derive(Debug, Clone)]
pub(crate) struct AccessFiles {
    /// PEM certificates, one of which must have signed Prometheus's; `None` without TLS.
    pub ca: Option<NamedFile>,
    /// The file with the token. There is none without a CA.
    pub token: Option<NamedFile>,
}

/// A client and its Authorization header.
#[derive(Debug)]
pub(crate) struct Access {
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
        // One content for each file that is given, in the order of `files`.
        let mut given = contents.iter().map(Vec::as_slice);
        let ca = if self.ca.is_some() { given.next() } else { None };
        let flag = NamedFile { flag: "--prometheus-url", path: Default::default() };
        let ca_file = self.ca.as_ref().unwrap_or(&flag);
        let tls = tls::client_config_of(ca).map_err(|problem| not_a_ca(ca_file, &problem))?;
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .no_proxy()
            .redirect(redirect::Policy::none())
            .timeout(TIMEOUT)
            .build()
            .map_err(|error| ca_file.error(daemon::Causes(&error).to_string()))?;
        let token = self.token.as_ref().zip(given.next());
        let authorization = token.map(|(file, text)| bearer(file, text)).transpose()?;
        Ok(Access { client, authorization })
    }
}
