//! Checks of rights and admission policies.

use serde_json::Value;

use super::facts::{AdmissionPolicy, Binding, BindingSpec, Facts, PLUGIN, Right, SECOND_SCHEDULER};
use super::finding::{Findings, few};
use super::programs::WORKLOADS;
use crate::cluster_access::EXTENDER;

/// An admission policy as it is shipped. Its binding has the same name, and narrows nothing.
pub(super) struct Guard {
    pub(super) name: &'static str,
    /// What passes without it: forged claims or foreign writes.
    effect: &'static str,
    /// What it is installed with.
    of: Part,
    /// The names of its match conditions.
    pub(super) conditions: &'static [&'static str],
    /// The resources that it looks at.
    pub(super) resources: &'static [&'static str],
}

/// A part of an installation.
#[derive(Clone, Copy)]
enum Part {
    Annotator,
    Extender,
    DevicePlugin,
    SecondScheduler,
    /// The device plugin with Aliyun's ConfigMaps.
    UnhealthyGpus,
}

const PODS: &[&str] = &["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"];

/// The admission policies.
pub(super) const GUARDS: [Guard; 15] = [
    Guard {
        name: "plimsoll-bindings",
        effect: "anyone who may bind pods can bring a claim of cards",
        of: Part::Extender,
        conditions: &["by-others"],
        resources: &["pods/binding", "bindings"],
    },
    Guard {
        name: "plimsoll-extender-bindings",
        effect: "the extender's token can bind every pod",
        of: Part::Extender,
        conditions: &["by-the-extender"],
        resources: &["pods/binding", "bindings"],
    },
    Guard {
        name: "plimsoll-extender-events",
        effect: "the extender's token can write events about anything",
        of: Part::Extender,
        conditions: &["by-the-extender"],
        resources: &["events"],
    },
    Guard {
        name: "plimsoll-extender-evictions",
        effect: "the extender's token may evict pods of kube-system",
        of: Part::Extender,
        conditions: &["by-the-extender"],
        resources: &["pods/eviction"],
    },
    Guard {
        name: "plimsoll-claims",
        effect: "anyone who may write pods can claim cards",
        of: Part::Extender,
        conditions: &["by-others", "changes-a-claim"],
        resources: PODS,
    },
    Guard {
        name: "plimsoll-gpu-environment",
        effect: "GPU pods may choose cards by variables",
        of: Part::Extender,
        conditions: &["asks-for-gpu-memory-or-is-too-long-to-tell"],
        resources: &["pods", "pods/ephemeralcontainers"],
    },
    Guard {
        name: "plimsoll-node-name",
        effect: "GPU pods may name their node, and then fail on it",
        of: Part::Extender,
        conditions: &["names-its-node", "by-others-than-kubelets"],
        resources: &["pods"],
    },
    Guard {
        name: "plimsoll-scheduler-name",
        effect: "GPU pods may name the provider's scheduler, and then fail on their node",
        of: Part::SecondScheduler,
        conditions: &["names-another-scheduler", "by-others-than-kubelets", "asks-for-gpu-memory"],
        resources: &["pods"],
    },
    Guard {
        name: "plimsoll-annotator-nodes",
        effect: "the annotator's token can write all of every node",
        of: Part::Annotator,
        conditions: &["by-the-annotator"],
        resources: &["nodes", "nodes/status"],
    },
    Guard {
        name: "plimsoll-annotator-events",
        effect: "the annotator's token can write events about anything",
        of: Part::Annotator,
        conditions: &["by-the-annotator"],
        resources: &["events"],
    },
    Guard {
        name: "plimsoll-device-plugin-nodes",
        effect: "a device plugin's token can write other nodes",
        of: Part::DevicePlugin,
        conditions: &["by-the-device-plugin"],
        resources: &["nodes"],
    },
    Guard {
        name: "plimsoll-device-plugin-node-status",
        effect: "a device plugin's token can write other nodes' status",
        of: Part::DevicePlugin,
        conditions: &["by-the-device-plugin"],
        resources: &["nodes/status"],
    },
    Guard {
        name: "plimsoll-device-plugin-pods",
        effect: "a device plugin's token can write other nodes' pods",
        of: Part::DevicePlugin,
        conditions: &["by-the-device-plugin"],
        resources: PODS,
    },
    Guard {
        name: "plimsoll-device-plugin-events",
        effect: "a device plugin's token can write other nodes' events",
        of: Part::DevicePlugin,
        conditions: &["by-the-device-plugin"],
        resources: &["events"],
    },
    Guard {
        name: "plimsoll-unhealthy-gpus",
        effect: "a device plugin's token can write all ConfigMaps of kube-system",
        of: Part::UnhealthyGpus,
        conditions: &["by-the-device-plugin"],
        resources: &["configmaps"],
    },
];

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
    let mut guards = 0;
    for guard in &GUARDS {
        let policy = policies.map(|all| all.iter().find(|it| it.metadata.name == guard.name));
        let own: Option<Vec<&Binding>> =
            bindings.map(|all| all.iter().filter(|it| it.spec.policy_name == guard.name).collect());
        let is_wanted = if parts_known {
            is_installed(guard.of, facts)
        } else {
            // Those that are there are looked at all the same.
            policy.flatten().is_some() || own.as_ref().is_some_and(|own| !own.is_empty())
        };
        if !is_wanted {
            continue;
        }
        guards += 1;
        if let Some(policy) = policy {
            judge_policy(guard, policy, found);
        }
        if let Some(own) = own.filter(|_| policy.is_none_or(|policy| policy.is_some())) {
            judge_bindings(guard, &own, found);
        }
    }
    if guards == 0 {
        found.does_not_apply("nothing that they protect is installed");
    }
    found.ok_if_nothing(format!("{guards} policies deny, as shipped"));
}

