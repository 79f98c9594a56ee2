//! TLS between replicas of one server, which use the same certificate as server and as client.
//!
//! Replicas connect to the addresses of pods, which no certificate contains. So one DNS name is verified for every
//! address: TLS proves that the peer is such a server, not which replica it is.

use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, DnsName, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier as _;
use rustls::{CertificateError, ClientConfig, Error, RootCertStore};

use super::certificate::has_a_name_of;
use super::clients::Clients;
use super::refused::reason;
use super::servers::Servers;
use super::{Identity, Parsed};
use crate::follow::{FileError, NamedFile, Source};

/// The client settings of a server for calls to its peers, from the files of its own identity.
#[derive(Debug, Clone)]
pub struct Peers {
    identity: Identity,
    client_ca: NamedFile,
    name: DnsName<'static>,
}

impl Peers {
    /// `None` if the identity has no CA for clients, or no name for its peers.
    #[must_use]
    pub fn of(identity: &Identity) -> Option<Self> {
        let client_ca = identity.client_ca.clone()?;
        let name = identity.peer_name.clone()?;
        Some(Self { identity: identity.clone(), client_ca, name })
    }

    /// The file of the certificate.
    #[must_use]
    pub fn certificate(&self) -> &NamedFile {
        &self.identity.certificate
    }
}

impl Source for Peers {
    type Value = ClientConfig;
    const WHAT: &'static str = "certificate for other replicas";

    fn files(&self) -> Vec<&NamedFile> {
        self.identity.files()
    }

    fn parse(&self, contents: &[Vec<u8>]) -> Result<ClientConfig, FileError> {
        let Parsed { chain, key, clients, .. } = self.identity.parsed(contents)?;
        let roots = clients.ok_or_else(|| self.client_ca.error("it was not read"))?;
        self.identity.check_peer(&chain, &roots, &self.name)?;
        let servers = Servers::new(roots, Some(ServerName::DnsName(self.name.clone())));
        let verifier = servers.map_err(|error| self.client_ca.error(error.to_string()))?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map(|config| config.dangerous().with_custom_certificate_verifier(Arc::new(verifier)))
            .and_then(|config| config.with_client_auth_cert(chain, key));
        config.map_err(|error| self.identity.blame(&error))
    }
}

impl Identity {
    /// Whether servers with this certificate can call each other. Its period of validity is checked in handshakes only.
    pub(super) fn check_peer(
        &self,
        chain: &[CertificateDer<'static>],
        roots: &Arc<RootCertStore>,
        name: &DnsName<'static>,
    ) -> Result<(), FileError> {
        let Some((own, others)) = chain.split_first() else { return Ok(()) };
        let now = UnixTime::now();
        let refused = |error: Error| self.certificate.error(error.to_string());
        let clients = Clients::new(Arc::clone(roots), &[]).map_err(refused)?;
        let as_client = clients.verify_client_cert(own, others, now);
        let name_of_server = ServerName::DnsName(name.clone());
        let servers = Servers::new(Arc::clone(roots), None).map_err(refused)?;
        let as_server = servers.verify_server_cert(own, others, &name_of_server, &[], now);
        let faults = [as_server.err(), as_client.err()];
        if let Some(problem) = faults.iter().flatten().find_map(|fault| problem(fault, name)) {
            return Err(self.certificate.error(problem));
        }
        if !self.client_names.is_empty() && !has_a_name_of(own, &self.client_names) {
            let names = self.client_names.join(", ");
            return Err(self.certificate.error(format!(
                "replicas call each other with it; expected one of the names of clients that are admitted ({names})"
            )));
        }
        Ok(())
    }
}

/// Why a certificate can never be used between peers.
fn problem(fault: &Error, name: &DnsName<'static>) -> Option<String> {
    use CertificateError as Of;
    if let Some(reason) = reason(fault) {
        return Some(reason.to_string());
    }
    let Error::InvalidCertificate(fault) = fault else { return None };
    let expected = match fault {
        Of::NotValidForName | Of::NotValidForNameContext { .. } => {
            format!("one for the DNS name {}", name.as_ref())
        }
        Of::InvalidPurpose | Of::InvalidPurposeContext { .. } => {
            "the extended key usages serverAuth and clientAuth, or none".to_owned()
        }
        Of::UnknownIssuer | Of::BadSignature => {
            "one that a CA among those for clients has signed".to_owned()
        }
        _ => return None,
    };
    Some(format!("replicas call each other with it; expected {expected}"))
}
