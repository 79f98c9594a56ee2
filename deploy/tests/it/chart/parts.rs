//! What values add: variables that programs read, files that are mounted, and but for some no rights.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use super::kept::documented;
use super::render::{chart_objects, manifests};
use crate::flags::{knows_variable, parsed};
use crate::manifests::{Manifests, PROGRAMS, items_named, ports, read, strings};
use crate::workloads::assert_known;

/// The exporter of GPU nodes with `exporter.gpuSignals`.
const GPU_EXPORTER: &str = "node-exporter-plus-gpu";
/// The mount that asks for every GPU.
const ALL_GPUS: &str = "all-cards";

fn external() -> Manifests {
    manifests(&[])
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

fn texts(parts: &Value, key: &str) -> BTreeSet<String> {
    parts.as_array().into_iter().flatten().map(|part| text(&part[key])).collect()
}

/// The workloads of programs, each with its program.
fn of_programs(manifests: &Manifests) -> Vec<(&'static str, Value)> {
    let mut found = Vec::new();
    for program in PROGRAMS.into_iter().filter(|program| manifests.runs(program)) {
        found.push((program, manifests.workload(program)));
    }
    if manifests.runs(GPU_EXPORTER) {
        found.push(("node-exporter-plus", manifests.workload(GPU_EXPORTER)));
    }
    found
}

#[test]
#[ignore = "make chart"]
fn with_every_value_kubernetes_knows_every_field_and_programs_their_variables_and_files() {
    for value in documented() {
        let manifests = manifests(&[&value]);
        assert_known(&manifests);
        for (program, workload) in of_programs(&manifests) {
            let pod = &workload["spec"]["template"]["spec"];
            for container in pod["containers"].as_array().expect("containers") {
                let is_probe = container["name"] == "gpu-probe";
                let mounts = texts(&container["volumeMounts"], "mountPath");
                for variable in container["env"].as_array().into_iter().flatten() {
                    let name = text(&variable["name"]);
                    let is_known = !name.starts_with("PLIMSOLL_")
                        || is_probe && name == "PLIMSOLL_CUDA_LIBRARY"
                        || knows_variable(program, &name);
                    assert!(is_known, "{value}, {program}: {name}");
                    let Some(path) = variable["value"].as_str() else { continue };
                    let is_mounted = mounts.iter().any(|mount| Path::new(path).starts_with(mount));
                    assert!(!path.starts_with('/') || is_mounted, "{value}, {program}: {path}");
                }
                let volumes = texts(&pod["volumes"], "name");
                assert!(texts(&container["volumeMounts"], "name").is_subset(&volumes), "{value}");
            }
        }
    }
}

/// What a pod may do on its node.
fn rights(workload: &Value) -> Value {
    let pod = &workload["spec"]["template"]["spec"];
    let of_containers = pod["containers"].as_array().expect("containers").iter();
    let of_containers: Vec<&Value> = of_containers.map(|it| &it["securityContext"]).collect();
    json!({
        "hostNetwork": pod["hostNetwork"], "hostPID": pod["hostPID"], "hostIPC": pod["hostIPC"],
        "account": pod["serviceAccountName"], "pod": pod["securityContext"], "containers": of_containers,
    })
}

#[test]
#[ignore = "make chart"]
fn no_value_but_two_gives_more_rights_to_a_pod() {
    let external = external();
    for value in documented() {
        for (program, workload) in of_programs(&manifests(&[&value])) {
            let mut wanted = rights(&external.workload(program));
            if program == "gpushare-device-plugin" && value == "devicePlugin.processes=true" {
                wanted["hostPID"] = true.into();
            }
            if program == "gpushare-device-plugin" && value == "openshift=true" {
                wanted["pod"]["seLinuxOptions"] = json!({"type": "container_device_plugin_t"});
            }
            assert_eq!(rights(&workload), wanted, "{value}, {program}");
        }
    }
}

/// The folders of the host that a value adds to the containers of programs, and how.
#[test]
#[ignore = "make chart"]
fn values_mount_these_host_folders_and_no_other() {
    let before = external();
    let mut found = Vec::new();
    for value in documented() {
        for (program, workload) in of_programs(&manifests(&[&value])) {
            let pod = &workload["spec"]["template"]["spec"];
            let former = before.pod(program);
            for container in pod["containers"].as_array().expect("containers") {
                let name = text(&container["name"]);
                let former_mounts =
                    items_named(&former["containers"], &name)[0]["volumeMounts"].clone();
                for mount in container["volumeMounts"].as_array().expect("mounts") {
                    let volume = items_named(&pod["volumes"], &text(&mount["name"])).remove(0);
                    let is_new = !former_mounts.as_array().expect("mounts").contains(mount);
                    let Some(path) = volume["hostPath"]["path"].as_str().filter(|_| is_new) else {
                        continue;
                    };
                    if mount["name"] == ALL_GPUS {
                        continue;
                    }
                    let mode = if mount["readOnly"] == true { "read" } else { "write" };
                    let spread = mount["mountPropagation"].as_str().unwrap_or("-");
                    let value = value.split('=').next().expect("a name");
                    found.push(format!(
                        "{value} {name} {mode} {path} {} {spread}",
                        text(&mount["mountPath"])
                    ));
                }
            }
        }
    }
    found.sort();
    found.dedup();
    assert_eq!(
        found,
        [
            "claims gpushare-device-plugin write /var/lib/kubelet/plugins_registry /var/lib/kubelet/plugins_registry -",
            "exporter.hostFileSystems node-exporter-plus read / /host HostToContainer",
            "mps.enabled gpu-probe read /run/plimsoll-mps/pipe /run/nvidia-mps HostToContainer",
            "mps.enabled gpu-probe write /run/plimsoll-mps/shm /dev/shm HostToContainer",
            "mps.enabled gpushare-device-plugin read /run/plimsoll-mps /run/plimsoll-mps HostToContainer",
            "nvmlHostLibrary gpu-probe read /var/lib/plimsoll-node/nvidia /opt/nvidia -",
            "nvmlHostLibrary gpushare-device-plugin read /var/lib/plimsoll-node/nvidia /opt/nvidia -",
            "nvmlHostLibrary node-exporter-plus read /var/lib/plimsoll-node/nvidia /opt/nvidia -",
        ]
    );
}

/// The objects that values add, and those that they change, each as `KIND NAME`.
pub(super) fn changes(values: &[&str]) -> [Vec<String>; 2] {
    let before = chart_objects("HELM4", "plimsoll", &[]);
    let (mut added, mut changed) = (Vec::new(), Vec::new());
    for (key, object) in chart_objects("HELM4", "plimsoll", values) {
        let name = format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]));
        match before.get(&key) {
            None => added.push(name),
            Some(former) if *former != object => changed.push(name),
            Some(_) => {}
        }
    }
    [added, changed]
}

