//! Two extenders on one address that write down what they are asked, and answer as they are told.
//!
//! They run on a runtime of their own, so that they answer whatever the facts wait for.

use std::collections::BTreeMap;
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

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    /// Asked about every pod: Filter and Prioritize.
    All,
    /// Asked about the pods of the suite's resource: Filter, Prioritize and Bind.
    Managed,
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Which nodes may have a pod.
    Filter,
    /// How well each suits it.
    Prioritize,
    /// To bind it.
    Bind,
}

/// One call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Whom it reached.
    pub entry: Entry,
    /// What was asked.
    pub verb: Verb,
    /// The pod's name.
    pub pod: String,
    /// The whole question.
    pub body: Value,
}

impl Call {
    /// The names of the nodes that Filter and Prioritize ask about, sorted.
    #[must_use]
    pub fn nodes(&self) -> Vec<String> {
        let names = self.body["NodeNames"].as_array().into_iter().flatten();
        let mut names: Vec<String> = names.map(|name| text(name).to_owned()).collect();
        names.sort_unstable();
        names
    }
}

/// How the next calls are answered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Orders {
    /// Filter leaves out these nodes, with these words.
    pub left_out: BTreeMap<String, String>,
    /// Filter fails with these words, if any.
    pub filter_error: String,
    /// Filter lets these nodes pass as well, whether it was asked about them or not.
    pub invented: Vec<String>,
    /// Prioritize gives these points.
    pub scores: BTreeMap<(Entry, String), i64>,
    /// Bind answers for a pod once its words are here: those of an error, or none. It binds nothing.
    pub binds: BTreeMap<String, String>,
}

/// The extenders. Dropping it ends them.
#[derive(Debug)]
pub struct Extender {
    address: SocketAddr,
    service: Service,
    runtime: Option<Runtime>,
}

#[derive(Debug, Clone)]
struct Service {
    calls: Arc<watch::Sender<Vec<Call>>>,
    orders: Arc<watch::Sender<Orders>>,
    /// Counts how often everything began anew.
    fresh: Arc<watch::Sender<u64>>,
}

impl Extender {
    /// Begins on a free port of this address.
    ///
    /// # Errors
    /// When there is none.
    pub fn begin(host: IpAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((host, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let service =
            Service { calls: Arc::default(), orders: Arc::default(), fresh: Arc::default() };
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let router = Router::new().route("/{entry}/{verb}", post(answer));
        let router = router.with_state(service.clone());
        runtime.spawn(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(listener, router).await
        });
        Ok(Self { address, service, runtime: Some(runtime) })
    }

    /// Where an entry answers.
    #[must_use]
    pub fn url(&self, entry: Entry) -> String {
        let path = if entry == Entry::All { "all" } else { "managed" };
        format!("http://{}/{path}", self.address)
    }

    /// What was asked, from the beginning.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.service.calls.borrow().clone()
    }

    /// Waits until the calls satisfy `holds`.
    pub async fn called(&self, holds: impl Fn(&[Call]) -> bool) {
        let mut calls = self.service.calls.subscribe();
        // The sender is in `self`.
        let _ = calls.wait_for(|calls| holds(calls)).await;
    }

    /// Changes how the next calls are answered.
    pub fn order(&self, change: impl FnOnce(&mut Orders)) {
        self.service.orders.send_modify(change);
    }

    /// Waits until the orders satisfy `holds`.
    pub async fn ordered(&self, holds: impl Fn(&Orders) -> bool) {
        let mut orders = self.service.orders.subscribe();
        // The sender is in `self`.
        let _ = orders.wait_for(|orders| holds(orders)).await;
    }

    /// Forgets what was asked and what was ordered; who still waits is answered with an error.
    pub fn forget(&self) {
        self.service.orders.send_replace(Orders::default());
        self.service.fresh.send_modify(|count| *count += 1);
        self.service.calls.send_replace(Vec::new());
    }
}

impl Drop for Extender {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

async fn answer(
    State(service): State<Service>,
    Path((entry, verb)): Path<(String, String)>,
    Json(body): Json<Value>,
) -> Json<Value> {
    let entry = if entry == "all" { Entry::All } else { Entry::Managed };
    let note = |verb, pod: &Value| {
        let call = Call { entry, verb, pod: text(pod).to_owned(), body: body.clone() };
        let nodes = call.nodes();
        service.calls.send_modify(|calls| calls.push(call));
        nodes
    };
    let pod = &body["Pod"]["metadata"]["name"];
    Json(match verb.as_str() {
        "filter" => service.filter(&note(Verb::Filter, pod)),
        "prioritize" => service.prioritize(entry, &note(Verb::Prioritize, pod)),
        _ => {
            note(Verb::Bind, &body["PodName"]);
            json!({"Error": service.bind(text(&body["PodName"])).await})
        }
    })
}

impl Service {
    fn filter(&self, nodes: &[String]) -> Value {
        let orders = self.orders.borrow();
        if !orders.filter_error.is_empty() {
            return json!({"NodeNames": null, "FailedNodes": null, "Error": orders.filter_error});
        }
        let out = |node: &&String| orders.left_out.contains_key(*node);
        let left = nodes.iter().filter(|node| !out(node)).chain(&orders.invented);
        let left: Vec<&String> = left.collect();
        let failed: Map<String, Value> = nodes
            .iter()
            .filter_map(|node| Some((node.clone(), orders.left_out.get(node)?.as_str().into())))
            .collect();
        json!({"NodeNames": left, "FailedNodes": failed, "Error": ""})
    }

    fn prioritize(&self, entry: Entry, nodes: &[String]) -> Value {
        let orders = self.orders.borrow();
        let points = |node: &String| orders.scores.get(&(entry, node.clone())).copied();
        nodes.iter().map(|node| json!({"Host": node, "Score": points(node).unwrap_or(0)})).collect()
    }

    /// The words of the answer, once they are ordered; they serve one call.
    async fn bind(&self, pod: &str) -> String {
        let (mut orders, mut fresh) = (self.orders.subscribe(), self.fresh.subscribe());
        fresh.mark_unchanged();
        tokio::select! {
            _ = orders.wait_for(|orders| orders.binds.contains_key(pod)) => {}
            _ = fresh.changed() => {}
        }
        let mut words = None;
        self.orders.send_modify(|orders| words = orders.binds.remove(pod));
        words.unwrap_or_else(|| "nobody waits for this any more".to_owned())
    }
}
