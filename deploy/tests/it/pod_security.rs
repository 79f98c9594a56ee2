//! Which pods Kubernetes' Pod Security level `restricted` admits: those of all programs but the node agents.
//!
//! <https://kubernetes.io/docs/concepts/security/pod-security-standards/>

use serde_json::{Value, json};

use crate::manifests::{Manifests, pod, strings};
use crate::second_scheduler::pod_of_it;

/// The kinds of volumes that the level admits.
const VOLUMES: [&str; 8] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// What the level `restricted` forbids in a pod's spec.
pub(crate) fn forbidden(pod: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for right in ["hostNetwork", "hostPID", "hostIPC"] {
        if pod[right] == true {
            found.push(right.to_owned());
        }
    }
    for volume in pod["volumes"].as_array().into_iter().flatten() {
        let kinds = volume.as_object().expect("a volume").keys().filter(|kind| *kind != "name");
        let others = kinds.filter(|kind| !VOLUMES.contains(&kind.as_str()));
        found.extend(others.map(|kind| format!("{kind} {}", volume["name"])));
    }
    if pod["securityContext"]["runAsUser"] == 0 {
        found.push("the pod's user is root".to_owned());
    }
    for list in ["sysctls", "seLinuxOptions", "windowsOptions", "appArmorProfile"] {
        if !pod["securityContext"][list].is_null() {
            found.push(format!("{list}, which no test looks into"));
        }
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in pod[list].as_array().into_iter().flatten() {
            let of = forbidden_of_container(&pod["securityContext"], container);
            found.extend(of.into_iter().map(|what| format!("{}: {what}", container["name"])));
        }
    }
    found
}

/// What it forbids in a container, whose context wins over the pod's.
fn forbidden_of_container(of_pod: &Value, container: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let context = &container["securityContext"];
    let inherited =
        |field: &str| if context[field].is_null() { &of_pod[field] } else { &context[field] };
    if inherited("runAsNonRoot") != true {
        found.push("runAsNonRoot is not true".to_owned());
    }
    if context["runAsUser"] == 0 {
        found.push("the user is root".to_owned());
    }
    let profile = &inherited("seccompProfile")["type"];
    if profile != "RuntimeDefault" && profile != "Localhost" {
        found.push(format!("the seccomp profile is {profile}"));
    }
    if context["allowPrivilegeEscalation"] != false {
        found.push("allowPrivilegeEscalation is not false".to_owned());
    }
    if context["privileged"] == true {
        found.push("privileged".to_owned());
    }
    if !strings(&context["capabilities"]["drop"]).contains(&"ALL".to_owned()) {
        found.push("it keeps capabilities".to_owned());
    }
    let added = strings(&context["capabilities"]["add"]);
    found.extend(added.into_iter().filter(|name| name != "NET_BIND_SERVICE"));
    for field in ["procMount", "seLinuxOptions", "windowsOptions", "appArmorProfile"] {
        if !context[field].is_null() {
            found.push(format!("{field}, which no test looks into"));
        }
    }
    for port in container["ports"].as_array().into_iter().flatten() {
        if !port["hostPort"].is_null() {
            found.push(format!("hostPort {}", port["hostPort"]));
        }
    }
    found
}

#[test]
fn the_programs_beside_the_node_agents_satisfy_the_level_restricted() {
    for pod in [pod("annotator"), pod("scheduler-extender"), pod_of_it()] {
        assert_eq!(forbidden(&pod), [""; 0], "{}", pod["serviceAccountName"]);
    }
}

/// Else the second namespace were for nothing.
#[test]
fn node_agents_do_not_satisfy_it() {
    let daemon = Manifests::of_mps().pod("mps-control-daemon");
    for pod in [pod("node-exporter-plus"), pod("gpushare-device-plugin"), daemon] {
        let found = forbidden(&pod);
        assert!(found.iter().any(|what| what.starts_with("hostPath ")), "{found:?}");
    }
}

#[test]
fn each_thing_that_the_level_restricted_forbids_is_found() {
    let container = "/containers/0/securityContext";
    let changes = [
        ("/hostNetwork".to_owned(), json!(true), "hostNetwork"),
        ("/hostPID".to_owned(), json!(true), "hostPID"),
        ("/hostIPC".to_owned(), json!(true), "hostIPC"),
        ("/volumes/0".to_owned(), json!({"name": "v", "hostPath": {"path": "/"}}), "hostPath"),
        ("/securityContext/runAsUser".to_owned(), json!(0), "the pod's user"),
        ("/securityContext/runAsNonRoot".to_owned(), json!(null), "runAsNonRoot"),
        ("/securityContext/seccompProfile".to_owned(), json!(null), "seccomp"),
        ("/securityContext/sysctls".to_owned(), json!([]), "sysctls"),
        (format!("{container}/runAsNonRoot"), json!(false), "runAsNonRoot"),
        (format!("{container}/runAsUser"), json!(0), "the user"),
        (format!("{container}/seccompProfile"), json!({"type": "Unconfined"}), "seccomp"),
        (format!("{container}/allowPrivilegeEscalation"), json!(null), "allowPrivilegeEscalation"),
        (format!("{container}/privileged"), json!(true), "privileged"),
        (format!("{container}/capabilities/drop"), json!(["CHOWN"]), "it keeps capabilities"),
        (format!("{container}/capabilities/add"), json!(["CHOWN"]), "CHOWN"),
        (format!("{container}/procMount"), json!("Unmasked"), "procMount"),
        ("/containers/0/ports/0/hostPort".to_owned(), json!(1), "hostPort"),
        ("/initContainers".to_owned(), json!([{"name": "i"}]), "allowPrivilegeEscalation"),
    ];
    for (path, value, wanted) in changes {
        let mut pod = pod("annotator");
        let (parent, field) = path.rsplit_once('/').expect("a path");
        let parent = pod.pointer_mut(parent).unwrap_or_else(|| panic!("no {parent}"));
        match field.parse::<usize>() {
            Ok(index) => parent[index] = value,
            Err(_) => parent[field] = value,
        }
        let found = forbidden(&pod).join("; ");
        assert!(found.contains(wanted), "{path}: {found}");
    }
}