/// Fails unless a value adds a ClusterRole with this rule, bound to the program, and changes the program's workload by
/// this variable alone.
fn adds_a_right_alone(value: &str, program: &str, role: &str, rule: &Value, variable: &str) {
    let [added, changed] = changes(&[value]);
    let role_name = format!("plimsoll-{program}-{role}");
    assert_eq!(
        added,
        [format!("ClusterRole {role_name}"), format!("ClusterRoleBinding {role_name}")]
    );
    assert_eq!(changed, [format!("Deployment {program}")]);
    let manifests = manifests(&[value]);
    assert_eq!(manifests.object("ClusterRole", &role_name)["rules"], json!([rule]));
    let binding = manifests.object("ClusterRoleBinding", &role_name);
    assert_eq!(binding["roleRef"]["name"], role_name);
    let subject = json!({"kind": "ServiceAccount", "name": program, "namespace": "plimsoll"});
    assert_eq!(binding["subjects"], json!([subject]));
    let mut env = manifests.container(program)["env"].clone();
    let env = env.as_array_mut().expect("variables");
    let former = external().container(program)["env"].clone();
    env.retain(|it| !former.as_array().is_some_and(|former| former.contains(it)));
    assert_eq!(*env, [json!({"name": variable, "value": "true"})]);
}

#[test]
#[ignore = "make chart"]
fn metrics_server_adds_the_right_to_list_what_nodes_use_alone_and_no_exporter_runs() {
    let rule = json!({"apiGroups": ["metrics.k8s.io"], "resources": ["nodes"], "verbs": ["list"]});
    let value = "readings=metricsServer";
    adds_a_right_alone(value, "annotator", "metrics", &rule, "PLIMSOLL_METRICS_SERVER");
    assert!(!manifests(&[value]).runs("node-exporter-plus"));
}

