//! The page of metrics, checked by Prometheus's promtool.

use jiff::SignedDuration;
use sim::Sim;

use crate::rig::{GPU, Rig, gpu_node, gpu_pod, loaded_node};

#[tokio::test]
#[ignore = "needs promtool: make oracle"]
async fn promtool_finds_no_fault_in_the_page() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("a", 2));
    sim.put(loaded_node("b", 0.9, SignedDuration::from_secs(10)));
    let rig = Rig::start(&sim).await;
    let pod = gpu_pod(&sim, "p", 4);
    rig.filter("/load-aware", &pod, &["a", "b"]).await;
    rig.scores(&pod, &["a", "b"]).await;
    rig.filter("/gpushare-scheduler", &pod, &["a", "b"]).await;
    assert_eq!(rig.bind(&pod, "a").await, "", "{GPU}");
    support::promtool::check(&rig.context.metrics().unwrap());
}
