//! What a watch event of a node costs until Filter and Prioritize read it: a heartbeat, changed readings, and a node
//! that joins and leaves. And the same of an answer of the annotator, as text: with new readings of all nodes, and of
//! those that are polled within 15 seconds of a minute.

#![allow(clippy::expect_used, reason = "a benchmark fails by panicking")]

use api::readings::PolledReadings;
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

fn name(number: usize) -> String {
    format!("ip-10-0-{}-{}.internal", number / 256, number % 256)
}

/// A node whose readings are all `percent`.
fn node(number: usize, percent: u8, policy: &LoadPolicy) -> NodeFacts {
    let value = Ratio::new(f64::from(percent) / 100.0).expect("a fraction");
    let text = ReadingCodec::default().encode(&Reading::new(value, now()));
    let metrics = policy.metrics().into_iter();
    let annotations: Map<String, Value> =
        metrics.map(|metric| (metric.to_string(), json!(text))).collect();
    let node = json!({ "metadata": { "name": name(number), "annotations": annotations } });
    let node: cluster::Node = serde_json::from_value(node).expect("a node");
    node.facts(&Names::default(), &ReadingCodec::default())
}

/// The text of an answer with these nodes, whose readings are all near `percent`.
fn answer(nodes: usize, percent: u8, policy: &LoadPolicy) -> String {
    let mut answer = PolledReadings::new("8f14e45fceea167a-1".to_owned(), now());
    for number in 0..nodes {
        let percent = f64::from(percent) + (number % 1_000) as f64 / 1_234.5;
        let value = Ratio::from_percent(percent).expect("a fraction");
        let reading = Reading::new(value, now()).as_written();
        let metrics = policy.metrics().into_iter();
        let readings: Vec<_> = metrics.map(|metric| (metric.clone(), reading)).collect();
        assert!(answer.push(name(number).as_str().into(), &readings));
    }
    answer.to_json()
}

fn read(view: &View, text: &str) {
    let answer = PolledReadings::from_json(text).expect("an answer");
    view.change(|index| index.apply_polled(&answer, now()));
}

fn watch(name: &'static str) -> WatchState {
    WatchState::new(daemon::Health::default().gate(name))
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
        let view = View::new(policy.clone(), false, watch("nodes"), watch("pods"));
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
        for (what, polled) in
            [("two_answers_of_all", nodes), ("two_answers_of_a_quarter", nodes / 4)]
        {
            let texts = [25, 35].map(|percent| answer(polled, percent, &policy));
            group.bench_function(BenchmarkId::new(what, nodes), |b| {
                b.iter(|| texts.iter().for_each(|text| read(&view, text)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, events);
criterion_main!(benches);
