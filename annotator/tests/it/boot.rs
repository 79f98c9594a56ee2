//! Nodes that boot or join: they are known within minutes, as after a day.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use placement::load::{Evaluation, MetricTable, NodeLoad, PodToPlace, Readings, ResolvedPolicy};
use placement::policy::LoadPolicy;
use placement::reading::ReadingCodec;
use placement::units::MetricName;
use serde_json::{Map, Value, json};
use sim::node;

use crate::exporter::Answer;
use crate::world::{Running, START, World};

/// The policy that crane ships, of aggregates of `cpu_usage` and `mem_usage`.
const CRANE: &str = include_str!("../../../crates/placement/tests/golden/crane-policy.yaml");

const MINUTE: i64 = 60;
const DAY: i64 = 24 * 60 * MINUTE;

/// A node under a steady load, and its exporter.
#[derive(Debug, Clone, Copy)]
struct Boot {
    /// In percent.
    load: f64,
    /// When the exporter starts to sample, in seconds after the boot.
    sampled_from: i64,
    /// Whether the exporter tells the time since the boot.
    tells_uptime: bool,
}

impl Boot {
    /// The exporter's answer `uptime` seconds after the boot. As in node-exporter-plus, a maximum of means has a value
    /// from the first full minute on, 2.5 minutes after the boot or later, at which samples fill half of the last five
    /// minutes or of the time since the boot.
    fn answer(self, uptime: i64) -> Answer {
        let from = self.sampled_from;
        if uptime < from {
            return Answer::Raw("not HTTP".to_owned());
        }
        let mut minutes = (from / MINUTE..=uptime / MINUTE).map(|minute| minute * MINUTE);
        let has_maximum = minutes.any(|at| at >= 150 && 2 * (at - from).min(300) >= at.min(300));
        let mut values = Map::new();
        for (aggregate, window) in [("avg_5m", 300), ("max_avg_1h", 3600), ("max_avg_1d", DAY)] {
            let coverage = (uptime - from).min(window) as f64 / window as f64;
            let value: Value = json!({
                "value": self.load, "timestamp": "2026-11-19T21:59:53.017Z",
                "coverage": coverage, "windowSeconds": window,
            });
            if aggregate == "avg_5m" || has_maximum {
                values.insert(format!("cpu_usage_{aggregate}"), value.clone());
                values.insert(format!("mem_usage_{aggregate}"), value);
            }
        }
        let mut body = json!({"bootId": "a-boot", "sampleIntervalSeconds": 10, "values": values});
        if self.tells_uptime {
            body["uptime_seconds"] = uptime.into();
        }
        Answer::Detailed(body.to_string())
    }

    /// Lets the time pass from `from` to `to` seconds after the boot, in steps of 5 seconds.
    async fn pass(self, world: &World, running: &Running, from: i64, to: i64) {
        for uptime in (from..to).step_by(5) {
            world.exporter.set(self.answer(uptime + 5));
            running.pass(5).await;
        }
    }
}

/// The node's score under the shipped policy, as the extender evaluates it.
fn score(world: &World, now: Timestamp) -> u8 {
    let annotations = world.annotations("a");
    let mut table = MetricTable::default();
    let codec = ReadingCodec::default();
    let policy = LoadPolicy::from_yaml(CRANE).unwrap();
    let policy = ResolvedPolicy::new(policy, &mut table);
    let readings = annotations.as_object().into_iter().flatten().filter_map(|(key, text)| {
        Some((MetricName::parse(key)?, codec.decode(text.as_str()?).ok()?))
    });
    let readings = Arc::new(Readings::new(&mut table, readings));
    let node = NodeLoad { readings, ..NodeLoad::default() };
    Evaluation { policy: &policy, node: &node, pod: PodToPlace::ORDINARY, now }.score().get()
}

/// A world with the shipped policy and one node that was created `created` seconds after [`START`].
async fn world(created: i64) -> World {
    let world = World::new().await;
    std::fs::write(world.policy_file(), CRANE).unwrap();
    let created = START.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(created);
    world.sim.put(node("a").address("127.0.0.1").created_at(&created.to_string()));
    world
}

/// The scores of a node that boots at [`START`] 3 minutes and half an hour later.
async fn scores(boot: Boot, created: i64) -> (u8, u8) {
    let world = world(created).await;
    world.exporter.set(boot.answer(0));
    let running = world.start().await;
    assert_eq!(score(&world, running.now()), 0, "a silent node never looks idle");
    boot.pass(&world, &running, 0, 185).await;
    let three_minutes = score(&world, running.now());
    boot.pass(&world, &running, 185, 30 * MINUTE).await;
    assert!(world.patches("a") <= 16, "{}", world.patches("a"));
    (three_minutes, score(&world, running.now()))
}

#[tokio::test]
async fn a_rebooted_node_scores_after_three_minutes_as_after_a_day() {
    let boot = Boot { load: 5.0, sampled_from: 60, tells_uptime: true };
    assert_eq!(scores(boot, -7 * DAY).await, (95, 95));
}

#[tokio::test]
async fn a_node_that_joins_scores_soon_as_after_a_day_though_its_exporter_tells_no_uptime() {
    let boot = Boot { load: 5.0, sampled_from: 60, tells_uptime: false };
    let (three_minutes, half_an_hour) = scores(boot, 30).await;
    assert!((19..=95).contains(&three_minutes), "{three_minutes}");
    assert_eq!(half_an_hour, 95);
}

#[tokio::test]
async fn after_a_reboot_readings_from_before_are_overwritten_within_three_minutes() {
    let world = world(-7 * DAY).await;
    let busy = Boot { load: 90.0, sampled_from: 0, tells_uptime: true };
    world.exporter.set(busy.answer(3 * DAY));
    let running = world.start().await;
    busy.pass(&world, &running, 3 * DAY, 3 * DAY + 10 * MINUTE).await;
    assert_eq!(score(&world, running.now()), 10);
    let boot = Boot { load: 5.0, sampled_from: 60, tells_uptime: true };
    boot.pass(&world, &running, 0, 185).await;
    assert_eq!(score(&world, running.now()), 95, "{}", world.annotations("a"));
}

#[tokio::test]
async fn an_exporter_that_starts_on_a_long_running_node_waits_for_half_of_each_window() {
    let world = world(-7 * DAY).await;
    let late = Boot { load: 5.0, sampled_from: 3 * DAY, tells_uptime: true };
    world.exporter.set(late.answer(3 * DAY));
    let running = world.start().await;
    late.pass(&world, &running, 3 * DAY, 3 * DAY + 20 * MINUTE).await;
    let annotations = world.annotations("a");
    assert!(annotations["cpu_usage_avg_5m"].is_string(), "{annotations}");
    assert!(annotations["cpu_usage_max_avg_1h"].is_null(), "{annotations}");
}

#[tokio::test]
async fn an_exporter_that_always_tells_a_short_uptime_causes_a_bounded_number_of_patches() {
    let world = world(-7 * DAY).await;
    let boot = Boot { load: 5.0, sampled_from: 0, tells_uptime: true };
    world.exporter.set(boot.answer(300));
    let running = world.start().await;
    running.pass_minutes(60).await;
    // 10 for readings that stay valid for 8 minutes, and at most one each 5 minutes for a boot.
    let patches = world.patches("a");
    assert!((10..=24).contains(&patches), "{patches}");
}