#[test]
#[ignore = "make chart"]
fn each_value_of_evictions_adds_the_right_to_evict_alone() {
    let rule = json!({"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]});
    for (value, role, variable) in [
        ("evictForCards", "evictions", "PLIMSOLL_EVICT_FOR_CARDS"),
        ("moveForCards", "moves", "PLIMSOLL_MOVE_FOR_CARDS"),
        ("evictOutsideMps", "outside-mps", "PLIMSOLL_EVICT_OUTSIDE_MPS"),
    ] {
        let value = format!("extender.{value}=true");
        adds_a_right_alone(&value, "scheduler-extender", role, &rule, variable);
    }
}

#[test]
#[ignore = "make chart"]
fn unhealthy_gpus_lets_the_device_plugin_write_config_maps_of_one_namespace_and_a_policy_of_one_name()
 {
    let value = "devicePlugin.unhealthyConfigMaps=true";
    let [added, changed] = changes(&[value]);
    let name = "plimsoll-unhealthy-gpus";
    let kinds =
        ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "Role", "RoleBinding"];
    assert_eq!(added, kinds.map(|kind| format!("{kind} {name}")));
    assert_eq!(changed, ["DaemonSet gpushare-device-plugin"]);
    let manifests = manifests(&[value]);
    let role = manifests.object("Role", name);
    let verbs = json!(["list", "watch", "create", "patch"]);
    let rule = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs});
    assert_eq!(role["rules"], json!([rule]));
    assert_eq!(role["metadata"]["namespace"], "kube-system");
    let binding = manifests.object("RoleBinding", name);
    assert_eq!(binding["metadata"]["namespace"], "kube-system");
    assert_eq!(binding["roleRef"]["name"], name);
    let subject = json!({"kind": "ServiceAccount", "name": "gpushare-device-plugin", "namespace": "plimsoll"});
    assert_eq!(binding["subjects"], json!([subject]));
}

#[test]
#[ignore = "make chart"]
fn without_tls_the_extender_has_nothing_of_it() {
    let [added, changed] = changes(&["extender.tls=false"]);
    assert_eq!(added, [""; 0]);
    assert_eq!(changed, ["Deployment scheduler-extender"]);
    let plain = manifests(&["extender.tls=false"]).workload("scheduler-extender");
    let mut wanted = external().workload("scheduler-extender");
    let pod = &mut wanted["spec"]["template"]["spec"];
    pod["volumes"].as_array_mut().expect("volumes").retain(|it| it["name"] != "certificates");
    let container = &mut pod["containers"][0];
    let mounts = container["volumeMounts"].as_array_mut().expect("mounts");
    mounts.retain(|mount| mount["name"] != "certificates");
    let env = container["env"].as_array_mut().expect("variables");
    let of_tls = ["_TLS_", "_CA_", "_CLIENT_"];
    env.retain(|it| !of_tls.iter().any(|part| text(&it["name"]).contains(part)));
    assert_eq!(plain, wanted);
}

/// The exporter takes what is mounted below `--host-root` for the host's. A folder of another name there would be made
/// in the host's root, where that is mounted too.
#[test]
#[ignore = "make chart"]
fn what_exporters_have_below_their_host_root_is_the_hosts_at_the_same_path() {
    let pod = manifests(&["exporter.hostFileSystems=true"]).pod("node-exporter-plus");
    let mut found = Vec::new();
    for mount in pod["containers"][0]["volumeMounts"].as_array().expect("mounts") {
        let volume = items_named(&pod["volumes"], &text(&mount["name"])).remove(0);
        if let Some(below) = text(&mount["mountPath"]).strip_prefix("/host") {
            found.push((below.to_owned(), text(&volume["hostPath"]["path"])));
        }
    }
    found.sort();
    let expected = [("", "/"), ("/proc", "/proc"), ("/sys", "/sys")];
    assert_eq!(found, expected.map(|(below, path)| (below.to_owned(), path.to_owned())));
}

