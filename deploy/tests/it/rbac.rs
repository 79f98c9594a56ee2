//! The rights of each program at the API server: exactly these lists.

use serde_json::Value;

use crate::manifests::{PROGRAMS, container, of_kind, pod, strings};

/// The rules of a program's ClusterRole, each as `resources: verbs`; resources beyond the core group with their group.
fn rights(program: &str) -> Vec<String> {
    let name = format!("plimsoll-{program}");
    of_kind("ClusterRole")
        .iter()
        .filter(|role| role["metadata"]["name"] == name)
        .flat_map(rules)
        .collect()
}

/// The rules of a role, as [`rights`] writes them; a rule for certain objects with their names.
fn rules(role: &Value) -> Vec<String> {
    role["rules"].as_array().unwrap().iter().map(rule_line).collect()
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
fn the_extender_reads_nodes_and_pods_and_binds() {
    let expected = [
        "nodes: get list watch",
        "pods: get list watch",
        "poddisruptionbudgets.policy: list",
        "pods/binding: create",
        "events.events.k8s.io: create patch",
    ];
    assert_eq!(rights("scheduler-extender"), expected);
}

#[test]
fn the_annotator_reads_pods_and_writes_nodes_and_events() {
    let expected =
        ["nodes: list watch patch", "pods: list watch", "events.events.k8s.io: create patch"];
    assert_eq!(rights("annotator"), expected);
}

#[test]
fn in_the_namespace_annotator_and_extender_each_write_their_own_lease_alone() {
    let roles = of_kind("Role");
    let bindings = of_kind("RoleBinding");
    assert_eq!((roles.len(), bindings.len()), (2, 2));
    let also_read =
        ["endpointslices.discovery.k8s.io: list", "configmaps policy: get"].map(str::to_owned);
    for (program, more) in [("annotator", &[][..]), ("scheduler-extender", &also_read[..])] {
        let role = roles.iter().find(|role| role["metadata"]["name"] == program).unwrap();
        let binding =
            bindings.iter().find(|binding| binding["metadata"]["name"] == program).unwrap();
        let lease = "leases.coordination.k8s.io";
        let expected =
            [format!("{lease} plimsoll-{program}: get update"), format!("{lease}: create")];
        assert_eq!(rules(role), [&expected[..], more].concat());
        let args = strings(&container(program)["args"]);
        assert!(args.contains(&format!("--lease-name=plimsoll-{program}")), "{args:?}");
        assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
        assert_eq!(binding["subjects"][0]["name"], program);
    }
}

#[test]
fn the_device_plugin_follows_and_patches_its_node_marks_its_pods_and_writes_events() {
    let expected = [
        "nodes: list watch patch",
        "nodes/status: patch",
        "pods: get list watch patch",
        "resourceslices.resource.k8s.io: list watch",
        "events.events.k8s.io: create patch",
    ];
    assert_eq!(rights("gpushare-device-plugin"), expected);
}

#[test]
fn the_exporter_has_no_rights_and_no_token() {
    assert_eq!(rights("node-exporter-plus"), [""; 0]);
    assert_eq!(pod("node-exporter-plus")["automountServiceAccountToken"], false);
}

#[test]
fn a_role_goes_to_the_account_of_its_own_program_alone() {
    for binding in of_kind("ClusterRoleBinding") {
        let role = binding["roleRef"]["name"].as_str().unwrap();
        let program = role.strip_prefix("plimsoll-").unwrap();
        assert_eq!(binding["metadata"]["name"], role);
        assert_eq!(binding["subjects"].as_array().unwrap().len(), 1);
        assert_eq!(binding["subjects"][0]["name"], program);
        assert_eq!(binding["subjects"][0]["namespace"], "plimsoll");
    }
    assert_eq!(of_kind("ClusterRoleBinding").len(), of_kind("ClusterRole").len());
}

#[test]
fn each_pod_runs_as_the_account_of_its_own_program() {
    for program in PROGRAMS {
        assert_eq!(pod(program)["serviceAccountName"], program);
    }
    for account in of_kind("ServiceAccount") {
        assert_eq!(
            account["automountServiceAccountToken"], false,
            "{}",
            account["metadata"]["name"]
        );
    }
}
