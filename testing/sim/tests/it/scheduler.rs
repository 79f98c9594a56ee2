//! The scheduler stand-in with an extender over HTTP, where `conformance` has no fact about it.

use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use sim::scheduler::{Scheduler, SchedulerConfig, Verdict};
use sim::{EVENTS, PODS, Sim, node, pod};
use tokio::sync::Notify;

const GPU: &str = "example.com/gpu";

/// An extender that logs its calls (verb and pod) and answers as these fields say.
#[derive(Clone, Default)]
struct LoggingExtender {
    calls: Arc<Mutex<Vec<String>>>,
    /// The nodes that Filter rejects.
    rejects: Arc<Mutex<Vec<String>>>,
    /// Bind waits for this.
    bind_after: Option<Arc<Notify>>,
}

impl LoggingExtender {
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

    fn log(&self, verb: &str, pod: &Value) {
        self.calls.lock().unwrap().push(format!("{verb} {}", pod.as_str().unwrap_or_default()));
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }
}

async fn filter(State(extender): State<LoggingExtender>, Json(args): Json<Value>) -> Json<Value> {
    extender.log("filter", &args["Pod"]["metadata"]["name"]);
    let rejects = extender.rejects.lock().unwrap().clone();
    let names = args["NodeNames"].as_array().unwrap();
    let mut failed = serde_json::Map::new();
    let mut left: Vec<&Value> = Vec::new();
    for name in names {
        if rejects.iter().any(|rejected| *name == rejected.as_str()) {
            failed.insert(name.as_str().unwrap().to_owned(), json!("not today"));
        } else {
            left.push(name);
        }
    }
    Json(json!({"NodeNames": left, "FailedNodes": failed, "Error": ""}))
}

async fn prioritize(
    State(extender): State<LoggingExtender>,
    Json(args): Json<Value>,
) -> Json<Value> {
    extender.log("prioritize", &args["Pod"]["metadata"]["name"]);
    // The last name is the best.
    let names = args["NodeNames"].as_array().unwrap();
    Json(
        names
            .iter()
            .enumerate()
            .map(|(place, name): (usize, &Value)| json!({"Host": name, "Score": place}))
            .collect(),
    )
}