/// The files that a pod mounts from Secrets in a volume: the path, then the name of the Secret and the key in it.
fn secrets(pod: &Value, volume: &str) -> Vec<(String, String)> {
    let volume = items_named(&pod["volumes"], volume).remove(0);
    let mut found = Vec::new();
    for source in volume["projected"]["sources"].as_array().expect("sources") {
        let secret = &source["secret"];
        for item in secret["items"].as_array().expect("items") {
            found.push((text(&item["path"]), format!("{} {}", text(&secret["name"]), item["key"])));
        }
    }
    found
}

#[test]
#[ignore = "make chart"]
fn exporter_tls_names_every_mounted_secret_file_and_gives_the_key_to_exporters_alone() {
    let manifests = manifests(&["exporter.tls=true", "exporter.gpuSignals=true"]);
    for name in ["annotator", "node-exporter-plus", GPU_EXPORTER] {
        let workload = manifests.workload(name);
        let pod = &workload["spec"]["template"]["spec"];
        let variables = pod["containers"][0]["env"].as_array().expect("variables").iter();
        let named: BTreeSet<&str> = variables
            .filter_map(|variable| variable["value"].as_str()?.strip_prefix("/etc/exporter/"))
            .collect();
        let files = secrets(pod, "exporter");
        assert_eq!(named, files.iter().map(|(file, _)| file.as_str()).collect(), "{name}");
        let has_key = files.iter().any(|(file, _)| file == "tls.key");
        assert_eq!(has_key, workload["kind"] == "DaemonSet", "{name}");
        let token = ("token".to_owned(), "exporter-token \"token\"".to_owned());
        assert!(files.contains(&token), "{name}");
        // What cert-manager writes.
        let others = files.iter().filter(|file| **file != token);
        assert!(others.clone().all(|(_, from)| from.starts_with("exporter-tls ")), "{files:?}");
    }
}

#[test]
#[ignore = "make chart"]
fn the_exporter_of_gpu_nodes_is_the_shipped_one_with_the_gpus_and_more_memory() {
    let shipped = external();
    let renamed = shipped.workload("node-exporter-plus").to_string().replace(
        "\"app.kubernetes.io/name\":\"node-exporter-plus\"",
        "\"app.kubernetes.io/name\":\"node-exporter-plus-gpu\"",
    );
    let mut wanted: Value = serde_json::from_str(&renamed).expect("JSON");
    wanted["metadata"]["name"] = GPU_EXPORTER.into();
    let pod_of_it = &mut wanted["spec"]["template"]["spec"];
    pod_of_it["nodeSelector"]["gpushare"] = "true".into();
    let plugin = shipped.pod("gpushare-device-plugin");
    // Not while the driver is replaced.
    pod_of_it["affinity"] = plugin["affinity"].clone();
    let in_plugin = &plugin["containers"][0];
    let driver = items_named(&in_plugin["env"], "NVIDIA_DRIVER_CAPABILITIES");
    let env = pod_of_it["containers"][0]["env"].as_array_mut().expect("variables");
    env.extend(driver);
    let mounts = pod_of_it["containers"][0]["volumeMounts"].as_array_mut().expect("mounts");
    mounts.extend(items_named(&in_plugin["volumeMounts"], ALL_GPUS));
    let volumes = pod_of_it["volumes"].as_array_mut().expect("volumes");
    volumes.extend(items_named(&plugin["volumes"], ALL_GPUS));
    pod_of_it["containers"][0]["resources"]["limits"]["memory"] = "64Mi".into();
    assert_eq!(manifests(&["exporter.gpuSignals=true"]).workload(GPU_EXPORTER), wanted);
}

/// NVIDIA's container runtime reads a mount of /dev/null below this folder as a request for a GPU
/// (`accept-nvidia-visible-devices-as-volume-mounts`), the last part being its UUID or `all`.
#[test]
#[ignore = "make chart"]
fn gpus_are_asked_for_by_a_mount_and_by_no_variable() {
    let manifests = manifests(&["exporter.gpuSignals=true"]);
    let mut count = 0;
    for name in ["gpushare-device-plugin", GPU_EXPORTER] {
        let pod = manifests.pod(name);
        for container in pod["containers"].as_array().expect("containers") {
            let name = &container["name"];
            let variables = container["env"].as_array().expect("variables");
            assert!(variables.iter().all(|v| v["name"] != "NVIDIA_VISIBLE_DEVICES"), "{name}");
            let wanted = json!({
                "name": ALL_GPUS, "mountPath": "/var/run/nvidia-container-devices/all", "readOnly": true
            });
            assert_eq!(items_named(&container["volumeMounts"], ALL_GPUS), [wanted], "{name}");
            count += 1;
        }
        let source =
            json!({"name": ALL_GPUS, "hostPath": {"path": "/dev/null", "type": "CharDevice"}});
        assert!(pod["volumes"].as_array().expect("volumes").contains(&source), "{name}");
    }
    assert_eq!(count, 3);
}

