//! Tests of the stock descheduler with the shipped sample: what it moves off a hot node does not return there.
//!
//! A pod returns if it is bound to the node that was hot when it was made. kubectl watches the pods for the whole run,
//! so that none is missed, however short it lives.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::build::descheduler;
use e2e::cluster::install::{self, Setup};
use e2e::command::wait_for;
use e2e::kernel::processes::{self, Signal};
use e2e::{Cluster, Node};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::json;

use super::limits::{set, with_short_periods};
use crate::env::{NAMESPACE, TestEnv, parse};
use crate::support::pods::{START, all_running, idle_container, node, pod, processes_of, uid};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "pods_that_the_descheduler_moves_off_a_hot_node_do_not_return_to_it",
    no_returns,
)
.takes(559)];

const OVERLAY: &str = "descheduler";
const MOVED: &str = "moved";
/// Pods of the Deployment.
const PODS: usize = 6;
/// How often the other node is made the hot one.
const TURNS: usize = 4;
/// The loads. The limit is 0.65: the sample moves pods from above 0.68, as long as the other node is below 0.56.
const HOT: f64 = 0.9;
const COOL: f64 = 0.3;
/// One pod a round of 3 s, and the start of each successor.
const MOVING: Duration = Duration::from_secs(400);
/// The descheduler's start, and some rounds, on a busy host.
const ROUNDS: Duration = Duration::from_secs(300);

fn no_returns(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    cluster.import(&[descheduler::image(cluster.settings())?])?;
    let done = with_short_periods(env, |first, second| {
        set(env, &[(first, COOL), (second, HOT)])?;
        deploy(env)?;
        all_running(env, START)?;
        let mut watch = Watch::start(env)?;
        start_descheduler(env)?;
        let mut moved = 0;
        for turn in 0..TURNS {
            let (hot, cool) = if turn % 2 == 0 { (first, second) } else { (second, first) };
            moved += heat(env, &mut watch, hot, cool)?;
        }
        env.figure("pods_moved_off_hot_nodes_and_returned", format!("{moved} and 0"));
        ensure!(moved == TURNS * PODS, "{moved} pods were moved");
        // Without the extender, the same descheduler has pods return: the watch would see it.
        without_extender(env, || returns(env, &mut watch, first, second))
    });
    let removed = remove(env);
    done?;
    removed
}

/// Makes a node hot that has all pods, waits until the other has them all, and returns how many were bound meanwhile.
/// An error as soon as one was bound to the hot node.
fn heat(env: &TestEnv, watch: &mut Watch, hot: &Node, cool: &Node) -> Result<usize> {
    let before = watch.placements()?;
    // The cool one first: a moment in which both are hot moves nothing, one in which both are cool neither.
    set(env, &[(cool, COOL)])?;
    // Where one replica of the extender knows of the hot node earlier than the other, the descheduler may ask the one,
    // and kube-scheduler the other.
    while_stopped(env, || set(env, &[(hot, HOT)]))?;
    wait_for(&format!("all pods to be moved off {}", hot.name()), MOVING, || {
        let pods = all_running(env, START)?;
        let seen = watch.placements()?;
        Ok(pods
            .iter()
            .all(|pod| node(pod) != Some(hot.name()) && seen.contains_key(uid(pod)))
            .then_some(()))
    })?;
    let mut placed = watch.placements()?;
    placed.retain(|uid, _| !before.contains_key(uid));
    let returned: Vec<_> = placed.iter().filter(|(_, node)| **node == hot.name()).collect();
    ensure!(returned.is_empty(), "returned to {}: {returned:?}", hot.name());
    Ok(placed.len())
}

/// Waits until a pod is bound to the node that is hot.
fn returns(env: &TestEnv, watch: &mut Watch, hot: &Node, cool: &Node) -> Result<()> {
    let before = watch.placements()?;
    set(env, &[(cool, COOL)])?;
    set(env, &[(hot, HOT)])?;
    wait_for("a pod to return without the extender", ROUNDS, || {
        let mut placed = watch.placements()?;
        placed.retain(|uid, node| !before.contains_key(uid) && *node == hot.name());
        Ok((!placed.is_empty()).then_some(()))
    })
}

