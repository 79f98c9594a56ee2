//! The program under its shipped memory limit, in a cluster of pods as large as the API server takes.

use sim::memory::{Measured, large_pod, memory_limit};
use sim::{PODS, Sim, node};

use crate::world::POLICY;

/// 90 MB as JSON.
const COUNT: usize = 24;

async fn stays_within_its_limit(sim: &Sim) {
    (0..COUNT).for_each(|number| drop(sim.put(large_pod(number).on("n1"))));
    sim.put(node("n1").not_ready());
    let files = tempfile::tempdir().unwrap();
    let kubeconfig = files.path().join("kubeconfig");
    let policy = files.path().join("policy");
    sim.write_kubeconfig(&kubeconfig).unwrap();
    std::fs::write(&policy, POLICY).unwrap();
    let flags = [
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--policy-file={}", policy.display()),
        "--listen-address=127.0.0.1:0".to_owned(),
    ];
    let mut annotator = Measured::start(env!("CARGO_BIN_EXE_annotator"), &flags).unwrap();
    let events = r#"plimsoll_watch_events_total{resource="pods"}"#;
    annotator.until_metric(events, COUNT as f64).await.unwrap();
    sim.faults().expire_watches();
    annotator.until_metric(events, 2.0 * COUNT as f64).await.unwrap();
    for number in 0..COUNT {
        sim.change(PODS, "default", &format!("large-{number:03}"), |pod| {
            pod["metadata"]["labels"]["changed"] = "yes".into();
        });
    }
    annotator.until_metric(events, 3.0 * COUNT as f64).await.unwrap();
    let limit = memory_limit("annotator").unwrap();
    let peak = annotator.peak().unwrap();
    assert!(peak < limit, "{} MiB", peak >> 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_any_size_fit_into_the_memory_limit_where_lists_are_streamed() {
    stays_within_its_limit(&Sim::start().await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_any_size_fit_into_the_memory_limit_where_lists_come_in_pages() {
    let sim = Sim::start().await.unwrap();
    sim.refuse_streamed_lists();
    stays_within_its_limit(&sim).await;
}
