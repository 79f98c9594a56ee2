//! `plimsoll scheduler-config`.

use std::path::Path;

use crate::command::{PLIMSOLL, assert_golden, run, run_as};

const HEAD: &str = "apiVersion: plimsoll.dev/v1alpha1\nkind: SchedulingPolicy\nspec:\n  metrics:\n";

/// What is written for a policy of one metric with these fields.
fn config(fields: &str, spec: &str, flags: &[&str]) -> String {
    let policy = format!("{HEAD}  - {{name: cpu_usage_avg_5m, period: 1m{fields}}}\n{spec}");
    let args = ["scheduler-config", "--policy", "-"].iter().chain(flags);
    run_as(Path::new(PLIMSOLL), args, &policy).success()
}

/// The verbs that are configured, in their order.
fn verbs(text: &str) -> Vec<&str> {
    let fields = text.lines().filter_map(|line| line.trim().split_once("Verb: "));
    fields.map(|(verb, _)| verb).collect()
}

#[test]
fn shipped_configurations_are_those_of_the_shipped_policies() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    for (policy, kept) in [
        ("base/policy.yaml", "scheduler/kube-scheduler-config.yaml"),
        (
            "components/crane-policy/policy.yaml",
            "components/crane-policy/kube-scheduler-config.yaml",
        ),
    ] {
        let policy = deploy.join(policy);
        let kept = deploy.join(kept);
        let args = ["scheduler-config".as_ref(), "--gpu".as_ref(), "--policy".as_ref()];
        let written = run(args.into_iter().chain([policy.as_os_str()])).success();
        if std::env::var_os("PLIMSOLL_REGENERATE").is_some() {
            std::fs::write(&kept, &written).unwrap();
        }
        assert_eq!(std::fs::read_to_string(kept).unwrap(), written);
    }
}

#[test]
fn an_entry_has_the_verbs_that_the_policy_needs() {
    for (fields, spec, expected) in [
        (", limit: 0.8, weight: 1", "", &["filter", "prioritize", "preempt"][..]),
        (", limit: 0.8", "", &["filter", "preempt"]),
        (", weight: 1", "", &["prioritize"]),
        ("", "", &[]),
        (
            "",
            "  nodePools: [{name: a, selector: a, metrics: [{name: cpu_usage_avg_5m, limit: 0.9}]}]\n",
            &["filter", "preempt"],
        ),
        ("", "  namespaces: [{names: [a], nodeSelector: a}]\n", &["filter", "preempt"]),
    ] {
        let text = config(fields, spec, &[]);
        assert_eq!(verbs(&text), expected, "{fields} {spec}");
        assert_eq!(text.contains("weight:"), expected.contains(&"prioritize"));
    }
    assert!(config("", "", &[]).contains("extenders: []\n"));
}

#[test]
fn the_weight_goes_with_the_scale() {
    assert_eq!(weight("").as_deref(), Some("1"));
    assert_eq!(weight("  scoring: {scale: 10}\n").as_deref(), Some("3"));
}

fn weight(spec: &str) -> Option<String> {
    let text = config(", weight: 1", spec, &[]);
    let mut weights = text.lines().filter_map(|line| line.trim().strip_prefix("weight: "));
    weights.next().map(str::to_owned)
}

#[test]
fn gpu_pods_have_an_entry_that_scores_where_the_other_does_not() {
    let both = config(", weight: 1", "", &["--gpu"]);
    assert_eq!(verbs(&both), ["prioritize", "filter", "preempt", "bind"]);
    let alone = config("", "", &["--gpu", "--address", "http://10.0.0.1:19100/"]);
    assert_eq!(verbs(&alone), ["filter", "prioritize", "preempt", "bind"]);
    assert_golden("scheduler-config-gpu.yaml", &alone);
}
