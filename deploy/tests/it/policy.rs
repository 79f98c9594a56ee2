//! The shipped policy, through the parser of the programs that read it.

use placement::policy::LoadPolicy;

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
