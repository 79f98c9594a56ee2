//! Values that are held back, and exporters of the flat format.

use serde_json::{Map, Value, json};

use crate::exporter::{Answer, detail, detailed};
use crate::world::{CALM, World};

const CPU: &str = "cpu_usage_avg_5m";
const MEM: &str = "mem_usage_avg_5m";

/// An answer with a CPU value of this coverage and a usable memory value.
fn covered(coverage: f64) -> Answer {
    let values = [(CPU, detail(&json!(63.012), coverage)), (MEM, detail(&json!(7), 1.0))];
    let values = values.into_iter().map(|(metric, detail)| (metric.to_owned(), detail));
    Answer::Detailed(detailed(&values.collect::<Map<String, Value>>()))
}

#[tokio::test]
async fn a_window_less_than_half_full_is_not_written_until_it_is() {
    let world = World::with_node().await;
    world.exporter.set(covered(0.3));
    let running = world.start().await;
    let annotations = world.annotations("a");
    assert_eq!(annotations[MEM], "0.07000,2026-11-20T09:00:00Z");
    assert!(annotations[CPU].is_null(), "{annotations}");
    let metrics = running.metrics();
    let now = |reason: &str, nodes: u8| {
        format!("annotator_readings_held_back{{metric=\"{CPU}\",reason=\"{reason}\"}} {nodes}\n")
    };
    assert!(metrics.contains(&now("coverage", 1)) && metrics.contains(&now("age", 0)), "{metrics}");
    assert!(metrics.contains("annotator_nodes_answered 1\n"), "{metrics}");
    world.exporter.set(covered(0.5));
    // 20% of five minutes was missing.
    running.pass(60).await;
    let annotations = world.annotations("a");
    let written = annotations[CPU].as_str().unwrap();
    assert!(written.starts_with("0.63012,2026-11-20T09:0"), "{written}");
    assert!(running.metrics().contains(&now("coverage", 0)));
}

#[tokio::test]
async fn a_reading_whose_window_loses_samples_becomes_stale() {
    let world = World::with_node().await;
    let running = world.start().await;
    world.exporter.set(covered(0.49));
    running.pass_minutes(9).await;
    let annotations = world.annotations("a");
    assert_eq!(annotations[CPU], "0.63012,2026-11-20T09:00:00Z");
    assert_ne!(annotations[MEM], "0.07000,2026-11-20T09:00:00Z");
}

#[tokio::test]
async fn a_value_with_an_old_newest_sample_is_not_written() {
    let world = World::with_node().await;
    let old = json!({"value": 63.012, "timestamp": "2026-11-19T21:50:00Z", "coverage": 1});
    world.exporter.set(Answer::Detailed(detailed(&[(CPU.to_owned(), old)].into_iter().collect())));
    let running = world.start().await;
    assert_eq!(world.patches("a"), 0);
    let metrics = running.metrics();
    let now = format!("annotator_readings_held_back{{metric=\"{CPU}\",reason=\"age\"}} 1\n");
    assert!(metrics.contains(&now), "{metrics}");
}

#[tokio::test]
async fn an_exporter_of_the_flat_format_is_asked_once_for_the_detailed_one() {
    for known in [Answer::Flat as fn(String) -> Answer, Answer::FlatWithHome] {
        let world = World::with_node().await;
        world.exporter.set(known(CALM.to_owned()));
        let running = world.start().await;
        assert_eq!(world.annotations("a")[CPU], "0.63012,2026-11-20T09:00:00Z");
        running.pass_minutes(9).await;
        let asked = world.exporter.heads();
        let detailed = asked.iter().filter(|head| head.starts_with("GET /v1/statistics "));
        assert_eq!((detailed.count(), asked.len()), (1, 5), "{asked:?}");
    }
}

#[tokio::test]
async fn an_exporter_that_was_upgraded_is_noticed_within_minutes() {
    let world = World::with_node().await;
    world.exporter.set(Answer::Flat(CALM.to_owned()));
    let running = world.start().await;
    world.exporter.set(covered(0.1));
    running.pass_minutes(20).await;
    let asked = world.exporter.heads();
    assert!(asked.last().unwrap().starts_with("GET /v1/statistics "), "{asked:?}");
    let now = format!("annotator_readings_held_back{{metric=\"{CPU}\",reason=\"coverage\"}} 1\n");
    assert!(running.metrics().contains(&now));
}
