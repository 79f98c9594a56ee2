//! The certificates by which extender and kube-scheduler know each other: the Secrets, and how they are made.
//!
//! Invariant: keys are in memory and in the Secrets; that of the CA is in memory alone, until both are signed.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::args::scheduler::{Certificates, host};
use crate::cluster_access::workload::Workload;
use crate::cluster_access::{CLIENT_SECRET, EXTENDER, Kubectl, SERVER_SECRET};

/// The keys of a Secret, and the names of its files on a node.
pub(super) const FILES: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];
/// How long certificates last that are made here: nothing renews them.
const DAYS: i64 = 365;

/// Plimsoll in its namespace, as the API server knows it.
pub(super) struct Plimsoll<'a> {
    pub(super) kubectl: &'a Kubectl,
    pub(super) namespace: &'a str,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Secret {
    data: BTreeMap<String, String>,
}

/// `plimsoll scheduler certificates`: makes both Secrets, unless they are there.
pub(super) fn certificates(flags: &Certificates, output: &mut dyn Write) -> Result<()> {
    let kubectl = &Kubectl::new(&flags.connection);
    let plimsoll = Plimsoll { kubectl, namespace: &flags.namespace };
    if flags.new && !flags.dry_run {
        // Before those in use are deleted: what can fail has been done.
        let made = make(&plimsoll.server_name())?;
        let words = ["delete", "secret", SERVER_SECRET, CLIENT_SECRET, "--ignore-not-found"];
        kubectl.run(&[&words[..], &[&plimsoll.flag()]].concat())?;
        return plimsoll.create(&made, output);
    }
    if !plimsoll.ensure_secrets(flags.dry_run, output)? {
        writeln!(output, "The Secrets {} are there; --new makes others.", plimsoll.both())?;
    }
    Ok(())
}

