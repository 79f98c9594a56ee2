//! The scheduler driver against an extender of the test's own, over real HTTP.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use sim::scheduler::{Scheduler, SchedulerConfig, Verdict};
use sim::{NEW_EVENTS, PODS, Sim, node, pod};
use tokio::sync::Notify;

const GPU: &str = "example.com/gpu";

/// An extender that says what it is told to, and remembers what it was asked.
#[derive(Clone, Default)]
struct Extender {
    asked: Arc<Mutex<Vec<String>>>,
    /// The nodes that Filter turns away.
    rejects: Arc<Mutex<Vec<String>>>,
    /// What Bind answers as its error.
    bind_error: Arc<Mutex<String>>,
    /// Bindings wait for this, where it is wanted.
    held: Option<Arc<Notify>>,
}

impl Extender {
    async fn start(&self) -> String {
        let router = Router::new()
            .route("/x/filter", post(filter))
            .route("/x/prioritize", post(prioritize))
            .route("/x/bind", post(bind))
            .with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
        address
    }

    fn note(&self, what: &str, pod: &Value) {
        self.asked.lock().unwrap().push(format!("{what} {}", pod.as_str().unwrap_or_default()));
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

async fn filter(State(extender): State<Extender>, Json(args): Json<Value>) -> Json<Value> {
    extender.note("filter", &args["Pod"]["metadata"]["name"]);
    let rejects = extender.rejects.lock().unwrap().clone();
    let names = args["NodeNames"].as_array().unwrap();
    let is_rejected = |name: &&Value| rejects.iter().any(|r| **name == r.as_str());
    let failed: serde_json::Map<String, Value> = names
        .iter()
        .filter(is_rejected)
        .map(|name| (name.as_str().unwrap().to_owned(), json!("not today")))
        .collect();
    let left: Vec<&Value> = names.iter().filter(|name| !is_rejected(name)).collect();
    Json(json!({"NodeNames": left, "FailedNodes": failed, "Error": ""}))
}

async fn prioritize(State(extender): State<Extender>, Json(args): Json<Value>) -> Json<Value> {
    extender.note("prioritize", &args["Pod"]["metadata"]["name"]);
    // The last name is the best.
    let names = args["NodeNames"].as_array().unwrap();
    let score = |(place, name): (usize, &Value)| json!({"Host": name, "Score": place});
    Json(names.iter().enumerate().map(score).collect())
}

async fn bind(State(extender): State<Extender>, Json(args): Json<Value>) -> Json<Value> {
    extender.note("bind", &args["PodName"]);
    if let Some(held) = &extender.held {
        held.notified().await;
    }
    Json(json!({"Error": extender.bind_error.lock().unwrap().clone()}))
}

fn config(address: &str, binds: bool) -> SchedulerConfig {
    let bind = if binds { "bindVerb: bind" } else { "" };
    let yaml = format!(
        "extenders:\n- urlPrefix: http://somewhere:1/x\n  filterVerb: filter\n  \
         prioritizeVerb: prioritize\n  weight: 10\n  nodeCacheCapable: true\n  {bind}\n"
    );
    SchedulerConfig::from_yaml(&yaml).unwrap().at(address)
}

async fn with_nodes() -> Sim {
    let sim = Sim::start().await.unwrap();
    for name in ["a", "b", "c"] {
        sim.put(node(name).with("cpu", 8).with(GPU, 4));
    }
    sim
}

fn node_of(sim: &Sim, pod: &str) -> Option<String> {
    let pod = sim.pod("default", pod)?;
    pod["spec"]["nodeName"].as_str().map(str::to_owned)
}

#[tokio::test]
async fn a_pod_goes_where_filter_lets_it_and_prioritize_wants_it() {
    let (sim, extender) = (with_nodes().await, Extender::default());
    extender.rejects.lock().unwrap().push("c".to_owned());
    let address = extender.start().await;
    let (_scheduler, mut decisions) = Scheduler::start(&sim, config(&address, false)).unwrap();
    sim.put(pod("p").asking(GPU, 1));
    sim.until("the binding", |sim| node_of(sim, "p")).await.unwrap();
    assert_eq!(node_of(&sim, "p").unwrap(), "b");
    assert_eq!(extender.asked(), ["filter p", "prioritize p"]);
    let decision = decisions.recv().await.unwrap();
    assert_eq!(decision.outcome, Ok("b".to_owned()));
    let verdict = &decision.candidates.iter().find(|c| c.node == "c").unwrap().verdict;
    assert_eq!(*verdict, Verdict::Rejected { reason: "not today".to_owned(), unresolvable: false });
}

#[tokio::test]
async fn the_next_filter_comes_before_the_last_bind_has_ended_and_counts_the_assumed_pod() {
    let held = Arc::new(Notify::new());
    let extender = Extender { held: Some(held.clone()), ..Extender::default() };
    let sim = Sim::start().await.unwrap();
    sim.put(node("only").with(GPU, 4));
    let address = extender.start().await;
    let (_scheduler, mut decisions) = Scheduler::start(&sim, config(&address, true)).unwrap();
    sim.put(pod("first").asking(GPU, 3));
    assert_eq!(decisions.recv().await.unwrap().outcome, Ok("only".to_owned()));
    sim.put(pod("second").asking(GPU, 3));
    let refused = decisions.recv().await.unwrap().outcome.unwrap_err();
    assert_eq!(refused, "0/1 nodes are available: 1 Insufficient example.com/gpu.");
    assert_eq!(node_of(&sim, "first"), None);
    held.notify_one();
}

#[tokio::test]
async fn a_pod_waits_where_every_node_has_all_the_pods_it_may_have() {
    let sim = Sim::start().await.unwrap();
    sim.put(node("only").with("pods", 2));
    let (_scheduler, mut decisions) = Scheduler::start(&sim, SchedulerConfig::default()).unwrap();
    for name in ["first", "second"] {
        sim.put(pod(name));
        assert_eq!(decisions.recv().await.unwrap().outcome, Ok("only".to_owned()));
    }
    sim.put(pod("third"));
    let refused = decisions.recv().await.unwrap().outcome.unwrap_err();
    assert_eq!(refused, "0/1 nodes are available: 1 Too many pods.");
    // What is over does not count.
    sim.change(PODS, "default", "first", |pod| pod["status"]["phase"] = "Succeeded".into());
    sim.until("the binding", |sim| node_of(sim, "third")).await.unwrap();
}

#[tokio::test]
async fn a_pod_that_no_node_takes_says_so_in_its_condition_and_an_event() {
    let (sim, extender) = (with_nodes().await, Extender::default());
    extender.rejects.lock().unwrap().extend(["a", "b", "c"].map(str::to_owned));
    let address = extender.start().await;
    let (_scheduler, _decisions) = Scheduler::start(&sim, config(&address, false)).unwrap();
    sim.put(pod("p").asking(GPU, 1));
    let event = told(&sim, "FailedScheduling").await;
    let words = "0/3 nodes are available: 3 not today.";
    assert_eq!((&event["type"], &event["note"]), (&json!("Warning"), &json!(words)));
    assert_eq!(event["regarding"]["uid"], sim.pod("default", "p").unwrap()["metadata"]["uid"]);
    assert_eq!(event["reportingController"], "default-scheduler");
    let condition = &sim.pod("default", "p").unwrap()["status"]["conditions"][0];
    assert_eq!((&condition["status"], &condition["message"]), (&json!("False"), &json!(words)));
    // A change of any node has it tried again.
    extender.rejects.lock().unwrap().clear();
    sim.put(node("a").with("cpu", 8).with(GPU, 4).annotation("load", "less"));
    sim.until("the binding", |sim| node_of(sim, "p")).await.unwrap();
    let node = node_of(&sim, "p").unwrap();
    let note = format!("Successfully assigned default/p to {node}");
    assert_eq!(told(&sim, "Scheduled").await["note"], json!(note));
}

#[tokio::test]
async fn a_second_failure_makes_a_series_of_the_event_and_keeps_its_words() {
    let (sim, extender) = (with_nodes().await, Extender::default());
    extender.rejects.lock().unwrap().extend(["a", "b", "c"].map(str::to_owned));
    let address = extender.start().await;
    let (_scheduler, _decisions) = Scheduler::start(&sim, config(&address, false)).unwrap();
    sim.put(pod("p").asking(GPU, 1));
    let first = told(&sim, "FailedScheduling").await;
    assert!(first["series"].is_null());
    sim.delete(sim::NODES, "", "a");
    let series = |sim: &Sim| events(sim).into_iter().find(|event| !event["series"].is_null());
    let event = sim.until("the series", series).await.unwrap();
    assert_eq!(event["series"]["count"], 2);
    assert_eq!((&event["note"], events(&sim).len()), (&first["note"], 1));
}

#[tokio::test]
async fn what_the_scheduler_tells_is_read_in_the_core_group_too() {
    let sim = with_nodes().await;
    let (_scheduler, _decisions) = Scheduler::start(&sim, SchedulerConfig::default()).unwrap();
    sim.put(pod("p").asking(GPU, 1));
    told(&sim, "Scheduled").await;
    let [event] = &sim.list(sim::EVENTS)[..] else { panic!("one event is expected") };
    assert_eq!((&event["apiVersion"], &event["kind"]), (&json!("v1"), &json!("Event")));
    assert_eq!(event["involvedObject"]["name"], "p");
    let note = format!("Successfully assigned default/p to {}", node_of(&sim, "p").unwrap());
    assert_eq!(event["message"], json!(note));
}

fn events(sim: &Sim) -> Vec<Value> {
    sim.list(NEW_EVENTS)
}

/// The Event of this reason, once there is one.
async fn told(sim: &Sim, reason: &str) -> Value {
    let found = |sim: &Sim| events(sim).into_iter().find(|event| event["reason"] == reason);
    sim.until(reason, found).await.unwrap()
}

#[tokio::test]
async fn a_failed_bind_is_tried_again_from_the_start_after_a_backoff() {
    let (sim, extender) = (with_nodes().await, Extender::default());
    *extender.bind_error.lock().unwrap() = "no card".to_owned();
    let address = extender.start().await;
    let (_scheduler, mut decisions) = Scheduler::start(&sim, config(&address, true)).unwrap();
    let start = std::time::Instant::now();
    sim.put(pod("p").asking(GPU, 1));
    for _ in 0..2 {
        assert_eq!(decisions.recv().await.unwrap().outcome, Ok("c".to_owned()));
    }
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(extender.asked()[..3], ["filter p", "prioritize p", "bind p"]);
}

#[tokio::test]
async fn without_its_extender_a_pod_is_scheduled_only_where_that_is_ignorable() {
    let sim = with_nodes().await;
    // Nobody listens there.
    let mut config = config("127.0.0.1:1", false);
    let (scheduler, mut decisions) = Scheduler::start(&sim, config.clone()).unwrap();
    sim.put(pod("p").asking(GPU, 1));
    assert!(decisions.recv().await.unwrap().outcome.is_err());
    drop(scheduler);
    config.extenders[0].ignorable = true;
    let (_scheduler, mut decisions) = Scheduler::start(&sim, config).unwrap();
    assert!(decisions.recv().await.unwrap().outcome.is_ok());
}

#[tokio::test]
async fn a_pod_of_another_scheduler_is_left_to_be_bound_by_hand() {
    let sim = with_nodes().await;
    let (_scheduler, mut decisions) = Scheduler::start(&sim, SchedulerConfig::default()).unwrap();
    let of = |name: &str, scheduler: &str| {
        let mut pod: Value = pod(name).asking(GPU, 1).into();
        pod["spec"]["schedulerName"] = scheduler.into();
        sim.put(pod);
    };
    of("theirs", "by-hand");
    of("named", "default-scheduler");
    sim.put(pod("unnamed").asking(GPU, 1));
    for ours in ["named", "unnamed"] {
        assert_eq!(decisions.recv().await.unwrap().pod, ours);
    }
    assert_eq!(node_of(&sim, "theirs"), None);
    assert_eq!(sim.pod("default", "theirs").unwrap()["status"], json!({"phase": "Pending"}));
}
