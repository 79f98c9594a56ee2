//! The rights of each program at the API server: exactly these lists.

use serde_json::Value;

use crate::manifests::{PROGRAMS, container, of_kind, pod, strings};

/// A program's rules for the cluster, and those for the namespace.
const RIGHTS: [(&str, &[&str], &[&str]); 4] = [
    (
        "annotator",
        &["nodes: list watch patch", "pods: list watch", "events.events.k8s.io: create patch"],
        &[
            "leases.coordination.k8s.io plimsoll-annotator: get update",
            "leases.coordination.k8s.io: create",
        ],
    ),
    (
        "gpushare-device-plugin",
        &[
            "nodes: list watch patch",
            "nodes/status: patch",
            "pods: get list watch patch",
            "resourceslices.resource.k8s.io: list watch",
            "events.events.k8s.io: create patch",
        ],
        &[],
    ),
    ("node-exporter-plus", &[], &[]),
    (
        "scheduler-extender",
        &[
            "nodes: get list watch",
            "pods: get list watch",
            "poddisruptionbudgets.policy: list",
            "pods/binding: create",
            "events.events.k8s.io: create patch",
        ],
        &[
            "leases.coordination.k8s.io plimsoll-scheduler-extender: get update",
            "leases.coordination.k8s.io: create",
            "endpointslices.discovery.k8s.io: list",
            "configmaps policy: get",
        ],
    ),
];

/// The rules of the roles of a kind and name, each as `resources: verbs`; resources beyond the core group with their
/// group, a rule for certain objects with their names.
fn rules(kind: &str, name: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for role in of_kind(kind).iter().filter(|role| role["metadata"]["name"] == name) {
        lines.extend(role["rules"].as_array().unwrap().iter().map(rule_line));
    }
    lines
}

fn rule_line(rule: &Value) -> String {
    let groups = strings(&rule["apiGroups"]);
    let [group] = &groups[..] else { panic!("one group a rule: {groups:?}") };
    let resources = strings(&rule["resources"]).join(" ");
    let verbs = strings(&rule["verbs"]).join(" ");
    let names: String =
        strings(&rule["resourceNames"]).iter().map(|name| format!(" {name}")).collect();
    format!("{resources}{}{group}{names}: {verbs}", if group.is_empty() { "" } else { "." })
}

#[test]
fn each_program_has_these_rights_alone_and_writes_its_own_lease() {
    for (program, cluster, namespace) in RIGHTS {
        assert_eq!(rules("ClusterRole", &format!("plimsoll-{program}")), cluster, "{program}");
        assert_eq!(rules("Role", program), namespace, "{program}");
        let args = strings(&container(program)["args"]);
        let leads = args.contains(&format!("--lease-name=plimsoll-{program}"));
        assert_eq!(leads, !namespace.is_empty(), "{program}");
    }
    assert_eq!((of_kind("ClusterRole").len(), of_kind("Role").len()), (3, 2));
}

#[test]
fn a_role_goes_to_the_account_of_its_own_program_alone() {
    for (bindings, roles) in [("ClusterRoleBinding", "ClusterRole"), ("RoleBinding", "Role")] {
        for binding in of_kind(bindings) {
            let role = binding["roleRef"]["name"].as_str().unwrap();
            assert_eq!(binding["metadata"]["name"], role);
            let [subject] = &binding["subjects"].as_array().unwrap()[..] else {
                panic!("{binding}")
            };
            assert_eq!(subject["name"], role.strip_prefix("plimsoll-").unwrap_or(role));
            assert_eq!(subject["namespace"], "plimsoll");
        }
        assert_eq!(of_kind(bindings).len(), of_kind(roles).len());
    }
}

#[test]
fn each_pod_runs_as_the_account_of_its_own_program() {
    for program in PROGRAMS {
        assert_eq!(pod(program)["serviceAccountName"], program);
    }
    for account in of_kind("ServiceAccount") {
        let name = &account["metadata"]["name"];
        assert_eq!(account["automountServiceAccountToken"], false, "{name}");
    }
    assert_eq!(pod("node-exporter-plus")["automountServiceAccountToken"], false);
}
