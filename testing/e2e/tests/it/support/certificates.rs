//! Owns the certificates with which tests call the extender's verbs: kube-scheduler's, and wrong ones.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::{Client, Config};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use support::authority::Authority;

use crate::env::TestEnv;
use crate::support::http::Tls;

/// The Secret that `plimsoll scheduler` makes for kube-scheduler.
const OF_KUBE_SCHEDULER: &str = "kube-scheduler-tls";
/// The name in the extender's certificate.
const NAME: &str = "scheduler-extender.plimsoll.svc";

/// What a client trusts and shows, in PEM.
struct Files {
    ca: Vec<u8>,
    shown: Option<(Vec<u8>, Vec<u8>)>,
}

/// kube-scheduler's own.
pub(crate) fn of_kube_scheduler(env: &TestEnv) -> Result<Tls> {
    tls(&read(env)?)
}

/// A connection that stays open to a replica's verbs, with kube-scheduler's own.
pub(crate) fn client_of_kube_scheduler(env: &TestEnv, replica: SocketAddr) -> Result<Client> {
    let Files { ca, shown } = read(env)?;
    let (certificate, key) = shown.context("no certificate")?;
    let mut config = Config::new(format!("https://{replica}").parse()?);
    let roots = CertificateDer::pem_slice_iter(&ca).map(|root| Ok(root?.to_vec()));
    config.root_cert = Some(roots.collect::<Result<_>>()?);
    config.tls_server_name = Some(NAME.to_owned());
    config.auth_info = serde_json::from_value(json!({
        "client-certificate-data": base64(certificate), "client-key-data": base64(key),
    }))?;
    env.client_of(config)
}

fn base64(file: Vec<u8>) -> Value {
    json!(ByteString(file))
}

/// None at all.
pub(crate) fn none(env: &TestEnv) -> Result<Tls> {
    tls(&Files { shown: None, ..read(env)? })
}

/// One for kube-scheduler of another CA.
pub(crate) fn of_another_authority(env: &TestEnv) -> Result<Tls> {
    let [(_, certificate), (_, key)] = Authority::new().sign("system:kube-scheduler").files();
    let shown = Some((certificate.into_bytes(), key.into_bytes()));
    tls(&Files { shown, ..read(env)? })
}

fn read(env: &TestEnv) -> Result<Files> {
    let secrets: Api<Secret> = Api::namespaced(env.client(), "plimsoll");
    let data = env.block_on(secrets.get(OF_KUBE_SCHEDULER))?.data.unwrap_or_default();
    let shown = (file(&data, "tls.crt")?, file(&data, "tls.key")?);
    Ok(Files { ca: file(&data, "ca.crt")?, shown: Some(shown) })
}

fn file(data: &BTreeMap<String, ByteString>, name: &str) -> Result<Vec<u8>> {
    let content = data.get(name).map(|content| content.0.clone());
    content.with_context(|| format!("Secret {OF_KUBE_SCHEDULER} has no {name}"))
}

fn tls(files: &Files) -> Result<Tls> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&files.ca) {
        roots.add(certificate?)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions()?.with_root_certificates(roots);
    let config = match &files.shown {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>()?;
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key)?)?
        }
    };
    Ok(Tls { config: Arc::new(config), name: ServerName::try_from(NAME)? })
}