/// Whether a part is installed, where the Deployments and DaemonSets are known.
fn is_installed(part: Part, facts: &Facts) -> bool {
    let program = match part {
        Part::Annotator => "annotator",
        Part::Extender => EXTENDER,
        Part::DevicePlugin | Part::UnhealthyGpus => PLUGIN,
        Part::SecondScheduler => SECOND_SCHEDULER,
    };
    let Ok(Some(workload)) = facts.workload(program) else { return false };
    match part {
        Part::UnhealthyGpus => workload.setting("PLIMSOLL_UNHEALTHY_GPUS_NAMESPACE").is_some(),
        _ => true,
    }
}

/// Finds a fault; a warning where the value `fromGpushare` lifts the policy for the time of a move.
fn find(guard: &Guard, what: String, found: &mut Findings) {
    let is_lifted = ["plimsoll-node-name", "plimsoll-scheduler-name"].contains(&guard.name);
    if is_lifted { found.warn(what, MOVE) } else { found.fail(what, APPLY) }
}

fn judge_policy(guard: &Guard, policy: Option<&AdmissionPolicy>, found: &mut Findings) {
    let Guard { name, effect, .. } = guard;
    let Some(policy) = policy else {
        return find(guard, format!("policy {name} is missing: {effect}"), found);
    };
    let spec = &policy.spec;
    if spec.failure_policy.as_deref().is_some_and(|it| it != "Fail") {
        found.warn(
            format!("policy {name} has another failurePolicy than Fail, so that what it cannot judge passes: {effect}"),
            APPLY,
        );
    }
    let mut less: Vec<String> =
        narrowed_by(&spec.match_constraints).into_iter().map(str::to_owned).collect();
    for condition in &spec.match_conditions {
        if condition.name == FOR_GPUSHARE {
            found.warn(format!("policy {name} lets gpushare's accounts write claims"), MOVE);
        } else if !guard.conditions.contains(&condition.name.as_str()) {
            less.push(condition.name.clone());
        }
    }
    let mut resources: Vec<&str> = Vec::new();
    for rule in spec.match_constraints["resourceRules"].as_array().into_iter().flatten() {
        let named = rule["resources"].as_array().map_or(&[][..], Vec::as_slice);
        resources.extend(named.iter().filter_map(Value::as_str));
    }
    for resource in guard.resources {
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

fn judge_bindings(guard: &Guard, own: &[&Binding], found: &mut Findings) {
    let Guard { name, effect, .. } = guard;
    if own.is_empty() {
        return find(guard, format!("binding {name} is missing: {effect}"), found);
    }
    let (mut actions, mut narrowings) = (Vec::new(), Vec::new());
    for BindingSpec { validation_actions, match_resources, .. } in own.iter().map(|it| &it.spec) {
        actions.extend(validation_actions.iter().map(String::as_str));
        if validation_actions.iter().any(|action| action == "Deny") {
            let mut narrowed = narrowed_by(match_resources);
            if !is_empty(&match_resources["resourceRules"]) {
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
