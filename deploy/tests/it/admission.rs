//! The ValidatingAdmissionPolicies name the keys and the accounts that the programs have, each is in force, and none
//! costs the API server more for a larger object. What the API server makes of them, `testing/e2e` tries.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use k8s_openapi::api::core::v1::{NodeSpec, NodeStatus};
use placement::names::{GPU_COUNT_RESOURCE, Names, aliyun};
use serde_json::{Value, json};

use crate::manifests::{Manifests, of_kind, read, strings, yaml};

/// The policies of a mode, and their bindings.
fn of_mode(mode: &str) -> Vec<Value> {
    let kinds = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];
    kinds.iter().flat_map(|kind| Manifests::of_mode(mode).of_kind(kind)).collect()
}

/// Those of the mode that has all, of `devicePlugin.unhealthyConfigMaps` and of `claims`.
static ALL: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let mut all = of_mode("second");
    let unhealthy = Manifests::of_text(&read("tests/rendered/unhealthy-gpus.yaml"));
    for kind in ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"] {
        all.extend(unhealthy.of_kind(kind));
        all.extend(Manifests::of_claims().of_kind(kind));
    }
    all
});

fn policies() -> impl Iterator<Item = &'static Value> {
    ALL.iter().filter(|object| object["kind"] == "ValidatingAdmissionPolicy")
}

/// The spec of a policy.
fn spec(name: &str) -> &'static Value {
    &policies().find(|object| object["metadata"]["name"] == name).expect("a policy")["spec"]
}

fn policy(name: &str) -> String {
    spec(name).to_string()
}

#[test]
fn each_policy_refuses_and_is_bound_once_and_everywhere() {
    let bound: Vec<&Value> =
        ALL.iter().filter(|o| o["kind"] != "ValidatingAdmissionPolicy").collect();
    assert_eq!((policies().count(), bound.len()), (17, 17));
    for policy in policies() {
        let name = &policy["metadata"]["name"];
        assert_eq!(policy["spec"]["failurePolicy"], "Fail", "{name}");
        let of_it: Vec<_> = bound.iter().filter(|o| o["spec"]["policyName"] == *name).collect();
        let [binding] = &of_it[..] else { panic!("{} bindings of {name}", of_it.len()) };
        let wanted = json!({"policyName": name, "validationActions": ["Deny"]});
        assert_eq!(binding["spec"], wanted);
    }
    assert_eq!(of_mode("external").len(), 26);
    assert_eq!(of_mode("none").len(), 4, "of the annotator");
}

