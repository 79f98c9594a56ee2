//! Checks of rights and admission policies.

use serde_json::Value;

use super::facts::{AdmissionObject, Facts, PLUGIN, Right};
use super::finding::{Findings, few};
use super::programs::WORKLOADS;
use crate::cluster_access::EXTENDER;

/// The admission policies as they are shipped, a line each: the name, which its binding has too, the program that it is
/// installed with, its match conditions, the resources that it looks at, and what passes without it.
const TABLE: &str = "
plimsoll-bindings | scheduler-extender | by-others | pods/binding bindings | anyone who may bind pods can bring a claim of GPUs
plimsoll-extender-bindings | scheduler-extender | by-the-extender | pods/binding bindings | the extender's token can bind every pod
plimsoll-extender-events | scheduler-extender | by-the-extender | events | the extender's token can write events about anything
plimsoll-extender-evictions | scheduler-extender | by-the-extender | pods/eviction | the extender's token may evict pods of kube-system
plimsoll-claims | scheduler-extender | by-others changes-a-claim | pods pods/status pods/ephemeralcontainers pods/resize | anyone who may write pods can claim GPUs
plimsoll-gpu-environment | scheduler-extender | asks-for-gpu-memory-or-is-too-long-to-tell | pods pods/ephemeralcontainers | GPU pods may choose GPUs by variables
plimsoll-node-name | scheduler-extender | names-its-node by-others-than-kubelets | pods | GPU pods may name their node, and then fail on it
plimsoll-scheduler-name | kube-scheduler | names-another-scheduler by-others-than-kubelets asks-for-gpu-memory | pods | GPU pods may name the provider's scheduler, and then fail on their node
plimsoll-annotator-nodes | annotator | by-the-annotator | nodes nodes/status | the annotator's token can write all of every node
plimsoll-annotator-events | annotator | by-the-annotator | events | the annotator's token can write events about anything
plimsoll-device-plugin-nodes | gpushare-device-plugin | by-the-device-plugin | nodes | a device plugin's token can write other nodes
plimsoll-device-plugin-node-status | gpushare-device-plugin | by-the-device-plugin | nodes/status | a device plugin's token can write other nodes' status
plimsoll-device-plugin-pods | gpushare-device-plugin | by-the-device-plugin | pods pods/status pods/ephemeralcontainers pods/resize | a device plugin's token can write other nodes' pods
plimsoll-device-plugin-events | gpushare-device-plugin | by-the-device-plugin | events | a device plugin's token can write other nodes' events
plimsoll-unhealthy-gpus | unhealthy-gpus | by-the-device-plugin | configmaps | a device plugin's token can write all ConfigMaps of kube-system
";

/// The device plugin with Aliyun's ConfigMaps.
const UNHEALTHY_GPUS: &str = "unhealthy-gpus";

/// A line of the table.
pub(super) struct Guard {
    pub(super) name: &'static str,
    of: &'static str,
    pub(super) conditions: Vec<&'static str>,
    pub(super) resources: Vec<&'static str>,
    effect: &'static str,
}

/// The admission policies.
pub(super) fn guards() -> Vec<Guard> {
    let mut guards = Vec::new();
    for line in TABLE.lines() {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        if let [name, of, conditions, resources, effect] = fields[..] {
            let [conditions, resources] =
                [conditions, resources].map(|words| words.split(' ').collect());
            guards.push(Guard { name, of, conditions, resources, effect });
        }
    }
    guards
}

/// What to do about a policy that is not as it is shipped.
const APPLY: &str = "apply Plimsoll's manifests again: helm upgrade, or kubectl apply -k";

/// What to do about a policy that the value `fromGpushare` lifts.
const MOVE: &str = "the value fromGpushare does this for the time of a move: take it out once gpushare is gone \
                    (docs/migrate.md); without it, apply Plimsoll's manifests again";
/// The match condition by which that component lets gpushare's accounts write claims.
const FOR_GPUSHARE: &str = "by-others-than-gpushare";

/// Whether the admission policies of what is installed are in force.
pub(crate) fn admission(facts: &Facts, found: &mut Findings) {
    let parts_known = found.read(WORKLOADS, facts.workloads.as_ref()).is_some();
    let policies = found.read("ValidatingAdmissionPolicies", facts.policies.as_ref());
    let bindings = found.read("ValidatingAdmissionPolicyBindings", facts.bindings.as_ref());
    let mut judged = 0;
    for guard in &guards() {
        let policy = policies.map(|all| all.iter().find(|it| it.metadata.name == guard.name));
        let is_own = |it: &&AdmissionObject| it.spec["policyName"] == guard.name;
        let own: Option<Vec<&AdmissionObject>> =
            bindings.map(|all| all.iter().filter(is_own).collect());
        let is_wanted = if parts_known {
            is_installed(guard.of, facts)
        } else {
            // Those that are there are looked at all the same.
            policy.flatten().is_some() || own.as_ref().is_some_and(|own| !own.is_empty())
        };
        if !is_wanted {
            continue;
        }
        judged += 1;
        if let Some(policy) = policy {
            judge_policy(guard, policy, found);
        }
        if let Some(own) = own.filter(|_| policy.is_none_or(|policy| policy.is_some())) {
            judge_bindings(guard, &own, found);
        }
    }
    if judged == 0 {
        found.does_not_apply("nothing that they protect is installed");
    }
    found.ok_if_nothing(format!("{judged} policies deny, as shipped"));
}

