//! What a watch event of a node costs until Filter and Prioritize read it: a heartbeat, changed readings, and a node
//! that joins and leaves.

#![allow(clippy::expect_used, reason = "a benchmark fails by panicking")]

use bench::slopes::SIZES_OF_VIEW;
use bench::{POLICY, now};
use cluster::{Event, NodeFacts};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use placement::names::Names;
use placement::policy::LoadPolicy;
use placement::reading::{Reading, ReadingCodec};
use placement::units::Ratio;
use scheduler_extender::view::{View, WatchState};
use serde_json::{Map, Value, json};

/// A node whose readings are all `percent`.
fn node(number: usize, percent: u8, policy: &LoadPolicy) -> NodeFacts {
    let value = Ratio::new(f64::from(percent) / 100.0).expect("a fraction");
    let text = ReadingCodec::default().encode(&Reading::new(value, now()));
    let metrics = policy.metrics().into_iter();
    let annotations: Map<String, Value> =
        metrics.map(|metric| (metric.to_string(), json!(text))).collect();
    let name = format!("ip-10-0-{}-{}.internal", number / 256, number % 256);
    let node = json!({ "metadata": { "name": name, "annotations": annotations } });
    let node: cluster::Node = serde_json::from_value(node).expect("a node");
    node.facts(&Names::default(), &ReadingCodec::default())
}

fn watch(name: &'static str) -> WatchState {
    WatchState::new(daemon::Readiness::default().condition(name))
}

fn apply(view: &View, node: &NodeFacts) {
    view.apply_nodes(Event::Applied(node.clone()), now());
}

fn events(c: &mut Criterion) {
    let mut group = c.benchmark_group("view");
    for nodes in SIZES_OF_VIEW {
        let policy = LoadPolicy::from_yaml(POLICY).expect("the shipped policy");
        let listed = (0..nodes).map(|number| node(number, 20, &policy)).collect();
        let known = node(7, 20, &policy);
        let changed = node(7, 30, &policy);
        let joining = node(nodes, 20, &policy);
        let view = View::new(policy, false, watch("nodes"), watch("pods"));
        view.apply_nodes(Event::Listed(listed), now());
        group.bench_function(BenchmarkId::new("heartbeat", nodes), |b| {
            b.iter(|| apply(&view, &known));
        });
        group.bench_function(BenchmarkId::new("two_changes", nodes), |b| {
            b.iter(|| {
                apply(&view, &changed);
                apply(&view, &known);
            });
        });
        group.bench_function(BenchmarkId::new("join_and_leave", nodes), |b| {
            b.iter(|| {
                apply(&view, &joining);
                view.apply_nodes(Event::Gone(joining.clone()), now());
            });
        });
    }
    group.finish();
}

criterion_group!(benches, events);
criterion_main!(benches);
