//! Tests of `exporter.tls`, with the Secrets that docs/certificates.md describes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::Node;
use e2e::command::wait_for;
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::Api;
use support::authority::Authority;

use crate::env::TestEnv;
use crate::exporter::signals::apply;
use crate::support::exporter_client;
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "exporters_with_tls_and_a_token_answer_the_annotator_and_refuse_plain_http",
    only_the_annotator_is_answered,
)
.takes(126)];

/// A metric of crane's policy.
const METRIC: &str = "mem_usage_avg_5m";
/// Longer than half of the metric's window, which must hold samples, and those may be lost, and the annotator's wait
/// after exporters that did not answer.
const READING: Duration = Duration::from_secs(600);
const SECRETS: [&str; 2] = ["exporter-tls", "exporter-token"];

fn only_the_annotator_is_answered(env: &TestEnv) -> Result<()> {
    create_secrets(env)?;
    let answered = apply(env, "exporter-tls").and_then(|()| {
        let nodes = env.cluster()?.nodes();
        nodes.iter().try_for_each(refuses_plain_http)?;
        remove_readings(env, nodes)?;
        nodes.iter().try_for_each(|node| has_a_reading(env, node))
    });
    let restored = apply(env, "tested").and_then(|()| {
        let delete = ["-n", "plimsoll", "delete", "secret", "--ignore-not-found"];
        env.cluster()?.kubectl_run(&[&delete[..], &SECRETS[..]].concat()).map(drop)
    });
    answered.and(restored)
}

fn refuses_plain_http(node: &Node) -> Result<()> {
    let response = exporter_client::get(node, "/v1/statistics");
    ensure!(response.is_err(), "{} answers plain HTTP: {response:?}", node.name());
    Ok(())
}

/// Removes the metric from the nodes and restarts the annotator, which fetches a missing metric at once.
fn remove_readings(env: &TestEnv, nodes: &[Node]) -> Result<()> {
    let removal = format!("{METRIC}-");
    let cluster = env.cluster()?;
    for node in nodes {
        cluster.kubectl_run(&["annotate", "node", node.name(), &removal])?;
    }
    let annotator = ["-n", "plimsoll", "delete", "pod", "-l", "app.kubernetes.io/name=annotator"];
    cluster.kubectl_run(&annotator).map(drop)
}

fn has_a_reading(env: &TestEnv, node: &Node) -> Result<()> {
    wait_for(&format!("{} to have {METRIC}", node.name()), READING, || reading(env, node)).map(drop)
}

fn reading(env: &TestEnv, node: &Node) -> Result<Option<String>> {
    let nodes: Api<NodeObject> = Api::all(env.client());
    let node = env.block_on(nodes.get(node.name()))?;
    Ok(node.metadata.annotations.and_then(|mut annotations| annotations.remove(METRIC)))
}

fn create_secrets(env: &TestEnv) -> Result<()> {
    let authority = Authority::new();
    let [certificate, key] = authority.sign("node-exporter-plus").files();
    let files = [certificate, key, ("ca.crt", authority.pem())];
    let files = files.map(|(file, text)| format!("--from-literal={file}={text}"));
    let [tls, token] = SECRETS;
    let create = ["-n", "plimsoll", "create", "secret", "generic"];
    let cluster = env.cluster()?;
    let files = files.iter().map(String::as_str);
    cluster.kubectl_run(&create.into_iter().chain([tls]).chain(files).collect::<Vec<_>>())?;
    cluster
        .kubectl_run(
            &[&create[..], &[token, "--from-literal=token=only-the-annotator-knows"]].concat(),
        )
        .map(drop)
        .context("the token")
}
