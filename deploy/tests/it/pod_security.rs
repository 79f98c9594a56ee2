//! Which pods Kubernetes' Pod Security level `restricted` admits: those of all programs but the node agents.
//!
//! <https://kubernetes.io/docs/concepts/security/pod-security-standards/>

use serde_json::Value;

use crate::manifests::{Manifests, PROGRAMS, container, gpu_probe, pod, strings};
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

/// Of a container that has every right: what the level misses in it.
const ANY_RIGHT: [&str; 4] = [
    "runAsNonRoot is not true",
    "allowPrivilegeEscalation is not false",
    "privileged",
    "it keeps capabilities",
];

/// Else the second namespace were for nothing.
#[test]
fn node_agents_do_not_satisfy_it_for_these_reasons_alone() {
    let exporter = [
        "hostNetwork",
        "hostPath \"storage\"",
        "hostPath \"proc\"",
        "hostPath \"sys\"",
        "\"prepare-storage\": runAsNonRoot is not true",
        "\"prepare-storage\": the user is root",
        "\"prepare-storage\": CHOWN",
        "\"node-exporter-plus\": hostPort 19101",
        "\"node-exporter-plus\": hostPort 19105",
    ];
    assert_eq!(forbidden(&pod("node-exporter-plus")), exporter);
    let folders =
        ["device-plugins", "pod-resources", "cdi", "etc-cdi", "cgroups", "state", "all-cards"];
    let mut plugin = Vec::from(folders.map(|name| format!("hostPath \"{name}\"")));
    plugin.push("the pod's user is root".to_owned());
    plugin.push("\"gpushare-device-plugin\": runAsNonRoot is not true".to_owned());
    assert_eq!(forbidden(&pod("gpushare-device-plugin")), plugin);
    let mut mps =
        ["hostPID", "hostPath \"mps\"", "hostPath \"all-cards\"", "the pod's user is root"]
            .map(str::to_owned)
            .to_vec();
    for name in ["compute-mode", "shared-memory"] {
        mps.extend(ANY_RIGHT.map(|right| format!("\"{name}\": {right}")));
    }
    for name in ["mps-control-daemon", "drain"] {
        mps.push(format!("\"{name}\": runAsNonRoot is not true"));
    }
    assert_eq!(forbidden(&Manifests::of_mps().pod("mps-control-daemon")), mps);
}

#[test]
fn no_container_writes_to_its_image() {
    for container in PROGRAMS.into_iter().map(container).chain([gpu_probe()]) {
        let read_only = &container["securityContext"]["readOnlyRootFilesystem"];
        assert_eq!(*read_only, true, "{}", container["name"]);
    }
}
