//! Facts about exporters that prove themselves: the shipped component, with Secrets as its document has them made.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::Node;
use e2e::command::wait_for;
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::Api;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::exporter::apply;
use crate::scrape;
use crate::world::World;
use crate::{Fact, local};

pub(crate) const FACTS: &[Fact] = &[local(
    "exporters_with_tls_and_a_token_tell_the_annotator_and_nobody_else",
    only_the_annotator_is_told,
)];

/// A metric of the shipped policy.
const METRIC: &str = "mem_usage_avg_5m";
/// Half of the metric's window, should its samples be lost, and time to spare.
const READING: Duration = Duration::from_secs(200);
const SECRETS: [&str; 2] = ["exporter-tls", "exporter-token"];

fn only_the_annotator_is_told(world: &World) -> Result<()> {
    make_secrets(world)?;
    let seen = apply(world, "testing/e2e/deploy/exporter-tls").and_then(|()| {
        let nodes = world.cluster()?.nodes();
        nodes.iter().try_for_each(tells_nobody)?;
        forget_readings(world, nodes)?;
        nodes.iter().try_for_each(|node| has_a_reading(world, node))
    });
    let restored = apply(world, "testing/e2e/deploy/shipped").and_then(|()| {
        let delete = ["-n", "plimsoll", "delete", "secret", "--ignore-not-found"];
        world.cluster()?.kubectl_run(&[&delete[..], &SECRETS[..]].concat()).map(drop)
    });
    seen.and(restored)
}

/// Over plain HTTP.
fn tells_nobody(node: &Node) -> Result<()> {
    let told = scrape::get(node, "/v1/statistics");
    ensure!(told.is_err(), "{} tells everybody: {told:?}", node.name());
    Ok(())
}

/// A metric that a node lacks is due at once to an annotator that has just begun.
fn forget_readings(world: &World, nodes: &[Node]) -> Result<()> {
    let removal = format!("{METRIC}-");
    let cluster = world.cluster()?;
    for node in nodes {
        cluster.kubectl_run(&["annotate", "node", node.name(), &removal])?;
    }
    let annotator = ["-n", "plimsoll", "delete", "pod", "-l", "app.kubernetes.io/name=annotator"];
    cluster.kubectl_run(&annotator).map(drop)
}

fn has_a_reading(world: &World, node: &Node) -> Result<()> {
    wait_for(&format!("{} to have {METRIC}", node.name()), READING, || reading(world, node))
        .map(drop)
}

fn reading(world: &World, node: &Node) -> Result<Option<String>> {
    let nodes: Api<NodeObject> = Api::all(world.client());
    let node = world.wait(nodes.get(node.name()))?;
    Ok(node.metadata.annotations.and_then(|mut annotations| annotations.remove(METRIC)))
}

fn make_secrets(world: &World) -> Result<()> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec!["node-exporter-plus".to_owned()])?
        .signed_by(&key, &authority)?;
    let files = [
        ("tls.crt", certificate.pem()),
        ("tls.key", key.serialize_pem()),
        ("ca.crt", authority.pem()),
    ];
    let files = files.map(|(file, text)| format!("--from-literal={file}={text}"));
    let [tls, token] = SECRETS;
    let create = ["-n", "plimsoll", "create", "secret", "generic"];
    let cluster = world.cluster()?;
    let files = files.iter().map(String::as_str);
    cluster.kubectl_run(&create.into_iter().chain([tls]).chain(files).collect::<Vec<_>>())?;
    cluster
        .kubectl_run(
            &[&create[..], &[token, "--from-literal=token=only-the-annotator-knows"]].concat(),
        )
        .map(drop)
        .context("the token")
}
