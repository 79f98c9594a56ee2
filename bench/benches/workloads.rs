//! What it costs to learn from one observation of a pod, and to read what was learned.

use criterion::{Criterion, criterion_group, criterion_main};
use jiff::{SignedDuration, Timestamp};
use placement::learning::Learner;
use placement::resources::{PerResource, PodResources};
use placement::workload::WorkloadId;

const MINUTE: SignedDuration = SignedDuration::from_mins(1);

fn ids(workloads: u64) -> Vec<WorkloadId> {
    (0..workloads)
        .map(|n| WorkloadId {
            namespace: format!("team-{}", n % 20).into(),
            kind: "Deployment".into(),
            name: format!("some-service-{n}").into(),
            template: n,
        })
        .collect()
}

/// Observes pod `n`: each workload's use is another, and rises and falls.
fn observe(learner: &mut Learner, ids: &[WorkloadId], n: usize) {
    let requests = PerResource { cpu: Some(1.0), memory: Some(1e9) };
    let resources = PodResources { requests, ..PodResources::default() };
    let part = (n % 97) as f64 / 97.0;
    let used = PerResource { cpu: Some(0.2 + part), memory: Some(4e8 + 2e8 * part) };
    // 15 pods a workload and minute.
    let minute = n / (15 * ids.len());
    let now = Timestamp::UNIX_EPOCH + MINUTE * i32::try_from(minute).unwrap_or(i32::MAX);
    learner.observe(&ids[n % ids.len()], &resources, used, MINUTE, now);
}

fn learning(criterion: &mut Criterion) {
    for workloads in [300, 10_000] {
        let ids = ids(workloads);
        let mut learner = Learner::default();
        let mut n = 0;
        while n < 200 * ids.len() {
            observe(&mut learner, &ids, n);
            n += 1;
        }
        criterion.bench_function(&format!("workloads/observe/{workloads}"), |bencher| {
            bencher.iter(|| {
                observe(&mut learner, &ids, n);
                n += 1;
            });
        });
        criterion.bench_function(&format!("workloads/learned/{workloads}"), |bencher| {
            bencher.iter(|| {
                n += 1;
                learner.learned(&ids[n % ids.len()])
            });
        });
        criterion.bench_function(&format!("workloads/all/{workloads}"), |bencher| {
            bencher.iter(|| learner.snapshot().iter().count());
        });
        criterion.bench_function(&format!("workloads/snapshot/{workloads}"), |bencher| {
            bencher.iter(|| learner.snapshot());
        });
    }
}

criterion_group!(benches, learning);
criterion_main!(benches);
