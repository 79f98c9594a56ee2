//! What pods use: an exporter's `/v1/pods`, and the annotator's `/v1/workloads`.

use api::pods::{MAX_PODS, NodePods};
use api::workloads::{MAX_WORKLOADS, Workloads};

use crate::text;

/// What is read stays the same when it is written and read again, and is within the limits.
pub(crate) fn pod_use(input: &[u8]) {
    let Some(text) = text(input) else { return };
    if let Ok(pods) = NodePods::from_json(text) {
        assert!(pods.pods.len() <= MAX_PODS);
        let seconds = pods.pods.iter().filter_map(|pod| pod.cpu_seconds_total);
        assert!(seconds.into_iter().all(f64::is_finite));
        assert_eq!(NodePods::from_json(&pods.to_json()), Ok(pods));
    }
    if let Ok(all) = Workloads::from_json(text) {
        assert!(all.workloads.len() <= MAX_WORKLOADS);
        for workload in &all.workloads {
            assert_eq!(workload.id().template, workload.template);
            let learned = workload.learned();
            let amounts = [learned.cpu, learned.memory].into_iter().flatten();
            assert!(amounts.map(|each| each.amount.p90).all(|p90| p90.is_finite() && p90 >= 0.0));
        }
        assert_eq!(Workloads::from_json(&all.to_json()), Ok(all));
    }
}