/// Whether what a policy is installed with is there, where the Deployments and DaemonSets are known.
fn is_installed(of: &str, facts: &Facts) -> bool {
    if of != UNHEALTHY_GPUS {
        return facts.has(of);
    }
    let plugin = facts.workload(PLUGIN).ok().flatten();
    plugin.is_some_and(|plugin| plugin.setting("PLIMSOLL_UNHEALTHY_GPUS_NAMESPACE").is_some())
}

/// Finds a fault; a warning where the value `fromGpushare` lifts the policy for the time of a move.
fn find(guard: &Guard, what: String, found: &mut Findings) {
    let is_lifted = ["plimsoll-node-name", "plimsoll-scheduler-name"].contains(&guard.name);
    if is_lifted { found.warn(what, MOVE) } else { found.fail(what, APPLY) }
}

fn judge_policy(guard: &Guard, policy: Option<&AdmissionObject>, found: &mut Findings) {
    let Guard { name, effect, .. } = guard;
    let Some(policy) = policy else {
        return find(guard, format!("policy {name} is missing: {effect}"), found);
    };
    let spec = &policy.spec;
    // It is `Fail` where it is absent.
    if spec["failurePolicy"].as_str().is_some_and(|it| it != "Fail") {
        found.warn(
            format!("policy {name} has another failurePolicy than Fail, so that what it cannot judge passes: {effect}"),
            APPLY,
        );
    }
    let mut less: Vec<String> =
        narrowed_by(&spec["matchConstraints"]).into_iter().map(str::to_owned).collect();
    for condition in spec["matchConditions"].as_array().into_iter().flatten() {
        let named = condition["name"].as_str().unwrap_or_default();
        if named == FOR_GPUSHARE {
            found.warn(format!("policy {name} lets gpushare's accounts write claims"), MOVE);
        } else if !guard.conditions.contains(&named) {
            less.push(named.to_owned());
        }
    }
    let mut resources: Vec<&str> = Vec::new();
    for rule in spec["matchConstraints"]["resourceRules"].as_array().into_iter().flatten() {
        let named = rule["resources"].as_array().map_or(&[][..], Vec::as_slice);
        resources.extend(named.iter().filter_map(Value::as_str));
    }
    for resource in &guard.resources {
        if !resources.contains(&"*/*") && !resources.contains(resource) {
            less.push(format!("no {resource}"));
        }
    }
    if !less.is_empty() {
        let fields = less.join(", ");
        found.warn(
            format!("policy {name} looks at less than the shipped one ({fields}), and for the rest: {effect}"),
            APPLY,
        );
    }
}

fn judge_bindings(guard: &Guard, own: &[&AdmissionObject], found: &mut Findings) {
    let Guard { name, effect, .. } = guard;
    if own.is_empty() {
        return find(guard, format!("binding {name} is missing: {effect}"), found);
    }
    let (mut actions, mut narrowings) = (Vec::new(), Vec::new());
    for AdmissionObject { spec, .. } in own {
        let own_actions = spec["validationActions"].as_array().map_or(&[][..], Vec::as_slice);
        actions.extend(own_actions.iter().filter_map(Value::as_str));
        if own_actions.iter().any(|action| action == "Deny") {
            let mut narrowed = narrowed_by(&spec["matchResources"]);
            if !is_empty(&spec["matchResources"]["resourceRules"]) {
                narrowed.push("resourceRules");
            }
            narrowings.push(narrowed);
        }
    }
    // One that covers everything is enough.
    match narrowings.into_iter().min_by_key(Vec::len) {
        None => {
            let all = actions.join(" and ");
            find(guard, format!("binding {name} is {all}, not Deny: {effect}"), found);
        }
        Some(narrowed) if !narrowed.is_empty() => found.warn(
            format!(
                "binding {name} is narrowed by its {}, and for the rest: {effect}",
                narrowed.join(" and ")
            ),
            "take matchResources out of it, or apply Plimsoll's manifests again",
        ),
        Some(_) => {}
    }
}

/// The fields by which a match leaves something out of what its resource rules name. The shipped ones have none of
/// them.
fn narrowed_by(matched: &Value) -> Vec<&'static str> {
    let mut narrowed = vec!["namespaceSelector", "objectSelector", "excludeResourceRules"];
    narrowed.retain(|field| !is_empty(&matched[*field]));
    if matched["matchPolicy"] == "Exact" {
        narrowed.push("matchPolicy");
    }
    narrowed
}

/// Whether a value says nothing: as a selector it then selects everything.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
        _ => false,
    }
}

/// Whether the programs' accounts have their rights.
pub(crate) fn rights(facts: &Facts, found: &mut Findings) {
    let read = found.read("the rights of Plimsoll's accounts", facts.rights.as_ref());
    let Some(rights) = read else { return };
    if rights.is_empty() {
        return found.unknown(
            "not checked: no program of Plimsoll has a pod, so that no account is known",
            "see the checks `extender` and `annotator`",
        );
    }
    for account in [EXTENDER, "annotator", PLUGIN] {
        let is_missing = |right: &&Right| right.account == account && !right.allowed;
        let own: Vec<String> = rights.iter().filter(is_missing).map(described).collect();
        if !own.is_empty() {
            found.fail(
                format!("{account} may not {}", few(&own)),
                "apply Plimsoll's roles and their bindings again: helm upgrade, or kubectl apply -k",
            );
        }
    }
    found.ok_if_nothing(format!("{} rights of the programs' accounts", rights.len()));
}

fn described(right: &Right) -> String {
    let Right { verb, resource, namespace, name, .. } = right;
    let name = if name.is_empty() { String::new() } else { format!(" {name}") };
    let place = if namespace.is_empty() { String::new() } else { format!(" in {namespace}") };
    format!("{verb} {resource}{name}{place}")
}
