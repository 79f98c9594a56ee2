//! Tests of the certificates that the extender's verbs ask for.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::cluster::install::{self, Setup};
use e2e::command::wait_for;
use serde_json::{Value, json};

use crate::env::{NAMESPACE, TestEnv};
use crate::support::certificates;
use crate::support::extender_client::{EXTENDER, replicas, used_units};
use crate::support::fake_nodes::{self, FakeNode, on_fake_nodes};
use crate::support::http::{self, Tls};
use crate::support::pods::{
    BINDING, bound, create, get, gpu_container, name, node, pod, restarts, uid,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes(
        "bind_is_refused_without_kube_schedulers_certificate_and_the_standby_passes_it_on_with_it",
        only_kube_scheduler,
    )
    .takes(1)
    .smoke(),
    on_our_nodes("renewed_certificates_are_taken_up_without_a_restart", renewed).takes(16),
];

const NODE: &str = "fake-001";
/// The kubelet brings a changed Secret within two minutes.
const RENEWAL: Duration = Duration::from_secs(360);

fn only_kube_scheduler(env: &TestEnv) -> Result<()> {
    fake_nodes::with(env, &[FakeNode::with_gpus(NODE, &[8])], || {
        let binding = waiting_pod(env)?;
        let strangers =
            [certificates::none(env)?, certificates::of_another_authority(env)?].map(Some);
        let replicas = replicas(env)?;
        let is_free = || Ok((used_units(env, NODE)? == [0]).then_some(()));
        wait_for("what an earlier pod held on a node of this name to be free", HELD, is_free)?;
        for (address, _) in &replicas {
            // Over plain HTTP, without a certificate, and with a wrong one.
            for stranger in strangers.iter().chain([&None]) {
                let answer = match stranger {
                    Some(tls) => http::send_over(tls, *address, BIND, Some(&binding)),
                    None => http::send(*address, BIND, Some(&binding)),
                };
                ensure!(answer.is_err(), "{address} has answered: {answer:?}");
            }
        }
        ensure!(node(&get(env, "waiting")?).is_none(), "the pod was bound");
        let used = used_units(env, NODE)?;
        ensure!(used == [0], "units were set aside: {used:?}");
        let standby = replicas.iter().find(|(_, leads)| !leads).context("no replica stands by")?;
        let tls = certificates::of_kube_scheduler(env)?;
        wait_for("the binding", BINDING, || {
            let answer = http::send_over(&tls, standby.0, BIND, Some(&binding))?;
            let result: Value = serde_json::from_str(&answer.body)?;
            ensure!(result["Error"] == "", "{}", answer.body);
            Ok(Some(()))
        })?;
        ensure!(node(&get(env, "waiting")?) == Some(NODE), "the pod is not bound");
        Ok(())
    })
}

/// Units of a pod that was deleted by force are kept for 10 s.
const HELD: Duration = Duration::from_secs(60);
const BIND: &str = "/gpushare-scheduler/bind";

/// A pod that no scheduler looks at, and the body of its Bind.
fn waiting_pod(env: &TestEnv) -> Result<String> {
    let mut waiting = on_fake_nodes(pod("waiting", &[gpu_container("main", 5)]));
    waiting["spec"]["schedulerName"] = json!("none");
    create(env, waiting)?;
    let uid = uid(&get(env, "waiting")?).to_owned();
    let body =
        json!({"PodName": "waiting", "PodNamespace": NAMESPACE, "PodUID": uid, "Node": NODE});
    Ok(body.to_string())
}

fn renewed(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    let before = starts(env)?;
    let old = certificates::of_kube_scheduler(env)?;
    install::make_certificates(cluster, &["--new"])?;
    install::enable_scheduler(cluster, Setup::Tested)?;
    // A change of a pod has the kubelet look at its volumes at once.
    let words = ["-n", "plimsoll", "annotate", "pods", "--overwrite", "-l"];
    let app = format!("app.kubernetes.io/name={EXTENDER}");
    cluster.kubectl_run(&[&words[..], &[&app, "plimsoll-e2e/certificates=new"]].concat())?;
    let new = certificates::of_kube_scheduler(env)?;
    wait_for("every replica to take the new certificate", RENEWAL, || {
        let replicas = replicas(env)?;
        let all_take_it = replicas.iter().all(|(at, _)| version(&new, *at).is_ok());
        Ok(all_take_it.then_some(()))
    })?;
    for (address, _) in replicas(env)? {
        ensure!(version(&old, address).is_err(), "{address} takes the former certificate");
    }
    fake_nodes::with(env, &[FakeNode::with_gpus(NODE, &[8])], || {
        create(env, on_fake_nodes(pod("after", &[gpu_container("main", 5)])))?;
        bound(env, "after", START_OF_KUBE_SCHEDULER).map(drop)
    })?;
    ensure!(starts(env)? == before, "the extender was restarted");
    Ok(())
}

/// kube-scheduler has been restarted for the new CA, and may wait for its lease first.
const START_OF_KUBE_SCHEDULER: Duration = Duration::from_secs(400);

fn version(tls: &Tls, address: std::net::SocketAddr) -> Result<()> {
    let answer = http::send_over(tls, address, "/version", None)?;
    ensure!(answer.is_ok(), "{}", answer.status);
    Ok(())
}

/// How often each replica's container has been started again.
fn starts(env: &TestEnv) -> Result<BTreeMap<String, i32>> {
    let pods = env.program_pods(EXTENDER)?;
    Ok(pods.iter().map(|pod| (name(pod).to_owned(), restarts(pod))).collect())
}
