//! Two extenders on one address. They log their calls, and answer as each fact sets them.
//!
//! They run on a runtime of their own, so that they answer while a fact blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Map, Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::rig::text;

/// One of the two extenders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    /// Called for every pod: Filter, Prioritize and Preempt.
    All,
    /// Called for the pods that ask for the suite's resource: Filter, Prioritize and Bind.
    Managed,
}

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Which nodes may take a pod.
    Filter,
    /// How well each node suits a pod.
    Prioritize,
    /// Which nodes an eviction may free for a pod.
    Preempt,
    /// Binds a pod.
    Bind,
}

/// A logged call.
#[derive(Debug, Clone, PartialEq)]
pub struct ExtenderCall {
    /// The extender that was called.
    pub entry: Entry,
    /// The kind of call.
    pub verb: Verb,
    /// The pod's name.
    pub pod: String,
    /// The request's body.
    pub body: Value,
}

impl ExtenderCall {
    /// The names of the nodes in a Filter or Prioritize call, sorted.
    #[must_use]
    pub fn nodes(&self) -> Vec<String> {
        let names = self.body["NodeNames"].as_array().into_iter().flatten();
        let mut names: Vec<String> = names.map(|name| text(name).to_owned()).collect();
        names.sort_unstable();
        names
    }
}

/// How the extenders answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answers {
    /// Nodes that Filter rejects in `FailedNodes`, with the reason.
    pub failed: BTreeMap<String, String>,
    /// Nodes that Filter rejects in `FailedAndUnresolvableNodes`, with the reason.
    pub unresolvable: BTreeMap<String, String>,
    /// The error of Filter, or empty.
    pub filter_error: String,
    /// Nodes that Filter lets pass without having been asked about them.
    pub unasked: Vec<String>,
    /// The scores of Prioritize, 0 to 10 by contract; 0 where a node is missing.
    pub scores: BTreeMap<(Entry, String), i64>,
    /// Nodes that Preempt leaves out.
    pub not_preempted: BTreeSet<String>,
    /// The error of Bind by pod, or empty. Bind answers once the pod is here, and takes it out. It binds nothing.
    pub binds: BTreeMap<String, String>,
}

/// The running extenders. Dropping it ends them.
#[derive(Debug)]
pub struct Extender {
    address: SocketAddr,
    service: ExtenderService,
    runtime: Option<Runtime>,
}

#[derive(Debug, Clone)]
struct ExtenderService {
    calls: Arc<watch::Sender<Vec<ExtenderCall>>>,
    answers: Arc<watch::Sender<Answers>>,
    /// Number of resets.
    resets: Arc<watch::Sender<u64>>,
}