impl Plimsoll<'_> {
    /// The name in the extender's certificate.
    pub(super) fn server_name(&self) -> String {
        format!("scheduler-extender.{}.svc", self.namespace)
    }

    /// An address of the extender that kube-scheduler, on the host network, can reach.
    pub(super) fn address(&self) -> Result<String> {
        let service: Value = self.extender("service")?;
        let ip = service["spec"]["clusterIP"].as_str().filter(|ip| *ip != "None");
        let address = ip.and_then(|ip| host(ip).ok());
        address.context("the Service of the extender has no ClusterIP: give --extender-host")
    }

    pub(super) fn asks_for_certificates(&self) -> Result<bool> {
        let deployment: Workload = self.extender("deployment")?;
        Ok(deployment.setting("PLIMSOLL_TLS_CERT_FILE").is_some())
    }

    fn extender<T: DeserializeOwned>(&self, kind: &str) -> Result<T> {
        self.kubectl.get(&[kind, EXTENDER, &self.flag()]).with_context(|| {
            let todo = "install Plimsoll first, or give --namespace";
            format!("cannot read the {kind} {}/{EXTENDER}: {todo}", self.namespace)
        })
    }

    fn flag(&self) -> String {
        format!("--namespace={}", self.namespace)
    }

    fn both(&self) -> String {
        let namespace = self.namespace;
        format!("{namespace}/{SERVER_SECRET} and {namespace}/{CLIENT_SECRET}")
    }

    /// Makes both Secrets where none of them is there, and returns whether that was so.
    pub(super) fn ensure_secrets(&self, dry_run: bool, output: &mut dyn Write) -> Result<bool> {
        let (namespace, server_name) = (self.namespace, self.server_name());
        match (self.get(SERVER_SECRET)?, self.get(CLIENT_SECRET)?) {
            (Some(_), Some(_)) => return Ok(false),
            (Some(_), None) => bail!(
                "Secret {namespace}/{SERVER_SECRET} is there, and {CLIENT_SECRET} is not: create it with a certificate for \
                 kube-scheduler that the CA of the former has signed, or delete the former"
            ),
            (None, Some(_)) => bail!(
                "Secret {namespace}/{CLIENT_SECRET} is there, and {SERVER_SECRET} is not: create it with a certificate for \
                 {server_name}, or delete the former"
            ),
            (None, None) if dry_run => writeln!(output, "Would make the Secrets {}.", self.both())?,
            (None, None) => self.create(&make(&server_name)?, output)?,
        }
        Ok(true)
    }

    /// kube-scheduler's files, in the order of [`FILES`], of one version of the Secret; none where it is not there.
    pub(super) fn certificate(&self) -> Result<Vec<Vec<u8>>> {
        let Some(secret) = self.get(CLIENT_SECRET)? else { return Ok(Vec::new()) };
        let mut files = Vec::new();
        for name in FILES {
            let text = secret.data.get(name).map_or("", String::as_str);
            let content = STANDARD.decode(text).ok().filter(|content| !content.is_empty());
            let missing = || format!("Secret {}/{CLIENT_SECRET} has no {name}", self.namespace);
            files.push(content.with_context(missing)?);
        }
        Ok(files)
    }

    fn get(&self, name: &str) -> Result<Option<Secret>> {
        let words = ["secret", name, &self.flag(), "--ignore-not-found"];
        self.kubectl.get_if_there(&words).with_context(|| {
            let namespace = self.namespace;
            format!("cannot look for Secret {namespace}/{name}: see --namespace and --kubeconfig")
        })
    }

    /// The first one decides where two nodes are enabled at a time.
    fn create(&self, [server, client]: &[Value; 2], output: &mut dyn Write) -> Result<()> {
        for (name, data) in [(SERVER_SECRET, server), (CLIENT_SECRET, client)] {
            let metadata =
                json!({"name": name, "labels": {"app.kubernetes.io/part-of": "plimsoll"}});
            let secret = json!({
                "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": data, "metadata": metadata,
            });
            let words = ["create", "--filename=-", &self.flag()];
            self.kubectl.run_with(&words, &secret.to_string()).with_context(|| {
                let again = "If another node is being enabled now, run this again";
                format!("cannot create Secret {}/{name}. {again}", self.namespace)
            })?;
        }
        writeln!(output, "Made the Secrets {}; the key of their CA is not kept.", self.both())?;
        Ok(())
    }
}

/// A CA, and the data of two Secrets with certificates that it signs: the extender's, and kube-scheduler's.
fn make(server_name: &str) -> Result<[Value; 2]> {
    let mut ca = params("plimsoll extender CA", vec![], KeyUsagePurpose::KeyCertSign, &[])?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;
    let sign = |params: CertificateParams| -> Result<Value> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &ca)?;
        let texts = [ca.pem(), certificate.pem(), key.serialize_pem()];
        Ok(FILES.iter().zip(texts).map(|(file, text)| (*file, STANDARD.encode(text))).collect())
    };
    let usage = KeyUsagePurpose::DigitalSignature;
    // Replicas of the extender call each other.
    let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let server = params(server_name, vec![server_name.to_owned()], usage, &both)?;
    let client = params("system:kube-scheduler", vec![], usage, &both[1..])?;
    Ok([sign(server)?, sign(client)?])
}

fn params(
    common_name: &str,
    names: Vec<String>,
    usage: KeyUsagePurpose,
    extended: &[ExtendedKeyUsagePurpose],
) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "plimsoll");
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.key_usages = vec![usage];
    params.extended_key_usages = extended.to_vec();
    params.use_authority_key_identifier_extension = true;
    // By whole days. Another machine's clock may be behind.
    let day = |days: i64| -> Result<_> {
        let day = Timestamp::now().to_zoned(TimeZone::UTC).checked_add(days.days())?;
        let [month, of_month] = [day.month(), day.day()].map(i8::unsigned_abs);
        Ok(rcgen::date_time_ymd(day.year().into(), month, of_month))
    };
    params.not_before = day(-1)?;
    params.not_after = day(DAYS)?;
    Ok(params)
}
