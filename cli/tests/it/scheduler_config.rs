//! `plimsoll scheduler-config`.

use std::ffi::OsStr;
use std::path::Path;

use crate::command::{PLIMSOLL, Run, assert_golden, run, run_as};

const HEAD: &str = "apiVersion: plimsoll.dev/v1alpha1\nkind: SchedulingPolicy\nspec:\n  metrics:\n";

/// What is written for a policy of one metric with these fields.
fn config(fields: &str, spec: &str, flags: &[&str]) -> String {
    let policy = format!("{HEAD}  - {{name: cpu_usage_avg_5m, period: 1m{fields}}}\n{spec}");
    let args = ["scheduler-config", "--policy", "-"].iter().chain(flags);
    written(run_as(Path::new(PLIMSOLL), args, &policy))
}

/// What it writes; the address for the script comes with a warning, and nothing else does.
fn written(run: Run) -> String {
    let for_script = run.stdout.contains("urlPrefix: http://scheduler-extender.");
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(!for_script || run.stderr.starts_with("Warning: the address is "), "{}", run.stderr);
    run.stdout
}

/// The verbs that are configured, in their order.
fn verbs(text: &str) -> Vec<&str> {
    let fields = text.lines().filter_map(|line| line.trim().split_once("Verb: "));
    fields.map(|(verb, _)| verb).collect()
}

/// Pods of crane-scheduler name it.
const CRANES: &[&str] = &["--scheduler-name", "crane-scheduler"];

#[test]
fn shipped_configurations_are_those_of_the_shipped_policies() {
    let [shipped, crane] = ["base/policy.yaml", "components/crane-policy/policy.yaml"];
    for (policy, kept, flags) in [
        (shipped, "scheduler/kube-scheduler-config.yaml", &[][..]),
        (crane, "components/crane-policy/kube-scheduler-config.yaml", CRANES),
        (shipped, "components/second-scheduler/config.yaml", &["--in-cluster"]),
        (shipped, "chart/kube-scheduler/shipped.yaml", &["--in-cluster"]),
        (crane, "chart/kube-scheduler/crane.yaml", &["--in-cluster", CRANES[0], CRANES[1]]),
    ] {
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
        let policy = deploy.join(policy);
        let kept = deploy.join(kept);
        let args = ["scheduler-config".as_ref(), "--gpu".as_ref(), "--policy".as_ref()];
        let args = args.into_iter().chain([policy.as_os_str()]);
        let written = written(run(args.chain(flags.iter().map(OsStr::new))));
        if std::env::var_os("PLIMSOLL_REGENERATE").is_some() {
            std::fs::write(&kept, &written).unwrap();
        }
        let text = std::fs::read_to_string(&kept).unwrap_or_default();
        assert_eq!(text, written, "{}", kept.display());
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

/// The names of the profiles, in their order.
fn profiles(flags: &[&str]) -> Vec<String> {
    let text = config(", weight: 1", "", flags);
    let names = text.lines().filter_map(|line| line.strip_prefix("- schedulerName: "));
    names.map(str::to_owned).collect()
}

#[test]
fn further_names_come_after_the_schedulers_own() {
    assert!(profiles(&[]).is_empty());
    assert_eq!(profiles(CRANES), ["default-scheduler", "crane-scheduler"]);
    let two = [CRANES, &["--scheduler-name", "batch"], &["--in-cluster"]].concat();
    assert_eq!(profiles(&two), ["plimsoll-scheduler", "crane-scheduler", "batch"]);
}

/// kube-scheduler ends where two profiles have one name, and two schedulers would place pods that name none.
#[test]
fn names_that_kube_scheduler_cannot_have_are_refused() {
    for (flags, wanted) in [
        (&["crane-scheduler", "batch", "crane-scheduler"][..], "crane-scheduler is given twice"),
        (&["default-scheduler"], "the scheduler's own name: leave the flag out"),
        (&["plimsoll-scheduler", "--in-cluster"], "the scheduler's own name: leave the flag out"),
        (&["default-scheduler", "--in-cluster"], "the cluster's own kube-scheduler"),
    ] {
        let mut args = vec!["scheduler-config", "--policy", "-"];
        for flag in flags {
            if !flag.starts_with("--") {
                args.push("--scheduler-name");
            }
            args.push(flag);
        }
        let error = run_as(Path::new(PLIMSOLL), args, "").failure();
        assert!(error.contains(wanted), "{flags:?}: {error}");
    }
    let of_second = profiles(&["--scheduler-name", "plimsoll-scheduler"]);
    assert_eq!(of_second, ["default-scheduler", "plimsoll-scheduler"]);
    let dotted = ["scheduler-config", "--policy", "-", "--scheduler-name", "a: b"];
    let refused = run_as(Path::new(PLIMSOLL), dotted, "");
    assert!(refused.stderr.contains("expected small letters"), "{}", refused.stderr);
}

/// kube-scheduler ends where it reads a number or a bool in place of a name.
#[test]
fn names_that_yaml_takes_for_something_else_are_quoted() {
    for name in ["12", "1e3", "0x1f", "null", "on", "y", "no", "true"] {
        let flags = ["--in-cluster", "--namespace", name, "--scheduler-name", name];
        let text = config(", weight: 1", "", &flags);
        assert!(text.contains(&format!("\n  resourceNamespace: \"{name}\"\n")), "{text}");
        assert!(text.contains(&format!("\n- schedulerName: \"{name}\"\n")), "{text}");
    }
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

#[test]
fn a_kube_scheduler_that_is_set_up_by_hand_gets_its_certificate_and_its_kubeconfig() {
    let flags = [
        "--gpu",
        "--address=https://10.96.3.4:19100/",
        "--namespace=gpus",
        "--certificates=/var/lib/plimsoll",
        "--kubeconfig=/var/lib/rancher/rke2/server/cred/scheduler.kubeconfig",
    ];
    assert_golden("scheduler-config-tls.yaml", &config(", weight: 1", "", &flags));
}

#[test]
fn the_one_in_the_cluster_has_a_lease_a_profile_and_addresses_of_its_own() {
    let text = config(", weight: 1", "", &["--gpu", "--in-cluster", "--namespace", "gpus"]);
    for line in [
        "  resourceName: plimsoll-scheduler\n  resourceNamespace: gpus\n",
        "- schedulerName: plimsoll-scheduler\n",
        "- urlPrefix: https://scheduler-extender.gpus.svc:19100/load-aware\n  enableHTTPS: true\n",
        "- urlPrefix: https://scheduler-extender.gpus.svc:19100/gpushare-scheduler\n  enableHTTPS: true\n",
    ] {
        assert!(text.contains(line), "no {line} in {text}");
    }
    assert_eq!(text.matches("    serverName: scheduler-extender.gpus.svc\n").count(), 2);
    // It has the token of its service account.
    assert!(!text.contains("kubeconfig"), "{text}");
}

#[test]
fn what_the_one_in_the_cluster_is_given_is_no_choice() {
    for flag in ["--address=http://h:1", "--certificates=/a", "--kubeconfig=/a"] {
        let args = ["scheduler-config", "--policy", "-", "--in-cluster", flag];
        let refused = run_as(Path::new(PLIMSOLL), args, "");
        assert_eq!(refused.code, Some(2), "{flag}");
        assert!(refused.stderr.contains("cannot be used with"), "{flag}: {}", refused.stderr);
    }
}