impl Extender {
    /// Starts on a free port of this address.
    ///
    /// # Errors
    /// When no port is free.
    pub fn start(host: IpAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((host, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let service = ExtenderService {
            calls: Arc::default(),
            answers: Arc::default(),
            resets: Arc::default(),
        };
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let router = Router::new().route("/{entry}/{verb}", post(answer));
        let router = router.with_state(service.clone());
        runtime.spawn(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(listener, router).await
        });
        Ok(Self { address, service, runtime: Some(runtime) })
    }

    /// The URL prefix of an extender.
    #[must_use]
    pub fn url(&self, entry: Entry) -> String {
        let path = if entry == Entry::All { "all" } else { "managed" };
        format!("http://{}/{path}", self.address)
    }

    /// The calls since the last reset.
    #[must_use]
    pub fn calls(&self) -> Vec<ExtenderCall> {
        self.service.calls.borrow().clone()
    }

    /// Waits until the calls satisfy `holds`.
    pub async fn until_calls(&self, holds: impl Fn(&[ExtenderCall]) -> bool) {
        let mut calls = self.service.calls.subscribe();
        // It cannot fail: `self` holds the sender.
        let _ = calls.wait_for(|calls| holds(calls)).await;
    }

    /// Changes how the next calls are answered.
    pub fn set(&self, change: impl FnOnce(&mut Answers)) {
        self.service.answers.send_modify(change);
    }

    /// Waits until the answers satisfy `holds`.
    pub async fn until_answers(&self, holds: impl Fn(&Answers) -> bool) {
        let mut answers = self.service.answers.subscribe();
        // It cannot fail: `self` holds the sender.
        let _ = answers.wait_for(|answers| holds(answers)).await;
    }

    /// Forgets calls and answers. Calls that wait are answered with an error.
    pub fn reset(&self) {
        self.service.answers.send_replace(Answers::default());
        self.service.resets.send_modify(|count| *count += 1);
        self.service.calls.send_replace(Vec::new());
    }
}

impl Drop for Extender {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

async fn answer(
    State(service): State<ExtenderService>,
    Path((entry, verb)): Path<(String, String)>,
    Json(body): Json<Value>,
) -> Json<Value> {
    let entry = if entry == "all" { Entry::All } else { Entry::Managed };
    let verb = match verb.as_str() {
        "filter" => Verb::Filter,
        "prioritize" => Verb::Prioritize,
        "preempt" => Verb::Preempt,
        _ => Verb::Bind,
    };
    let pod = if verb == Verb::Bind { &body["PodName"] } else { &body["Pod"]["metadata"]["name"] };
    let call = ExtenderCall { entry, verb, pod: text(pod).to_owned(), body };
    service.calls.send_modify(|calls| calls.push(call.clone()));
    Json(match verb {
        Verb::Filter => service.filter(&call.nodes()),
        Verb::Prioritize => service.prioritize(entry, &call.nodes()),
        Verb::Preempt => service.preempt(&call.body["NodeNameToMetaVictims"]),
        Verb::Bind => json!({"Error": service.bind(&call.pod).await}),
    })
}

/// Those of `nodes` that have a reason here, with it.
fn rejected(nodes: &[String], reasons: &BTreeMap<String, String>) -> Map<String, Value> {
    nodes
        .iter()
        .filter_map(|node| Some((node.clone(), reasons.get(node)?.as_str().into())))
        .collect()
}

impl ExtenderService {
    fn filter(&self, nodes: &[String]) -> Value {
        let answers = self.answers.borrow();
        if !answers.filter_error.is_empty() {
            return json!({"NodeNames": null, "FailedNodes": null, "Error": answers.filter_error});
        }
        let failed = rejected(nodes, &answers.failed);
        let unresolvable = rejected(nodes, &answers.unresolvable);
        let mut passed: Vec<&String> = nodes.iter().collect();
        passed.retain(|node| !failed.contains_key(*node) && !unresolvable.contains_key(*node));
        passed.extend(&answers.unasked);
        json!({
            "NodeNames": passed, "FailedNodes": failed, "FailedAndUnresolvableNodes": unresolvable,
            "Error": "",
        })
    }

    fn prioritize(&self, entry: Entry, nodes: &[String]) -> Value {
        let answers = self.answers.borrow();
        let mut scores = Vec::new();
        for node in nodes {
            let score = answers.scores.get(&(entry, node.clone())).copied().unwrap_or(0);
            scores.push(json!({"Host": node, "Score": score}));
        }
        scores.into()
    }

    fn preempt(&self, victims: &Value) -> Value {
        let answers = self.answers.borrow();
        let mut victims = victims.as_object().cloned().unwrap_or_default();
        victims.retain(|node, _| !answers.not_preempted.contains(node));
        json!({"NodeNameToMetaVictims": victims})
    }

    /// Waits for the error to answer with.
    async fn bind(&self, pod: &str) -> String {
        let mut answers = self.answers.subscribe();
        let mut resets = self.resets.subscribe();
        resets.mark_unchanged();
        tokio::select! {
            _ = answers.wait_for(|answers| answers.binds.contains_key(pod)) => {}
            _ = resets.changed() => {}
        }
        let mut error = None;
        self.answers.send_modify(|answers| error = answers.binds.remove(pod));
        error.unwrap_or_else(|| "the fact has ended".to_owned())
    }
}
