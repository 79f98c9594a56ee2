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
    let [shipped, crane] = ["chart/policies/shipped.yaml", "chart/policies/crane.yaml"];
    for (policy, kept, flags) in [
        (shipped, "chart/kube-scheduler/shipped.yaml", &["--gpu"][..]),
        (shipped, "chart/kube-scheduler/without-gpus.yaml", &[]),
        (crane, "chart/kube-scheduler/crane.yaml", &["--gpu", CRANES[0], CRANES[1]]),
    ] {
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
        let policy = deploy.join(policy);
        let kept = deploy.join(kept);
        let args = ["scheduler-config".as_ref(), "--policy".as_ref()];
        let args = args.into_iter().chain([policy.as_os_str()]);
        let written = written(run(args.chain(flags.iter().map(OsStr::new))));
        if std::env::var_os("PLIMSOLL_REGENERATE").is_some() {
            std::fs::write(&kept, &written).unwrap();
        }
        let text = std::fs::read_to_string(&kept).unwrap_or_default();
        assert_eq!(text, written, "{}", kept.display());
    }
}

/// The chart makes it of the other configuration.
#[test]
fn the_configuration_in_the_cluster_is_the_one_that_the_command_writes() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let policy = deploy.join("chart/policies/shipped.yaml");
    let args = ["scheduler-config", "--gpu", "--in-cluster", "--policy"].map(OsStr::new);
    let written = written(run(args.into_iter().chain([policy.as_os_str()])));
    let manifests = std::fs::read_to_string(deploy.join("manifests/second/plimsoll.yaml")).unwrap();
    let objects: Vec<serde_json::Value> = serde_saphyr::from_multiple(&manifests).unwrap();
    let mut objects = objects.iter().filter(|object| object["kind"] == "ConfigMap");
    let map = objects.find(|object| object["metadata"]["name"] == "kube-scheduler").unwrap();
    assert_eq!(map["data"]["config.yaml"], written);
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

/// The comment above `percentageOfNodesToScore: 100`; `None` where kube-scheduler's own sample is enough.
fn every_node(fields: &str, spec: &str, flags: &[&str]) -> Option<String> {
    let text = config(fields, spec, flags);
    let (_, below) = text.split_once("# Look at every node, for ")?;
    let (comment, rest) = below.split_once("percentageOfNodesToScore: ")?;
    assert!(rest.starts_with("100\nextenders:"), "{text}");
    let (what_for, why) = comment.split_once(".\n# By default kube-scheduler").unwrap();
    let is_for_few = why.contains("With at most 100 GPU nodes leave it out");
    assert_eq!(is_for_few, what_for == "GPUs", "{comment}");
    Some(what_for.to_owned())
}

/// A sample is wrong where the extender can reject all of it though another node would do.
#[test]
fn every_node_is_looked_at_where_an_answer_about_a_sample_could_be_wrong() {
    let limit = ", limit: 0.8, weight: 1";
    let hard = "  limits: {mode: hard}\n";
    for (fields, spec, flags, expected) in [
        // Soft limits, and what only scores.
        (limit, "", &[][..], None),
        (", weight: 1", "", &[], None),
        (", weight: 1, whenMissing: reject", "", &[], None),
        (limit, "", &["--gpu"], Some("GPUs")),
        ("", "", &["--gpu"], Some("GPUs")),
        (limit, hard, &[], Some("hard limits")),
        (limit, "  limits: {mode: hard, maxWait: 10m}\n", &[], Some("hard limits")),
        // There is nothing that could be hard.
        (", weight: 1", hard, &[], None),
        (
            ", limit: 0.8, whenMissing: reject",
            "",
            &[],
            Some("nodes that are rejected without a reading"),
        ),
        (
            ", limit: 0.8, whenStale: reject",
            "",
            &[],
            Some("nodes that are rejected without a reading"),
        ),
        (
            "",
            "  namespaces: [{names: [a], nodeSelector: a}]\n",
            &[],
            Some("the nodes of namespaces"),
        ),
        (
            "",
            "  limits: {mode: hard}\n  nodePools: [{name: a, selector: a, metrics: [{name: cpu_usage_avg_5m, limit: 0.9}]}]\n",
            &[],
            Some("hard limits"),
        ),
        (limit, hard, &["--gpu", "--in-cluster"], Some("GPUs and hard limits")),
        (
            "",
            "  limits: {mode: hard}\n  demand: {egress: {limit: 0.8}}\n",
            &[],
            Some("hard limits"),
        ),
        ("", "  demand: {egress: {limit: 0.8}}\n", &[], None),
    ] {
        let found = every_node(fields, spec, flags);
        assert_eq!(found.as_deref(), expected, "{fields} {spec} {flags:?}");
        let has_setting = config(fields, spec, flags).contains("\npercentageOfNodesToScore:");
        assert_eq!(has_setting, expected.is_some());
    }
}