/// The texts in single quotes of the only list of a policy that has this one.
fn list_with(name: &str, text: &str) -> BTreeSet<String> {
    let spec = policy(name);
    let lists = spec.split('[').filter_map(|rest| Some(rest.split_once(']')?.0));
    let lists: Vec<&str> = lists.filter(|list| list.contains(&format!("'{text}'"))).collect();
    let [list] = lists[..] else { panic!("{name}: {} lists with {text}", lists.len()) };
    list.split('\'').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_key_that_bind_writes_is_protected_and_no_key_of_a_pods_author() {
    let names = Names::default();
    let written = [
        &names.claim(),
        aliyun::IDX,
        aliyun::DEV,
        aliyun::POD,
        aliyun::ASSIGNED,
        aliyun::ASSUME_TIME,
        aliyun::ALLOCATION,
    ];
    let own = [
        names.expected_use(),
        names.gpu_count(),
        names.gpu_cores(),
        names.gpu_processes(),
        names.gpu_mem_limit(),
        names.gpu_model(),
        names.gpu_uuid(),
        names.gpu_placement(),
    ];
    let written: BTreeSet<String> = written.iter().map(|key| (*key).to_owned()).collect();
    for name in [
        "plimsoll-claims",
        "plimsoll-bindings",
        "plimsoll-extender-bindings",
        "plimsoll-device-plugin-pods",
    ] {
        let protected = list_with(name, aliyun::IDX);
        assert_eq!(protected, written, "{name}");
        assert!(!own.iter().any(|key| protected.contains(key)), "{name}: {protected:?}");
    }
}

/// Velero and others make pods with the annotations that these had.
#[test]
fn the_sample_for_restores_takes_off_every_protected_key_of_pods_and_nothing_else() {
    let modifiers = yaml("samples/velero/without-claims.yaml");
    assert_eq!(modifiers["version"], "v1");
    let [rule] = &modifiers["resourceModifierRules"].as_array().expect("rules")[..] else {
        panic!("not one rule: {modifiers:#}")
    };
    assert_eq!(rule["conditions"], serde_json::json!({"groupResource": "pods"}));
    let [patch] = &rule["mergePatches"].as_array().expect("patches")[..] else {
        panic!("not one patch: {rule:#}")
    };
    let patch: Value =
        serde_saphyr::from_str(patch["patchData"].as_str().expect("a patch")).expect("YAML");
    let annotations = patch["metadata"]["annotations"].as_object().expect("annotations");
    let keys: BTreeSet<String> = annotations.keys().cloned().collect();
    assert_eq!(keys, list_with("plimsoll-claims", aliyun::IDX));
    assert!(annotations.values().all(Value::is_null), "{patch:#}");
    let whole = serde_json::json!({"metadata": {"annotations": annotations}});
    assert_eq!(patch, whole);
}

#[test]
fn resources_are_those_that_pods_ask_for() {
    let names = Names::default();
    for name in ["plimsoll-gpu-environment", "plimsoll-node-name", "plimsoll-scheduler-name"] {
        assert!(policy(name).contains(&format!("'{}'", names.gpu_resource())), "{name}");
    }
    let status = policy("plimsoll-device-plugin-node-status");
    for resource in [GPU_COUNT_RESOURCE, names.gpu_resource()] {
        assert!(status.contains(&format!("'{resource}'")), "{resource}");
    }
    let written = [names.gpus(), names.isolation()].into();
    assert_eq!(list_with("plimsoll-device-plugin-nodes", &names.gpus()), written);
    let bands = [names.gpu_band(), names.cpu_band()].into();
    assert_eq!(list_with("plimsoll-annotator-nodes", &names.gpu_band()), bands);
    let written = format!("!(key == '{}' ||", names.share());
    assert!(policy("plimsoll-annotator-nodes").contains(&written), "{written}");
}

#[test]
fn each_policy_names_the_account_that_it_is_about_and_no_other() {
    let accounts: Vec<Value> = of_kind("ServiceAccount");
    for (policies, wanted) in [
        (&["claims"][..], &["gpushare-device-plugin", "scheduler-extender"][..]),
        (&["annotator-nodes", "annotator-events"], &["annotator"]),
        (
            &[
                "device-plugin-nodes",
                "device-plugin-pods",
                "device-plugin-events",
                "device-plugin-node-status",
                "device-plugin-slices",
                "device-plugin-resource-claims",
                "unhealthy-gpus",
            ],
            &["gpushare-device-plugin"],
        ),
        (
            &["bindings", "extender-bindings", "extender-events", "extender-evictions"],
            &["scheduler-extender"],
        ),
        (&["gpu-environment", "node-name", "scheduler-name"], &[]),
    ] {
        for name in policies {
            let text = policy(&format!("plimsoll-{name}"));
            let mut named: Vec<&str> = Vec::new();
            for account in &accounts {
                let account = account["metadata"]["name"].as_str().expect("a name");
                if text.contains(&format!("'system:serviceaccount:plimsoll:{account}'")) {
                    named.push(account);
                }
            }
            named.sort_unstable();
            assert_eq!(named, wanted, "{name}");
        }
    }
}

#[test]
fn the_annotator_sets_the_taint_that_the_policy_lets_it_set() {
    let spec = policy("plimsoll-annotator-nodes");
    let key = annotator::args::TAINT_KEY;
    assert!(spec.contains(&format!("taint.key == '{key}'")), "{key}");
    let value = format!("taint.?value.orValue('') == '{}'", placement::taint::VALUE);
    assert!(spec.contains(&value), "{value}");
}

/// Readings are written under the names of metrics, which are keys without a domain.
#[test]
fn the_annotator_may_write_every_name_that_a_metric_can_have() {
    let spec = policy("plimsoll-annotator-nodes");
    let pattern = r"size(key) <= 63 && key.matches('^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$')";
    assert!(spec.contains(pattern), "{spec}");
    let names = ["cpu_usage_avg_5m", "a", "A-b.c_d9", placement::names::HOT_VALUE];
    for name in names {
        assert!(placement::units::MetricName::parse(name).is_some(), "{name}");
    }
    for name in ["plimsoll.dev/exporter", "", "_a", "a-", &"a".repeat(64)] {
        assert!(placement::units::MetricName::parse(name).is_none(), "{name}");
    }
}

/// The names of a type's fields in JSON.
fn fields(typed: &impl serde::Serialize) -> BTreeSet<String> {
    let value = serde_json::to_value(typed).expect("JSON");
    value.as_object().expect("an object").keys().cloned().collect()
}

/// The fields that an expression compares with those of the object before, as `PATH.?NAME == oldPATH.?NAME`.
fn compared(name: &str, path: &str) -> BTreeSet<String> {
    let spec = policy(name).replace("dyn(object.status)", "object.status");
    let start = format!("{path}.?");
    let parts = spec.split(start.as_str()).skip(1);
    parts
        .filter_map(|rest| {
            Some(rest.split(|c: char| !c.is_ascii_alphanumeric()).next()?.to_owned())
        })
        .collect()
}

/// A field that a later Kubernetes brings is missing here, and this does not compile: compare it in the policy, too.
#[test]
fn every_field_of_a_node_that_a_program_must_not_change_is_compared() {
    let status = NodeStatus {
        addresses: Some(Vec::new()),
        allocatable: Some([].into()),
        capacity: Some([].into()),
        conditions: Some(Vec::new()),
        config: Some(Default::default()),
        daemon_endpoints: Some(Default::default()),
        declared_features: Some(Vec::new()),
        features: Some(Default::default()),
        images: Some(Vec::new()),
        node_info: Some(Default::default()),
        phase: Some(String::new()),
        runtime_handlers: Some(Vec::new()),
        volumes_attached: Some(Vec::new()),
        volumes_in_use: Some(Vec::new()),
    };
    let mut others = fields(&status);
    assert!(["capacity", "allocatable", "conditions"].iter().all(|looped| others.remove(*looped)));
    assert_eq!(compared("plimsoll-device-plugin-node-status", " object.status"), others);
    let spec = NodeSpec {
        config_source: Some(Default::default()),
        external_id: Some(String::new()),
        pod_cidr: Some(String::new()),
        pod_cidrs: Some(Vec::new()),
        provider_id: Some(String::new()),
        taints: Some(Vec::new()),
        unschedulable: Some(false),
    };
    let mut others = fields(&spec);
    assert!(others.remove("taints"));
    assert_eq!(compared("plimsoll-annotator-nodes", " object.spec"), others);
}

/// Every CEL expression of a policy.
fn expressions(policy: &Value) -> Vec<&str> {
    let mut found = Vec::new();
    let lists = ["matchConditions", "variables", "validations", "auditAnnotations", "mutations"];
    for item in lists.iter().flat_map(|list| policy["spec"][list].as_array().into_iter().flatten())
    {
        let item = if item["jsonPatch"].is_object() { &item["jsonPatch"] } else { item };
        let parts = ["expression", "messageExpression", "valueExpression"];
        found.extend(parts.iter().filter_map(|part| item[part].as_str()));
    }
    found
}

/// The macros of CEL that run once for each entry of a list or map, Kubernetes' with two variables included.
const LOOPS: [&str; 9] = [
    "filter",
    "map",
    "all",
    "exists",
    "exists_one",
    "existsOne",
    "transformList",
    "transformMap",
    "transformMapEntry",
];

/// The receivers of the loops of an expression: what stands before `.filter(` and so on, a list in brackets or names
/// with dots between them.
fn looped(expression: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '?');
    for name in LOOPS {
        for (at, _) in expression.match_indices(&format!(".{name}(")) {
            let before = &expression[..at];
            let start = if before.ends_with(']') {
                before.rfind('[').expect("a list")
            } else {
                before.rfind(|c| !is_part(c)).map_or(0, |at| at + 1)
            };
            found.push(&before[start..]);
        }
    }
    found
}