#[test]
#[ignore = "make chart"]
fn mps_exclusive_has_mps_limit_all_pods_and_mounts_what_there_is() {
    let values =
        ["mps.enabled=true", "mps.exclusive=true", "devicePlugin.env.PLIMSOLL_ISOLATION=mps"];
    let manifests = manifests(&values);
    let env = manifests.container("gpushare-device-plugin")["env"].clone();
    let isolation = json!({"name": "PLIMSOLL_ISOLATION", "value": "mps"});
    assert!(env.as_array().expect("variables").contains(&isolation));
    let daemon = manifests.pod("mps-control-daemon");
    let volumes = texts(&daemon["volumes"], "name");
    for list in ["initContainers", "containers"] {
        for container in daemon[list].as_array().expect("containers") {
            assert!(texts(&container["volumeMounts"], "name").is_subset(&volumes), "{container}");
        }
    }
    // Another minimum closes GPUs in that mode.
    let without = super::render::manifests(&values[..2]).pod("mps-control-daemon");
    assert_eq!(items_named(&without["initContainers"], "compute-mode"), [] as [Value; 0]);
}

#[test]
#[ignore = "make chart"]
fn network_deny_denies_all_and_opens_what_each_program_calls() {
    let manifests = manifests(&["networkPolicy.deny=true", "scheduler.mode=second"]);
    let denied = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]});
    assert_eq!(manifests.object("NetworkPolicy", "deny")["spec"], denied);
    let port = |program: &str, wanted: &str| {
        ports(program).into_iter().find(|(name, _)| name == wanted).expect("a port").1
    };
    let annotated: u64 = parsed("annotator").raw("exporter-port").expect("it").parse().expect("it");
    let verbs = port("scheduler-extender", "verbs");
    let [inspect, learned] =
        [port("scheduler-extender", "inspect"), port("annotator", "workloads")];
    for (policy, program, wanted) in [
        ("scheduler-extender-egress", "scheduler-extender", vec![verbs, inspect, learned]),
        ("annotator-egress", "annotator", vec![annotated, learned]),
        ("gpushare-device-plugin-egress", "gpushare-device-plugin", vec![]),
        ("kube-scheduler", "kube-scheduler", vec![verbs]),
    ] {
        let policy = manifests.object("NetworkPolicy", policy);
        let spec = &policy["spec"];
        assert_eq!(spec["podSelector"], manifests.workload(program)["spec"]["selector"]);
        assert!(strings(&spec["policyTypes"]).contains(&"Egress".to_owned()), "{program}");
        let rules = spec["egress"].as_array().expect("rules");
        let called = rules.iter().flat_map(|rule| rule["ports"].as_array().expect("ports"));
        let mut called: Vec<u64> = called.filter_map(|port| port["port"].as_u64()).collect();
        let always = [443, 6443, 53, 53];
        assert_eq!(called[..4], always, "{program}: the API server and DNS");
        called.drain(..4);
        assert_eq!(called, wanted, "{program}");
        if program == "kube-scheduler" {
            let extender = manifests.workload("scheduler-extender")["spec"]["selector"].clone();
            assert_eq!(rules[2]["to"], json!([{"podSelector": extender}]));
        }
    }
    // Metrics are for one namespace.
    let of_monitoring = json!([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]);
    for program in ["annotator", "scheduler-extender", "gpushare-device-plugin", "kube-scheduler"] {
        let policy = manifests.object("NetworkPolicy", program);
        let first = &policy["spec"]["ingress"][0];
        let port = if program == "kube-scheduler" { "secure" } else { "admin" };
        assert_eq!(first["ports"], json!([{"port": port, "protocol": "TCP"}]), "{program}");
        assert_eq!(first["from"], of_monitoring, "{program}");
    }
}

