//! Pods whose annotations and claim would leave no room for those who write to the pod after Bind.

use cluster::{MAX_ANNOTATION_BYTES, Pod};
use placement::names::Names;
use serde_json::{Value, json};
use sim::{Fault, PODS, Sim, pod};

use crate::rig::{GPU, Rig, gpu_node};

const TEXT: &str = "text";

fn with_text(sim: &Sim, name: &str, bytes: usize) -> Value {
    sim.put(pod(name).asking(GPU, 4).annotation(TEXT, "x".repeat(bytes)))
}

/// The longest text that a pod may have.
fn longest() -> usize {
    let empty: Pod = serde_json::from_value(pod("p").asking(GPU, 4).into()).unwrap();
    let names = Names::default();
    let request = empty.request(&names).unwrap().unwrap();
    let (own, added) = empty.annotation_bytes(&names, &request);
    MAX_ANNOTATION_BYTES - own - added - TEXT.len()
}

async fn filter(rig: &Rig, pod: &Value) -> Value {
    let body = json!({"Pod": pod, "Nodes": null, "NodeNames": ["n1"]});
    rig.post("/gpushare-scheduler/filter", &body).await
}

#[tokio::test]
async fn the_largest_pod_is_bound_with_64_kib_to_spare_and_a_byte_more_is_refused_by_filter_and_bind()
 {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("n1", 1));
    let rig = Rig::start(&sim).await;
    let longest = longest();
    let largest = with_text(&sim, "largest", longest);
    assert_eq!(filter(&rig, &largest).await["NodeNames"], json!(["n1"]));
    assert_eq!(rig.bind(&largest, "n1").await, "");
    let bound = sim.pod("default", "largest").unwrap();
    let annotations = bound["metadata"]["annotations"].as_object().unwrap();
    let bytes: usize =
        annotations.iter().map(|(key, value)| key.len() + value.as_str().unwrap().len()).sum();
    assert!(bytes > longest && bytes <= MAX_ANNOTATION_BYTES, "{bytes}");
    let larger = with_text(&sim, "larger", longest + 1);
    let answer = filter(&rig, &larger).await;
    let why = answer["FailedAndUnresolvableNodes"]["n1"].as_str().unwrap_or_default();
    assert!(why.contains("annotations") && why.contains("shorten"), "{answer}");
    let why = rig.bind(&larger, "n1").await;
    assert!(why.starts_with("annotations: ") && why.contains("ConfigMap"), "{why}");
    assert_eq!(sim.pod("default", "larger").unwrap()["spec"]["nodeName"], Value::Null);
    assert_eq!(rig.used().await, 4);
}

/// An author who adds annotations at the right moment gets no more into a pod than one who does it before.
#[tokio::test]
async fn annotations_that_are_added_while_the_binding_is_under_way_refuse_it() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("n1", 1));
    let rig = Rig::start(&sim).await;
    let train = with_text(&sim, "train", 1);
    sim.faults().next_bindings(1, Fault::Hang);
    let quicker = async {
        sim.until("the binding", |sim| (sim.faults().hanging() > 0).then_some(())).await.unwrap();
        sim.change(PODS, "default", "train", |pod| {
            pod["metadata"]["annotations"][TEXT] = "x".repeat(200_000).into();
        });
        sim.faults().release();
    };
    let (why, ()) = tokio::join!(rig.bind(&train, "n1"), quicker);
    assert!(why.starts_with("annotations: "), "{why}");
    let node = || sim.pod("default", "train").unwrap()["spec"]["nodeName"].clone();
    assert_eq!((node(), rig.used().await), (Value::Null, 0), "{why}");
    // Once they are gone, it is bound.
    sim.change(PODS, "default", "train", |pod| pod["metadata"]["annotations"] = Value::Null);
    rig.until("the binding", async || rig.bind(&train, "n1").await.is_empty()).await;
    assert_eq!(node(), "n1");
}

/// kube-scheduler writes into the status of a pod that it found no node for, some milliseconds before it tries again.
#[tokio::test]
async fn a_pod_that_changes_once_while_the_binding_is_under_way_is_bound() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("n1", 1));
    let rig = Rig::start(&sim).await;
    let train = with_text(&sim, "train", 1);
    sim.faults().next_bindings(1, Fault::Hang);
    let status = async {
        sim.until("the binding", |sim| (sim.faults().hanging() > 0).then_some(())).await.unwrap();
        sim.change(PODS, "default", "train", |pod| pod["status"]["message"] = "tried".into());
        sim.faults().release();
    };
    let (why, ()) = tokio::join!(rig.bind(&train, "n1"), status);
    assert_eq!((why.as_str(), rig.used().await), ("", 4));
    assert_eq!(sim.pod("default", "train").unwrap()["spec"]["nodeName"], "n1");
}