async fn bind(State(extender): State<LoggingExtender>, Json(args): Json<Value>) -> Json<Value> {
    extender.log("bind", &args["PodName"]);
    if let Some(bind_after) = &extender.bind_after {
        bind_after.notified().await;
    }
    Json(json!({"Error": ""}))
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
async fn a_decision_tells_every_nodes_verdict() {
    let sim = with_nodes().await;
    let extender = LoggingExtender::default();
    extender.rejects.lock().unwrap().push("c".to_owned());
    let address = extender.start().await;
    let (_scheduler, mut decisions) = Scheduler::start(&sim, config(&address, false)).unwrap();
    sim.put(pod("p").asking(GPU, 1));
    sim.until("the binding", |sim| node_of(sim, "p")).await.unwrap();
    assert_eq!(node_of(&sim, "p").unwrap(), "b");
    assert_eq!(extender.calls(), ["filter p", "prioritize p"]);
    let decision = decisions.recv().await.unwrap();
    assert_eq!(decision.outcome, Ok("b".to_owned()));
    let verdict = &decision.candidates.iter().find(|c| c.node == "c").unwrap().verdict;
    assert_eq!(*verdict, Verdict::Rejected { reason: "not today".to_owned(), unresolvable: false });
}

#[tokio::test]
async fn the_next_filter_comes_before_the_last_bind_has_ended_and_counts_the_assumed_pod() {
    let bind_after = Arc::new(Notify::new());
    let extender =
        LoggingExtender { bind_after: Some(bind_after.clone()), ..LoggingExtender::default() };
    let sim = Sim::start().await.unwrap();
    sim.put(node("only").with(GPU, 4));
    let address = extender.start().await;
    let (_scheduler, mut decisions) = Scheduler::start(&sim, config(&address, true)).unwrap();
    sim.put(pod("first").asking(GPU, 3));
    assert_eq!(decisions.recv().await.unwrap().outcome, Ok("only".to_owned()));
    sim.put(pod("second").asking(GPU, 3));
    let refused = decisions.recv().await.unwrap().outcome.unwrap_err();
    let expected = "0/1 nodes are available: 1 Insufficient example.com/gpu.";
    assert!(refused.starts_with(expected), "{refused}");
    assert_eq!(node_of(&sim, "first"), None);
    bind_after.notify_one();
}

#[tokio::test]
async fn a_pod_waits_where_every_node_has_as_many_pods_as_it_takes() {
    let sim = Sim::start().await.unwrap();
    sim.put(node("only").with("pods", 2));
    let (_scheduler, mut decisions) = Scheduler::start(&sim, SchedulerConfig::default()).unwrap();
    for name in ["first", "second"] {
        sim.put(pod(name));
        assert_eq!(decisions.recv().await.unwrap().outcome, Ok("only".to_owned()));
    }
    sim.put(pod("third"));
    let refused = decisions.recv().await.unwrap().outcome.unwrap_err();
    assert!(refused.starts_with("0/1 nodes are available: 1 Too many pods."), "{refused}");
    // A pod that has ended does not count.
    sim.change(PODS, "default", "first", |pod| pod["status"]["phase"] = "Succeeded".into());
    sim.until("the binding", |sim| node_of(sim, "third")).await.unwrap();
}

#[tokio::test]
async fn a_pod_that_no_node_takes_has_a_condition_and_an_event() {
    let sim = with_nodes().await;
    let extender = LoggingExtender::default();
    extender.rejects.lock().unwrap().extend(["a", "b", "c"].map(str::to_owned));
    let address = extender.start().await;
    let (_scheduler, _decisions) = Scheduler::start(&sim, config(&address, false)).unwrap();
    sim.put(pod("p").asking(GPU, 1));
    let event = event(&sim, "FailedScheduling").await;
    let message = "0/3 nodes are available: 3 not today. no new claims to deallocate, preemption: 0/3 \
                   nodes are available: 3 No preemption victims found for incoming pod.";
    assert_eq!((&event["type"], &event["message"]), (&json!("Warning"), &json!(message)));
    assert_eq!(event["involvedObject"]["uid"], sim.pod("default", "p").unwrap()["metadata"]["uid"]);
    assert_eq!(event["source"]["component"], "default-scheduler");
    let condition = &sim.pod("default", "p").unwrap()["status"]["conditions"][0];
    assert_eq!((&condition["status"], &condition["message"]), (&json!("False"), &json!(message)));
    // A change of any node has it tried again.
    extender.rejects.lock().unwrap().clear();
    sim.put(node("a").with("cpu", 8).with(GPU, 4).annotation("load", "less"));
    sim.until("the binding", |sim| node_of(sim, "p")).await.unwrap();
    let node = node_of(&sim, "p").unwrap();
    let message = format!("Successfully assigned default/p to {node}");
    assert_eq!(self::event(&sim, "Scheduled").await["message"], json!(message));
}

/// Waits for an Event of this reason.
async fn event(sim: &Sim, reason: &str) -> Value {
    sim.until(reason, |sim: &Sim| {
        sim.list(EVENTS).into_iter().find(|event| event["reason"] == reason)
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn without_its_extender_a_pod_is_scheduled_only_where_that_is_ignorable() {
    let sim = with_nodes().await;
    // No extender listens there.
    let mut config = config("127.0.0.1:1", false);
    let (scheduler, mut decisions) = Scheduler::start(&sim, config.clone()).unwrap();
    sim.put(pod("p").asking(GPU, 1));
    assert!(decisions.recv().await.unwrap().outcome.is_err());
    drop(scheduler);
    config.extenders[0].ignorable = true;
    let (_scheduler, mut decisions) = Scheduler::start(&sim, config).unwrap();
    assert!(decisions.recv().await.unwrap().outcome.is_ok());
}
