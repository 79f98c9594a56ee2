//! The rights of each program at the API server: exactly these lists.

use crate::manifests::{PROGRAMS, of_kind, pod, strings};

/// The rules of a program's ClusterRole, each as `resources: verbs`; resources beyond the core group with their group.
fn rights(program: &str) -> Vec<String> {
    let roles = of_kind("ClusterRole")
        .into_iter()
        .filter(|role| role["metadata"]["name"] == format!("plimsoll-{program}"));
    let rules: Vec<_> = roles.flat_map(|role| role["rules"].as_array().cloned().unwrap()).collect();
    let line = |rule: &serde_json::Value| {
        let groups = strings(&rule["apiGroups"]);
        let [group] = &groups[..] else { panic!("one group a rule: {groups:?}") };
        let (resources, verbs) =
            (strings(&rule["resources"]).join(" "), strings(&rule["verbs"]).join(" "));
        format!("{resources}{}{group}: {verbs}", if group.is_empty() { "" } else { "." })
    };
    rules.iter().map(line).collect()
}

#[test]
fn the_extender_reads_nodes_and_pods_and_binds() {
    let expected = [
        "nodes: list watch",
        "pods: get list watch",
        "pods/binding: create",
        "events.events.k8s.io: create patch",
    ];
    assert_eq!(rights("scheduler-extender"), expected);
}

#[test]
fn the_annotator_reads_pods_and_writes_nodes() {
    assert_eq!(rights("annotator"), ["nodes: list watch patch", "pods: list watch"]);
}

#[test]
fn the_device_plugin_patches_its_node_and_marks_its_pods() {
    let expected = ["nodes: patch", "nodes/status: patch", "pods: get list watch patch"];
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
    assert!(of_kind("RoleBinding").is_empty());
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