#[test]
fn demands_need_verbs_as_metrics_do() {
    for (rule, filter, scores) in [
        ("limit: 0.8", true, false),
        ("weight: 1", false, true),
        ("limit: 0.8, weight: 1", true, true),
    ] {
        let text = config("", &format!("  demand: {{egress: {{{rule}}}}}\n"), &[]);
        let has = |verb: &str| text.contains(&format!("\n  {verb}: "));
        assert_eq!((has("filterVerb"), has("prioritizeVerb")), (filter, scores), "{text}");
    }
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

#[test]
fn the_comment_above_the_weight_says_what_it_makes_of_the_scale() {
    let comment = |fields: &str, spec: &str| {
        let text = config(fields, spec, &[]);
        let (above, _) = text.split_once("\n  weight: ").unwrap();
        let (_, comment) = above.rsplit_once("prioritizeVerb: prioritize\n").unwrap();
        comment.replace("\n  #", "")
    };
    let of_hundred = comment(", weight: 1", "  scoring: {scale: 100}\n");
    for part in [
        "score (0 to 100) x weight x 10 to the 0 to 1400 points",
        "each percent of load above what is typical of the candidates costs a node 10 points, 1000 at most.",
    ] {
        assert!(of_hundred.contains(part), "{of_hundred}");
    }
    for (direction, is_told) in [("spread", true), ("pack", false)] {
        for (scale, moves) in
            [(10, "load moves a node by up to 300"), (100, "load moves a node by 10 points")]
        {
            let scoring = format!("{{model: craneLinear, direction: {direction}, scale: {scale}}}");
            let text = comment(", weight: 1", &format!("  scoring: {scoring}\n"));
            assert!(text.contains(moves), "{text}");
            assert_eq!(text.contains("MostAllocated"), is_told, "{text}");
        }
    }
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
fn a_profile_that_packs_beside_a_score_by_load_is_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let with = |strategy: &str, spec: &str| {
        let args = format!("{{scoringStrategy: {{type: {strategy}}}}}");
        let profile = format!("{{pluginConfig: [{{name: NodeResourcesFit, args: {args}}}]}}");
        std::fs::write(&file, format!("profiles: [{profile}]\n")).unwrap();
        let policy = format!("{HEAD}  - {{name: cpu_usage_avg_5m, period: 1m, weight: 1}}\n{spec}");
        let beside = file.to_str().unwrap();
        let args = ["scheduler-config", "--policy", "-", "--in-cluster", "--beside", beside];
        let run = run_as(Path::new(PLIMSOLL), args, &policy);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        run.stderr
    };
    let warned = with("MostAllocated", "");
    assert!(
        warned.starts_with("Warning: default-scheduler (MostAllocated) packs nodes"),
        "{warned}"
    );
    assert_eq!(with("LeastAllocated", ""), "");
    assert_eq!(with("MostAllocated", "  scoring: {model: craneLinear, direction: pack}\n"), "");
    let absent = ["scheduler-config", "--policy", "-", "--beside", "/absent.yaml"];
    let refused =
        run_as(Path::new(PLIMSOLL), absent, HEAD.strip_suffix("  metrics:\n").unwrap()).failure();
    assert!(refused.contains("/absent.yaml"), "{refused}");
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
