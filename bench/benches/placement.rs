//! The decisions themselves, without HTTP or JSON around them: filter and score of a whole cluster,
//! the ledger, and the codecs.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::collections::BTreeMap;
use std::hint::black_box;

use api::cards::{Card, Cards};
use bench::{POLICY, ledger, loads, now, uid};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use placement::gpu::{CardUse, ChoiceRule, Claim, ContainerKind, ContainerRequest, GpuRequest};
use placement::load::{Evaluation, NodeLoad, PodToPlace, ResolvedPolicy, Verdict};
use placement::policy::LoadPolicy;
use placement::reading::ReadingCodec;
use placement::units::{CardId, MiB, Units};

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

fn reported(index: u32) -> Card {
    Card {
        uuid: CardId::from(format!("GPU-{index:08x}-0000-0000-0000-000000000000")),
        index,
        model: "NVIDIA A10".to_owned(),
        memory: MiB(16 * 1024),
        units: Units(16),
        numa_node: None,
        healthy: true,
        closed: None,
        isolation: None,
        pods: BTreeMap::new(),
    }
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
    let mut claim = api::claim::Claim { containers: BTreeMap::new() };
    for ask in request.containers() {
        let share = api::claim::Share::new(ask.share(), None);
        claim.containers.insert(ask.name.clone(), [(reported(0).uuid, share)].into());
    }
    (request, claim.to_json())
}

fn codecs(c: &mut Criterion) {
    let mut group = c.benchmark_group("codec");
    let readings = ReadingCodec::default();
    group.bench_function("reading_decode", |b| {
        b.iter(|| readings.decode(black_box("0.63012,2026-11-20T09:00:00Z")));
    });
    let reading = readings.decode("0.63012,2026-11-20T09:00:00Z").unwrap();
    group.bench_function("reading_encode", |b| b.iter(|| readings.encode(black_box(&reading))));
    let cards = Cards((0..8).map(reported).collect()).to_json();
    group.bench_function("cards_decode_8", |b| b.iter(|| Cards::from_json(black_box(&cards))));
    for containers in [1, 1_000] {
        let (request, text) = claimed(containers);
        group.bench_function(BenchmarkId::new("claim_decode", containers), |b| {
            b.iter(|| {
                let claim = api::claim::Claim::from_json(black_box(&text), containers).unwrap();
                Claim::checked(&request, &claim.shares())
            });
        });
    }
    group.bench_function("policy_parse", |b| b.iter(|| LoadPolicy::from_yaml(black_box(POLICY))));
    group.finish();
}

criterion_group!(benches, load_rules, gpu_ledger, codecs);
criterion_main!(benches);