/// `docs/certificates.md` has what the addresses are for.
#[test]
#[ignore = "make chart"]
fn the_verbs_are_open_to_the_control_planes_addresses_and_the_other_replica_alone() {
    let value = "networkPolicy.controlPlane={192.0.2.10/32}";
    let manifests = manifests(&[value]);
    let policy = manifests.object("NetworkPolicy", "scheduler-extender");
    let replica = manifests.workload("scheduler-extender")["spec"]["selector"].clone();
    let verbs = &policy["spec"]["ingress"][1];
    assert_eq!(verbs["ports"][0]["port"], "verbs");
    let wanted = json!([{"ipBlock": {"cidr": "192.0.2.10/32"}}, {"podSelector": replica}]);
    assert_eq!(verbs["from"], wanted);
    assert_eq!(changes(&[value]), [vec![], vec!["NetworkPolicy scheduler-extender".to_owned()]]);
}

/// cert-manager's API is not among the types here. The script makes the same certificates, but for 365 days.
#[test]
#[ignore = "make chart"]
fn cert_manager_makes_the_certificates_that_the_programs_check() {
    let own = parsed("scheduler-extender").raw("replica-server-name").expect("a name");
    let clients = parsed("scheduler-extender").raw("client-names").expect("names");
    let server = "node-exporter-plus";
    let scheduler = clients.split(',').next().expect("a name");
    let both = json!(["digital signature", "server auth", "client auth"]);
    let client = json!(["digital signature", "client auth"]);
    let wanted = [
        ("scheduler-extender-tls", json!([own]), Value::Null, both),
        ("kube-scheduler-tls", Value::Null, json!(scheduler), client),
        ("exporter-tls", json!([server]), Value::Null, json!(["digital signature", "server auth"])),
    ];
    let manifests = manifests(&["certManager.enabled=true"]);
    assert_eq!(manifests.of_kind("Certificate").len(), wanted.len() + 1);
    for (name, dns_names, common_name, usages) in wanted {
        let certificate = manifests.object("Certificate", name);
        let spec = &certificate["spec"];
        assert_eq!(spec["secretName"], name);
        assert_eq!(spec["dnsNames"], dns_names, "{name}");
        assert_eq!(spec["commonName"], common_name, "{name}");
        assert_eq!(spec["usages"], usages, "{name}");
        assert_eq!(spec["duration"], format!("{}h", 90 * 24), "{name}");
        // `plimsoll scheduler status` warns of a copy that ends within the same time.
        assert_eq!(spec["renewBefore"], format!("{}h", 30 * 24), "{name}");
        let issuer = &spec["issuerRef"];
        let issuer = manifests.object(&text(&issuer["kind"]), &text(&issuer["name"]));
        let ca = manifests.object("Certificate", &text(&issuer["spec"]["ca"]["secretName"]));
        assert_eq!(ca["spec"]["isCA"], true, "{name}");
    }
    let command = read("../cli/src/scheduler/mod.rs");
    assert!(command.lines().any(|line| line == "const WARNED: i64 = 30 * 24;"));
}

/// GKE asks for a quota whose scope names the class of the pod, and counts what the quota counts.
#[test]
#[ignore = "make chart"]
fn the_quota_of_critical_pods_names_every_class_that_pods_have() {
    let values = ["criticalPodsQuota=always", "exporter.gpuSignals=true", "mps.enabled=true"];
    let manifests = manifests(&values);
    let quota = manifests.object("ResourceQuota", "critical-pods");
    let scope = &quota["spec"]["scopeSelector"]["matchExpressions"][0];
    assert_eq!((&scope["scopeName"], &scope["operator"]), (&json!("PriorityClass"), &json!("In")));
    let named: BTreeSet<String> = strings(&scope["values"]).into_iter().collect();
    let mut classes: BTreeSet<String> = BTreeSet::new();
    for name in PROGRAMS.into_iter().chain([GPU_EXPORTER, "mps-control-daemon"]) {
        classes.insert(text(&manifests.pod(name)["priorityClassName"]));
    }
    assert_eq!(named, classes);
}

