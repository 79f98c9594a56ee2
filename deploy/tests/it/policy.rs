//! The shipped policy, through the parser of the programs that read it.

use node_exporter_plus::collectors::KINDS;
use node_exporter_plus::config::Config;
use node_exporter_plus::series::{Aggregate, Signal};
use placement::policy::{Exported, LoadPolicy};

use crate::manifests::{PROGRAMS, pod, read, strings, yaml};

#[test]
fn the_shipped_policy_is_valid_and_has_the_values_that_crane_ships() {
    let parsed =
        |path| LoadPolicy::from_yaml(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert_eq!(
        parsed("base/policy.yaml"),
        parsed("../crates/placement/tests/golden/crane-policy.yaml")
    );
}

#[test]
fn every_metric_with_a_limit_or_weight_is_fetched() {
    let policy = LoadPolicy::from_yaml(&read("base/policy.yaml")).unwrap();
    for metric in policy.metrics() {
        assert!(policy.sync.iter().any(|rule| rule.metric == *metric), "{metric:?}");
    }
}

#[test]
fn pods_mount_the_config_map_that_kustomize_generates() {
    let kustomization = yaml("base/kustomization.yaml");
    let generated = &kustomization["configMapGenerator"][0];
    assert_eq!(strings(&generated["files"]), ["policy.yaml"]);
    for program in PROGRAMS {
        for volume in pod(program)["volumes"].as_array().into_iter().flatten() {
            if !volume["configMap"].is_null() {
                assert_eq!(volume["configMap"]["name"], generated["name"], "{program}");
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
