//! Checks of rights and admission policies.

use super::facts::{Facts, Right};
use super::finding::{Finding, few};

/// The admission policies, and whether forged claims or foreign writes pass without them.
pub(super) const POLICIES: [(&str, &str); 10] = [
    ("plimsoll-bindings", "anyone who may bind pods can bring a claim of cards"),
    ("plimsoll-claims", "anyone who may write pods can claim cards"),
    ("plimsoll-gpu-environment", "GPU pods may choose cards by variables"),
    ("plimsoll-node-name", "GPU pods may name their node, and then fail on it"),
    ("plimsoll-annotator-nodes", "the annotator's token can write all of every node"),
    ("plimsoll-annotator-events", "the annotator's token can write events about anything"),
    ("plimsoll-device-plugin-nodes", "a device plugin's token can write other nodes"),
    ("plimsoll-device-plugin-node-status", "a device plugin's token can write other nodes' status"),
    ("plimsoll-device-plugin-pods", "a device plugin's token can write other nodes' pods"),
    ("plimsoll-device-plugin-events", "a device plugin's token can write other nodes' events"),
];

/// Whether the admission policies are in force.
pub(crate) fn admission(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "admission";
    let bindings = match &facts.bindings {
        Err(failure) => {
            return vec![Finding::unread(CHECK, "ValidatingAdmissionPolicyBindings", failure)];
        }
        Ok(bindings) => bindings,
    };
    let mut findings = Vec::new();
    let policies = match &facts.policies {
        Err(failure) => {
            findings.push(Finding::unread(CHECK, "ValidatingAdmissionPolicies", failure));
            None
        }
        Ok(policies) => Some(policies),
    };
    for (name, effect) in POLICIES {
        let apply = "apply Plimsoll's manifests again: helm upgrade, or kubectl apply -k";
        let is_there = policies.is_none_or(|policies| policies.iter().any(|policy| policy == name));
        let own: Vec<_> = bindings.iter().filter(|it| it.spec.policy_name == name).collect();
        let denies = |it: &&&super::facts::Binding| {
            it.spec.validation_actions.iter().any(|action| action == "Deny")
        };
        if !is_there || own.is_empty() {
            let which = if is_there { "binding" } else { "policy" };
            // The move from gpushare lifts this one.
            let finding = if name == "plimsoll-node-name" { Finding::warn } else { Finding::fail };
            findings.push(finding(CHECK, format!("{which} {name} is missing: {effect}"), apply));
        } else if !own.iter().any(|it| denies(&it)) {
            let actions: Vec<&str> =
                own.iter().flat_map(|it| &it.spec.validation_actions).map(String::as_str).collect();
            findings.push(Finding::fail(
                CHECK,
                format!("binding {name} is {}, not Deny: {effect}", actions.join(" and ")),
                apply,
            ));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, format!("{} policies deny", POLICIES.len())));
    }
    findings
}

/// Whether the programs' accounts have their rights.
pub(crate) fn rights(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "rights";
    let rights = match &facts.rights {
        Err(failure) => {
            return vec![Finding::unread(CHECK, "the rights of Plimsoll's accounts", failure)];
        }
        Ok(rights) => rights,
    };
    let missing: Vec<&Right> = rights.iter().filter(|right| !right.allowed).collect();
    if missing.is_empty() {
        return vec![Finding::ok(
            CHECK,
            format!("{} rights of the programs' accounts", rights.len()),
        )];
    }
    let mut findings = Vec::new();
    for account in ["scheduler-extender", "annotator", "gpushare-device-plugin"] {
        let own: Vec<String> = missing
            .iter()
            .filter(|right| right.account == account)
            .map(|right| described(right))
            .collect();
        if !own.is_empty() {
            findings.push(Finding::fail(
                CHECK,
                format!("{account} may not {}", few(&own)),
                "apply Plimsoll's roles and their bindings again: helm upgrade, or kubectl apply -k",
            ));
        }
    }
    findings
}

fn described(right: &Right) -> String {
    let Right { verb, resource, namespace, name, .. } = right;
    let name = if name.is_empty() { String::new() } else { format!(" {name}") };
    let place = if namespace.is_empty() { String::new() } else { format!(" in {namespace}") };
    format!("{verb} {resource}{name}{place}")
}
