//! The decisions themselves, without HTTP or JSON around them: filter and score of a whole cluster, and the ledger.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::hint::black_box;

use bench::{ledger, loads, now, uid};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use placement::gpu::{ChoiceRule, GpuRequest};
use placement::load::{Evaluation, NodeLoad, PodToPlace, ResolvedPolicy, Verdict};
use placement::units::Units;

fn evaluation<'p, 'n>(policy: &'p ResolvedPolicy, node: &'n NodeLoad) -> Evaluation<'p, 'n> {
    Evaluation { policy, node: black_box(node), pod: PodToPlace::ORDINARY, now: now() }
}

fn load_rules(c: &mut Criterion) {
    let mut group = c.benchmark_group("load");
    for nodes in [100, 1_000, 5_000] {
        let (policy, loads) = loads(nodes);
        group.throughput(Throughput::Elements(nodes as u64));
        group.bench_with_input(BenchmarkId::new("filter", nodes), &loads, |b, loads| {
            b.iter(|| {
                loads
                    .iter()
                    .filter(|node| evaluation(&policy, node).verdict() == Verdict::Accepted)
                    .count()
            });
        });
        group.bench_with_input(BenchmarkId::new("score", nodes), &loads, |b, loads| {
            b.iter(|| {
                loads
                    .iter()
                    .map(|node| u64::from(evaluation(&policy, node).score().get()))
                    .sum::<u64>()
            });
        });
    }
    group.finish();
}

fn gpu_ledger(c: &mut Criterion) {
    let mut group = c.benchmark_group("ledger");
    let request = GpuRequest::single("app", Units(2)).unwrap();
    let rule = ChoiceRule::default();
    for (gpus, pods) in [(4, 12), (8, 36)] {
        let full = ledger(gpus, pods);
        group.bench_function(BenchmarkId::new("fit", format!("{gpus}x{pods}")), |b| {
            b.iter(|| full.read().fit(&uid(9_999), black_box(&request), &rule));
        });
    }
    group.finish();
}

criterion_group!(benches, load_rules, gpu_ledger);
criterion_main!(benches);
