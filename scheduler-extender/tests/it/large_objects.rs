//! The program under its shipped memory limit, in a cluster of pods as large as the API server takes.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sim::memory::{Measured, large_pod, memory_limit};
use sim::{KeptAddress, PODS, Sim};

use crate::replicas::flags;
use crate::rig::{POLICY, gpu_node, gpu_pod};

/// 55 MB as JSON.
const COUNT: usize = 24;

async fn stays_within_its_limit(sim: &Sim) {
    (0..COUNT).for_each(|number| drop(sim.put(large_pod(number))));
    sim.put(gpu_node("n1", 1));
    let files = tempfile::tempdir().unwrap();
    let path = |name: &str| files.path().join(name);
    sim.write_kubeconfig(&path("kubeconfig")).unwrap();
    std::fs::write(path("policy"), POLICY).unwrap();
    let listen = KeptAddress::new().unwrap();
    let own = [
        format!("--listen-address={}", listen.address()),
        format!("--kubeconfig={}", path("kubeconfig").display()),
        format!("--policy-file={}", path("policy").display()),
    ];
    let program = env!("CARGO_BIN_EXE_scheduler-extender");
    let mut extender = Measured::start(program, &[&own[..], &flags("15s")[..]].concat()).unwrap();
    extender.ready().await.unwrap();
    let events = r#"plimsoll_watch_events_total{resource="pods"}"#;
    // With a Lease it lists twice: at its start, and before it gives out GPUs. The second may begin before the first
    // has ended.
    let lists = r#"plimsoll_watch_lists_total{resource="pods"}"#;
    extender.until_metric(lists, 2.0).await.unwrap();
    sim.faults().expire_watches();
    extender.until_metric(lists, 3.0).await.unwrap();
    let before = extender.metric(events).await.unwrap();
    for number in 0..COUNT {
        sim.change(PODS, "default", &format!("large-{number:03}"), |pod| {
            pod["metadata"]["labels"]["changed"] = "yes".into();
        });
    }
    extender.until_metric(events, before + COUNT as f64).await.unwrap();
    // kube-scheduler sends the pod that it places as a whole.
    let client = sim::http_client().unwrap();
    let asked = (0..8).map(|number| {
        let pod = Value::from(large_pod(if number == 3 { 4 } else { number }));
        let body = json!({ "Pod": pod, "Nodes": null, "NodeNames": ["n1"] }).to_string();
        let url = format!("http://{}/load-aware/filter", listen.address());
        let request = client.post(url).body(body);
        async move { request.send().await.unwrap().status().as_u16() }
    });
    let mut tasks: tokio::task::JoinSet<u16> = asked.collect();
    while let Some(status) = tasks.join_next().await {
        assert_eq!(status.unwrap(), 200);
    }
    let train = gpu_pod(sim, "train", 5);
    let url = format!("http://{}/gpushare-scheduler/bind", listen.address());
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let bind = client.post(&url).body(crate::rig::binding(&train, "n1").to_string());
        let bound = bind.send().await.unwrap().text().await.unwrap();
        if bound.contains("\"Error\":\"\"") {
            break;
        }
        // kube-scheduler asks again, too.
        assert!(bound.contains("still reading the cluster"), "{bound}");
        assert!(Instant::now() < deadline, "{bound}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let limit = memory_limit("scheduler-extender").unwrap();
    let peak = extender.peak().unwrap();
    assert!(peak < limit / 3, "{} MiB", peak >> 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_any_size_fit_into_a_third_of_the_memory_limit_where_lists_are_streamed() {
    stays_within_its_limit(&Sim::start().await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_any_size_fit_into_a_third_of_the_memory_limit_where_lists_come_in_pages() {
    let sim = Sim::start().await.unwrap();
    sim.refuse_streamed_lists();
    stays_within_its_limit(&sim).await;
}