/// Whether an expression bounds the length of what it loops over to 2,000, before it does.
fn bounds(expression: &str, receiver: &str) -> bool {
    // A pod's environment is bounded by the number of variables in all containers.
    let size = match receiver {
        "container.env" => "variables.count".to_owned(),
        other => format!("{other}.size()"),
    };
    ["<=", ">"].iter().any(|operator| {
        let after = expression.split_once(&format!("{size} {operator} "));
        let number = after.and_then(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next());
        number.and_then(|number| number.parse::<u32>().ok()).is_some_and(|limit| limit <= 2000)
    })
}

/// The API server's time for a loop grows with the square of its turns, and an author decides how long a pod's lists
/// are: 256 KiB of annotations are 87,000 keys.
#[test]
fn no_policy_loops_over_a_list_or_map_of_any_length() {
    let mut loops = 0;
    let mut all: Vec<Value> = policies().cloned().collect();
    for sample in
        ["namespace-nodes", "scheduler-name", "tolerate-hot-nodes", "claims/units-as-claims"]
    {
        let sample = Manifests::of_text(&read(&format!("samples/{sample}.yaml")));
        all.extend(sample.of_kind("MutatingAdmissionPolicy"));
    }
    all.extend(
        Manifests::of_text(&read("tests/rendered/node-bands.yaml"))
            .of_kind("MutatingAdmissionPolicy"),
    );
    for policy in &all {
        for expression in expressions(policy) {
            for receiver in looped(expression) {
                let is_literal = ["['", "[0, "].iter().any(|start| receiver.starts_with(start))
                    && receiver.ends_with(']');
                assert!(
                    is_literal || bounds(expression, receiver),
                    "{} loops over {receiver} without a bound: {expression}",
                    policy["metadata"]["name"]
                );
                loops += 1;
            }
        }
    }
    assert!(loops > 20, "{loops} loops");
}

