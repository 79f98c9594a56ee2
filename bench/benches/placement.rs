//! The decisions themselves, without HTTP or JSON around them: filter and score of a whole cluster,
//! the ledger, and what is parsed once: a claim against its pod, and a policy.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::collections::BTreeMap;
use std::hint::black_box;

use bench::{POLICY, ledger, loads, now, uid};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use placement::gpu::{CardUse, ChoiceRule, Claim, ContainerKind, ContainerRequest, GpuRequest};
use placement::load::{Evaluation, NodeLoad, PodToPlace, ResolvedPolicy, Verdict};
use placement::policy::LoadPolicy;
use placement::units::{CardId, Units};

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
    for (cards, pods) in [(4, 12), (8, 36)] {
        let full = ledger(cards, pods);
        group.bench_function(BenchmarkId::new("fit", format!("{cards}x{pods}")), |b| {
            b.iter(|| full.read().fit(&uid(9_999), black_box(&request), &rule));
        });
        let pod = uid(9_999);
        let mut changing = full.clone();
        group.bench_function(BenchmarkId::new("reserve_cancel", format!("{cards}x{pods}")), |b| {
            b.iter(|| {
                let reserved = changing.reserve(black_box(&pod), &request, &rule);
                changing.cancel(&pod);
                reserved
            });
        });
    }
    group.finish();
}

/// A pod of so many containers and its claim on one card.
fn claimed(containers: usize) -> (GpuRequest, String) {
    let asks = (0..containers).map(|position| ContainerRequest {
        name: format!("container-{position}"),
        kind: ContainerKind::App,
        position,
        units: Units(1),
        card_use: CardUse::default(),
    });
    let request = GpuRequest::new(asks).unwrap().unwrap();
    let card = CardId::from("GPU-00000000-0000-0000-0000-000000000000");
    let mut claim = api::claim::Claim { containers: BTreeMap::new() };
    for ask in request.containers() {
        let share = api::claim::Share::new(ask.share(), None);
        claim.containers.insert(ask.name.clone(), [(card.clone(), share)].into());
    }
    (request, claim.to_json())
}

fn parsers(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse");
    for containers in [1, 1_000] {
        let (request, text) = claimed(containers);
        group.bench_function(BenchmarkId::new("checked_claim", containers), |b| {
            b.iter(|| {
                let claim = api::claim::Claim::from_json(black_box(&text), containers).unwrap();
                Claim::checked(&request, &claim.shares())
            });
        });
    }
    group.bench_function("policy", |b| b.iter(|| LoadPolicy::from_yaml(black_box(POLICY))));
    group.finish();
}

criterion_group!(benches, load_rules, gpu_ledger, parsers);
criterion_main!(benches);
