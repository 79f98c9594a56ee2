//! The shipped policy, through the parser of the programs that read it.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use node_exporter_plus::collectors::KINDS;
use node_exporter_plus::config::Config;
use node_exporter_plus::series::{Aggregate, Signal};
use placement::load::{
    Evaluation, MetricTable, NodeLoad, PodToPlace, Readings, ResolvedPolicy, Verdict, typical_load,
};
use placement::policy::{Exported, LoadPolicy, WhenAllOverloaded};
use placement::reading::Reading;
use placement::resources::{Amounts, PerResource};
use placement::units::Ratio;

use crate::manifests::{Manifests, PROGRAMS, read};

fn parsed(path: &str) -> LoadPolicy {
    LoadPolicy::from_yaml(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_shipped_policy_is_valid_and_means_what_it_says() {
    let policy = parsed("chart/policies/shipped.yaml");
    assert_eq!(policy.warnings(), []);
    // Pods never wait for Plimsoll, unless the operator wants it.
    assert_eq!(policy.overload.when_all, WhenAllOverloaded::PassLeastLoaded);
    for rule in &policy.sync {
        assert_eq!(Exported::of(&rule.metric), Exported::ByDefault, "{:?}", rule.metric);
    }
}

#[test]
fn cranes_policy_has_the_values_that_crane_ships() {
    assert_eq!(
        parsed("chart/policies/crane.yaml"),
        parsed("../crates/placement/tests/golden/crane-policy.yaml")
    );
}

#[test]
fn pods_mount_the_config_map_that_has_the_shipped_policy() {
    for mode in ["external", "second", "none"] {
        let manifests = Manifests::of_mode(mode);
        let policy = manifests.object("ConfigMap", "policy");
        let text = policy["data"]["policy.yaml"].as_str().expect("a text");
        assert_eq!(text, read("chart/policies/shipped.yaml"), "{mode}");
        for program in PROGRAMS.into_iter().filter(|name| manifests.runs(name)) {
            for volume in manifests.pod(program)["volumes"].as_array().into_iter().flatten() {
                if !volume["configMap"].is_null() {
                    assert_eq!(volume["configMap"]["name"], "policy", "{mode}, {program}");
                }
            }
        }
    }
}

#[test]
fn the_policys_warnings_know_what_exporters_serve() {
    let values = [
        "active",
        "avg_5m",
        "avg_15m",
        "stddev_15m",
        "max_avg_1h",
        "max_avg_1d",
        "max_avg_15m_6h",
        "avg_90s",
        "max_24h",
        "min_1d",
        "p1_1h",
        "p99_1d",
        "stddev_1h",
        "p0_1h",
        "p100_1h",
        "avg_2d",
        "max_avg_2h_1h",
        "min_avg_1h",
        "median_5m",
        "avg_0m",
        "avg",
    ];
    for kind in KINDS {
        let signal = match kind.label {
            None => Signal::of_node(kind),
            Some(_) => Signal::of_device(kind, "x1"),
        };
        let always = Config::default().aggregates(&signal);
        for value in values {
            let expected = match value.parse::<Aggregate>() {
                Ok(aggregate) if always.contains(&aggregate) => Exported::ByDefault,
                Ok(_) => Exported::WhenConfigured,
                Err(_) => Exported::Never,
            };
            let metric = format!("{}_{value}", signal.name());
            assert_eq!(Exported::of(&metric.as_str().into()), expected, "{metric}");
        }
    }
}

/// The node of docs/policy.md's example: 8 cores and 32 GiB, of which so many cores are requested, with these
/// readings, and pods of 1 core and 1 GiB that were bound 64 s ago.
fn example_node(
    table: &mut MetricTable,
    requested: f64,
    [cpu, memory]: [f64; 2],
    recent: usize,
) -> NodeLoad {
    let now = Timestamp::UNIX_EPOCH;
    let readings = [("cpu_shared_busy_avg_5m", cpu), ("mem_usage_avg_5m", memory)];
    let readings = Readings::new(
        table,
        readings.into_iter().filter_map(|(metric, value): (&str, f64)| {
            Ratio::new(value).map(|value| (metric.into(), Reading::new(value, now)))
        }),
    );
    let capacity = PerResource { cpu: Some(8.0), memory: Some(32.0 * GIB) };
    let requested_cpu = Some(requested);
    let mut node =
        NodeLoad { readings: readings.into(), capacity, requested_cpu, ..NodeLoad::default() };
    let bound_at = now - SignedDuration::from_secs(64);
    for pod in 0..recent {
        let uid = format!("p{pod}").into();
        let uses = Amounts { cpu: 1.0, memory: GIB };
        let recent = Arc::make_mut(&mut node.recent);
        recent.bound(&uid, bound_at, uses, SignedDuration::from_hours(1));
        recent.started(&uid, bound_at);
    }
    node
}

const GIB: f64 = 1_073_741_824.0;

#[test]
fn the_worked_example_of_the_documents_is_what_the_shipped_policy_decides() {
    let mut table = MetricTable::default();
    let policy = ResolvedPolicy::new(parsed("chart/policies/shipped.yaml"), &mut table);
    let text = read("../docs/policy.md");
    let mut scores = Vec::new();
    let nodes = [(6.0, [0.30, 0.40], 0), (3.0, [0.70, 0.50], 0), (3.0, [0.45, 0.35], 2)];
    let nodes =
        nodes.map(|(requested, used, recent)| example_node(&mut table, requested, used, recent));
    let uses = Amounts { cpu: 0.5, memory: GIB };
    let typical: Vec<f64> = (0..policy.groups())
        .map(|group| {
            let mut loads = nodes.each_ref().map(|node| {
                evaluation(&policy, node, PodToPlace::ORDINARY).present_load(group).unwrap()
            });
            typical_load(&mut loads)
        })
        .collect();
    let pod = PodToPlace { uses, typical: &typical, ..PodToPlace::ORDINARY };
    for node in &nodes {
        let evaluation = evaluation(&policy, node, pod);
        assert_eq!(evaluation.verdict(), Verdict::Accepted);
        for term in evaluation.terms() {
            let load = (term.load.value().unwrap() * 1e5).round() / 1e5;
            assert!(text.contains(&format!("{load} |")), "{load}");
        }
        scores.push(evaluation.score().get().to_string());
    }
    assert!(text.contains(&format!("cut | {} |", scores.join(" | "))), "{scores:?}");
}

fn evaluation<'a>(
    policy: &'a ResolvedPolicy,
    node: &'a NodeLoad,
    pod: PodToPlace<'a>,
) -> Evaluation<'a, 'a> {
    Evaluation { policy, node, pod, now: Timestamp::UNIX_EPOCH }
}

#[test]
fn the_policies_of_the_documents_are_valid() {
    let text = read("../docs/policy.md");
    let blocks = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let whole = blocks.clone().filter(|block| block.contains("apiVersion"));
    assert_eq!(whole.clone().count(), 1);
    for block in whole {
        assert_eq!(
            LoadPolicy::from_yaml(block).unwrap(),
            parsed("chart/policies/shipped.yaml"),
            "{block}"
        );
    }
    // Parts of `spec`.
    let head = "apiVersion: plimsoll.dev/v1alpha1\nkind: SchedulingPolicy\nspec:\n";
    let metrics = "  metrics:\n  - {name: cpu_shared_busy_avg_5m, period: 1m}\n  - {name: mem_usage_avg_5m, period: 1m}\n";
    let parts: Vec<&str> = blocks.filter(|block| block.starts_with("  ")).collect();
    assert_eq!(parts.len(), 4);
    for part in parts {
        let metrics = if part.starts_with("  metrics:") { "" } else { metrics };
        LoadPolicy::from_yaml(&format!("{head}{metrics}{part}")).unwrap();
    }
}