/// What every writer of a pod is asked is found by key. Whole objects are compared only where one program writes.
#[test]
fn policies_about_everybodys_writes_compare_no_whole_objects() {
    let wholes = [
        "annotations",
        "labels",
        ".spec",
        ".status",
        "metadata",
        "variables.new",
        "variables.old",
        "object",
    ];
    for policy in policies() {
        let conditions = policy["spec"]["matchConditions"].to_string();
        if conditions.contains("request.userInfo.username == ") {
            continue;
        }
        for expression in expressions(policy) {
            for compared in wholes.iter().flat_map(|it| [format!("{it} =="), format!("{it} !=")]) {
                let is_null = expression.contains(&format!("{compared} null"));
                assert!(!expression.contains(&compared) || is_null, "{expression}");
            }
        }
    }
}

/// The shipped policy and right let the device plugin write the number of GPUs and the condition.
#[test]
fn the_policies_of_a_node_are_about_the_node_and_its_status() {
    assert_eq!(resources_of("plimsoll-device-plugin-nodes"), ["nodes"]);
    assert_eq!(resources_of("plimsoll-device-plugin-node-status"), ["nodes/status"]);
    let spec = policy("plimsoll-device-plugin-node-status");
    assert_eq!(spec.matches("condition.type != 'GPUUnitsWithheld'").count(), 2, "{spec}");
}

fn resources_of(name: &str) -> Vec<String> {
    strings(&spec(name)["matchConstraints"]["resourceRules"][0]["resources"])
}

/// Who is refused, beside what the API server tries in `testing/e2e`: an empty name is the provider's scheduler's, and
/// where Plimsoll configures the cluster's own scheduler the policy is not there.
#[test]
fn the_policy_of_the_scheduler_is_there_where_plimsoll_has_one_of_its_own() {
    let name = "plimsoll-scheduler-name";
    assert!(of_mode("external").iter().all(|object| object["metadata"]["name"] != name));
    assert_eq!(resources_of(name), ["pods"]);
    let text = policy(name);
    let conditions = ["names-another-scheduler", "by-others-than-kubelets", "asks-for-gpu-memory"];
    let places = conditions.map(|condition| text.find(&format!("\"{condition}\"")).expect("it"));
    assert!(places.is_sorted(), "the cheapest first");
    assert!(text.contains(r#""validations":[{"expression":"false","#), "{text}");
}