/// OpenShift's API is not among the types here, so what can be compared is.
#[test]
#[ignore = "make chart"]
fn each_program_has_security_context_constraints_that_let_it_run_as_it_does() {
    for mode in ["external", "second", "none"] {
        let mode_value = format!("scheduler.mode={mode}");
        let manifests = manifests(&["openshift=true", &mode_value]);
        let all = manifests.of_kind("SecurityContextConstraints");
        for program in PROGRAMS.into_iter().chain(["kube-scheduler"]) {
            if !manifests.runs(program) {
                continue;
            }
            let account = format!("system:serviceaccount:plimsoll:{program}");
            let of: Vec<&Value> =
                all.iter().filter(|found| strings(&found["users"]).contains(&account)).collect();
            let [constraints] = of[..] else { panic!("{} constraints of {program}", of.len()) };
            let pod = manifests.pod(program);
            assert_eq!(constraints["allowHostNetwork"] == true, pod["hostNetwork"] == true);
            assert_eq!(constraints["allowPrivilegedContainer"], false);
            let volumes = pod["volumes"].as_array().expect("volumes").iter();
            let allowed = strings(&constraints["volumes"]);
            for volume in volumes {
                let kind = ["emptyDir", "hostPath", "configMap", "projected", "secret"]
                    .into_iter()
                    .find(|kind| volume[*kind].is_object())
                    .expect("a kind");
                assert!(allowed.contains(&kind.to_owned()), "{program}: {kind}");
            }
            let user = pod["securityContext"]["runAsUser"].as_u64().expect("a user");
            let range = &constraints["runAsUser"];
            let least = range["uidRangeMin"].as_u64();
            let most = range["uidRangeMax"].as_u64();
            let fits = range["type"] == "RunAsAny" || (least <= Some(user) && Some(user) <= most);
            assert!(fits, "{program}: {user} and {range}");
        }
    }
    // NVML's processes are those of the host.
    let values = ["openshift=true", "devicePlugin.processes=true"];
    let plugin = manifests(&values).object("SecurityContextConstraints", "plimsoll-device-plugin");
    assert_eq!(plugin["allowHostPID"], true);
}

/// Each condition must hold for the policy to apply, so that one more exempts more accounts. Besides, the device plugin
/// places pods, and pods may name their node and another scheduler.
#[test]
#[ignore = "make chart"]
fn a_move_from_gpushare_adds_a_condition_to_the_policy_of_claims_and_places_unclaimed_pods() {
    let second = "scheduler.mode=second";
    let [before, after] =
        [vec![second], vec![second, "fromGpushare=true"]].map(|it| manifests(&it));
    let [former, plugin] = [&before, &after].map(|it| it.container("gpushare-device-plugin"));
    let mut env = plugin["env"].as_array().expect("variables").clone();
    env.retain(|variable| !former["env"].as_array().expect("variables").contains(variable));
    let wanted = json!([
        {"name": "PLIMSOLL_REPORT_GPU_COUNT", "value": "true"},
        {"name": "PLIMSOLL_UNCLAIMED_PODS", "value": "place"},
    ]);
    assert_eq!(json!(env), wanted);
    let [former, claims] =
        [&before, &after].map(|it| it.object("ValidatingAdmissionPolicy", "plimsoll-claims"));
    let mut conditions = claims["spec"]["matchConditions"].as_array().expect("them").clone();
    let more = conditions.pop().expect("it");
    assert_eq!(former["spec"]["matchConditions"], json!(conditions));
    let expression = text(&more["expression"]);
    assert!(expression.starts_with("!(request.userInfo.username in ["), "{expression}");
    for name in ["plimsoll-node-name", "plimsoll-scheduler-name"] {
        let binding = after.object("ValidatingAdmissionPolicyBinding", name);
        assert_eq!(binding["spec"]["validationActions"], json!(["Audit"]), "{name}");
    }
    let claims = after.object("ValidatingAdmissionPolicyBinding", "plimsoll-claims");
    assert_eq!(claims["spec"]["validationActions"], json!(["Deny"]));
}

/// The shipped policy and right let the device plugin write the number.
#[test]
#[ignore = "make chart"]
fn gpu_count_sets_a_flag_alone() {
    let changed = vec!["DaemonSet gpushare-device-plugin".to_owned()];
    assert_eq!(changes(&["devicePlugin.env.PLIMSOLL_REPORT_GPU_COUNT=true"]), [vec![], changed]);
}
