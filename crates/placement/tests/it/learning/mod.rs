//! What a learner answers, forgets and keeps out.

mod flood;
mod forgetting;
mod quantiles;
mod takeover;

use jiff::{SignedDuration, Timestamp};
use placement::estimate::LearnedUse;
use placement::learning::Learner;
use placement::resources::{PerResource, PodResources};
use placement::workload::WorkloadId;

const MINUTE: SignedDuration = SignedDuration::from_mins(1);

fn at(minute: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + minute * 60).unwrap()
}

fn workload(namespace: &str, name: &str, template: u64) -> WorkloadId {
    WorkloadId {
        namespace: namespace.into(),
        kind: "Deployment".into(),
        name: name.into(),
        template,
    }
}

fn web(template: u64) -> WorkloadId {
    workload("shop", "web", template)
}

fn asking(cpu: Option<f64>) -> PodResources {
    PodResources { requests: PerResource { cpu, memory: None }, ..PodResources::default() }
}

/// One pod without requests uses `cpu` cores in the minute before `minute`.
fn observe(learner: &mut Learner, id: &WorkloadId, cpu: f64, minute: i64) {
    let used = PerResource { cpu: Some(cpu), memory: None };
    learner.observe(id, &asking(None), used, MINUTE, at(minute));
}

fn cpu(learner: &Learner, id: &WorkloadId) -> Option<LearnedUse> {
    learner.learned(id).and_then(|learned| learned.cpu)
}

/// Within a twentieth: a bucket's middle is at most 1/32 away from its values, and a draw decides about a count.
fn is_near(found: f64, wanted: f64) -> bool {
    (found - wanted).abs() <= wanted * 0.05 + 0.001
}