fn deploy(env: &TestEnv) -> Result<()> {
    let labels = json!({"app": MOVED});
    let mut template = pod("", &[idle_container("main")]);
    template["metadata"] = json!({"labels": labels});
    let deployment = json!({
        "metadata": {"name": MOVED},
        "spec": {"replicas": PODS, "selector": {"matchLabels": labels}, "template": template},
    });
    env.block_on(deployments(env).create(&PostParams::default(), &parse(deployment)?)).map(drop)?;
    wait_for("the pods to be made", START, || {
        Ok((all_running(env, START)?.len() == PODS).then_some(()))
    })
}

fn deployments(env: &TestEnv) -> Api<Deployment> {
    Api::namespaced(env.client(), NAMESPACE)
}

/// The sample with rounds of seconds.
fn folder(cluster: &Cluster) -> String {
    cluster.settings().sources.join("testing/e2e/deploy").join(OVERLAY).display().to_string()
}

/// Applies the sample, and starts it.
fn start_descheduler(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    cluster.kubectl_run(&["apply", "-k", &folder(cluster)])?;
    let status = ["-n", "descheduler", "rollout", "status", "deployment/descheduler"];
    cluster.kubectl_run(&[&status[..], &["--timeout=300s"]].concat()).map(drop)
}

/// Runs `work` while the descheduler's process is stopped.
fn while_stopped(env: &TestEnv, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(env.client(), OVERLAY);
    let pods = env.block_on(pods.list(&ListParams::default()))?.items;
    let pod = pods.first().context("the descheduler has no pod")?;
    let stopped = processes_of(pod, "descheduler")?;
    processes::signal_all(&stopped, Signal::STOP)?;
    let done = work();
    // Where that took half a minute, its liveness probe has ended it.
    let left: Vec<_> = stopped.into_iter().filter(|process| processes::alive(*process)).collect();
    processes::signal_all(&left, Signal::CONT)?;
    done
}

fn remove(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    let folder = folder(cluster);
    let words = ["delete", "--ignore-not-found", "--wait", "--timeout=300s", "-k", &folder];
    let descheduler = cluster.kubectl_run(&words);
    let foreground = DeleteParams::foreground();
    if env.block_on(deployments(env).get_opt(MOVED))?.is_some() {
        env.block_on(deployments(env).delete(MOVED, &foreground))?;
        wait_for("the Deployment to be gone", START, || {
            Ok(env.block_on(deployments(env).get_opt(MOVED))?.is_none().then_some(()))
        })?;
    }
    descheduler.map(drop)
}

/// Runs `work` with a kube-scheduler that does not ask the extender.
fn without_extender(env: &TestEnv, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let cluster = env.cluster()?;
    let done = install::disable_scheduler(cluster).and_then(|()| work());
    let restored = install::enable_scheduler(cluster, Setup::Tested);
    done?;
    restored
}

/// Every node that every pod of the tests was bound to since the start.
struct Watch {
    kubectl: Child,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Watch {
    fn start(env: &TestEnv) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("pods");
        let columns = "-o=custom-columns=UID:.metadata.uid,NODE:.spec.nodeName";
        let mut kubectl = env.cluster()?.kubectl();
        kubectl.args(["-n", NAMESPACE, "get", "pods", "--watch", "--no-headers", columns]);
        let kubectl = kubectl.stdout(File::create(&file)?).spawn().context("cannot watch pods")?;
        let mut watch = Self { kubectl, file, _folder: folder };
        wait_for("kubectl to list the pods", START, || {
            Ok((watch.placements()?.len() == PODS).then_some(()))
        })?;
        Ok(watch)
    }

    /// The node of each pod that has or had one, by UID.
    fn placements(&mut self) -> Result<BTreeMap<String, String>> {
        if let Some(status) = self.kubectl.try_wait()? {
            bail!("the watch of pods ended with {status}");
        }
        let text = fs::read_to_string(&self.file)?;
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let words = whole.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let placed = words.filter_map(|words| match words[..] {
            [uid, node] if node != "<none>" => Some((uid.to_owned(), node.to_owned())),
            _ => None,
        });
        Ok(placed.collect())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}
