//! Every component patches workloads, containers and variables that exist, and but for some adds no rights.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::{Value, json};

use crate::flags::{knows_variable, parsed};
use crate::manifests::{
    PROGRAMS, container, gpu_probe, of_kind, pod, ports, read, strings, workload, yaml,
};
use crate::workloads::through;

/// The exporter that a component adds.
const GPU_EXPORTER: &str = "node-exporter-plus-gpu";
/// The mount that asks for every card.
const ALL_CARDS: &str = "all-cards";
const GPU_EXPORTER_FILE: &str = "components/gpu-signals/node-exporter-plus-gpu.yaml";

/// The patches of every component, each with the path of its file.
fn patches() -> Vec<(String, Value)> {
    let folders = fs::read_dir(deploy::folder().join("components")).expect("components");
    let names = folders.map(|folder| folder.expect("a folder").file_name().into_string());
    names.flat_map(|name| patches_of(&name.expect("a name in UTF-8"))).collect()
}

fn patches_of(component: &str) -> Vec<(String, Value)> {
    let folder = format!("components/{component}");
    let kustomization = yaml(&format!("{folder}/kustomization.yaml"));
    assert_eq!(kustomization["kind"], "Component", "{component}");
    let files = kustomization["patches"].as_array().into_iter().flatten();
    // A patch of a policy stands in the kustomization itself.
    let paths = files.filter_map(|patch| patch["path"].as_str());
    paths.map(|file| format!("{folder}/{file}")).map(|path| (path.clone(), yaml(&path))).collect()
}

#[test]
fn every_component_patches_a_workload_that_is_there() {
    let patches = patches();
    assert_eq!(patches.len(), 25);
    for (path, patch) in patches {
        let name = patch["metadata"]["name"].as_str().expect("a name");
        let target = match name {
            GPU_EXPORTER => yaml(GPU_EXPORTER_FILE),
            "mps-control-daemon" => yaml("components/gpu-mps/mps-control-daemon.yaml"),
            _ => workload(name),
        };
        assert_eq!(patch["kind"], target["kind"], "{path}");
        assert_eq!(patch["metadata"]["namespace"], target["metadata"]["namespace"], "{path}");
    }
}

#[test]
fn every_component_names_containers_and_variables_that_are_there() {
    for (path, patch) in patches() {
        let program = patch["metadata"]["name"].as_str().expect("a name");
        let changed = &patch["spec"]["template"]["spec"]["containers"];
        for change in changed.as_array().into_iter().flatten() {
            let is_probe = change["name"] == gpu_probe()["name"];
            assert!(is_probe || change["name"] == container(program)["name"], "{path}");
            for variable in change["env"].as_array().into_iter().flatten() {
                let variable = variable["name"].as_str().expect("a name");
                let is_known = is_probe && variable == "PLIMSOLL_CUDA_LIBRARY";
                assert!(is_known || knows_variable(program, variable), "{path}: {variable}");
            }
        }
    }
}

#[test]
fn metrics_server_adds_the_right_to_list_what_nodes_use_alone() {
    let role = yaml("components/metrics-server/role.yaml");
    let rule = json!({"apiGroups": ["metrics.k8s.io"], "resources": ["nodes"], "verbs": ["list"]});
    assert_eq!(role["rules"], json!([rule]));
    let binding = yaml("components/metrics-server/role-binding.yaml");
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    let subject = json!({"kind": "ServiceAccount", "name": "annotator", "namespace": "plimsoll"});
    assert_eq!(binding["subjects"], json!([subject]));
}

#[test]
fn each_component_of_evictions_adds_the_right_to_evict_alone() {
    adds_the_right_to_evict_alone("evict-for-cards", "PLIMSOLL_EVICT_FOR_CARDS");
    adds_the_right_to_evict_alone("move-for-cards", "PLIMSOLL_MOVE_FOR_CARDS");
    adds_the_right_to_evict_alone("evict-outside-mps", "PLIMSOLL_EVICT_OUTSIDE_MPS");
}

fn adds_the_right_to_evict_alone(component: &str, variable: &str) {
    let role = yaml(&format!("components/{component}/role.yaml"));
    let rule = json!({"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]});
    assert_eq!(role["rules"], json!([rule]));
    let binding = yaml(&format!("components/{component}/role-binding.yaml"));
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    let subject =
        json!({"kind": "ServiceAccount", "name": "scheduler-extender", "namespace": "plimsoll"});
    assert_eq!(binding["subjects"], json!([subject]));
    let [(_, patch)] = &patches_of(component)[..] else { panic!("one patch") };
    let env = &patch["spec"]["template"]["spec"]["containers"][0]["env"];
    assert_eq!(*env, json!([{"name": variable, "value": "true"}]));
}

#[test]
fn unhealthy_gpus_lets_the_device_plugin_write_config_maps_of_one_namespace_and_a_policy_of_one_name()
 {
    let role = yaml("components/unhealthy-gpus/role.yaml");
    let verbs = json!(["list", "watch", "create", "patch"]);
    let rule = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs});
    assert_eq!(role["rules"], json!([rule]));
    assert_eq!(role["metadata"]["namespace"], "kube-system");
    let binding = yaml("components/unhealthy-gpus/role-binding.yaml");
    assert_eq!(binding["metadata"]["namespace"], "kube-system");
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    let subject = json!({"kind": "ServiceAccount", "name": "gpushare-device-plugin", "namespace": "plimsoll"});
    assert_eq!(binding["subjects"], json!([subject]));
    let kustomization = yaml("components/unhealthy-gpus/kustomization.yaml");
    assert!(strings(&kustomization["resources"]).contains(&"policy.yaml".to_owned()));
}

/// The patches that add a volume.
fn mounting() -> Vec<(String, Value)> {
    patches().into_iter().filter(|(_, patch)| adds_volumes(patch)).collect()
}

fn adds_volumes(patch: &Value) -> bool {
    patch["spec"]["template"]["spec"]["volumes"].is_array()
}

/// Whether a part of a patch takes out what the base has.
fn takes_out(part: &Value) -> bool {
    part["$patch"] == "delete"
}

#[test]
fn extender_plain_http_takes_out_all_that_the_base_has_of_tls() {
    let patches = patches_of("extender-plain-http");
    let [(_, patch)] = patches.as_slice() else { panic!("{patches:?}") };
    let change = &patch["spec"]["template"]["spec"];
    let container_change = &change["containers"][0];
    let base = container("scheduler-extender");
    let mut variables = texts(&base["env"], "name");
    variables.retain(|name| ["_TLS_", "_CA_", "_CLIENT_"].iter().any(|part| name.contains(part)));
    assert_eq!(texts(&container_change["env"], "name"), variables);
    let certificates = "/etc/scheduler-extender";
    assert!(texts(&base["volumeMounts"], "mountPath").contains(certificates));
    assert_eq!(
        texts(&container_change["volumeMounts"], "mountPath"),
        [certificates.to_owned()].into()
    );
    assert!(texts(&pod("scheduler-extender")["volumes"], "name").contains("certificates"));
    assert_eq!(texts(&change["volumes"], "name"), ["certificates".to_owned()].into());
    for part in ["env", "volumeMounts"] {
        assert!(container_change[part].as_array().expect("a list").iter().all(takes_out), "{part}");
    }
    assert!(takes_out(&change["volumes"][0]));
}

fn texts(parts: &Value, key: &str) -> BTreeSet<String> {
    let parts = parts.as_array().expect("a list").iter();
    parts.map(|part| part[key].as_str().expect("a text").to_owned()).collect()
}

/// What clients and replicas are asked for stands in the certificate that is mounted, and comes from the Secret that
/// the command makes.
#[test]
fn the_extender_is_given_the_certificates_that_the_command_makes() {
    let files =
        [("tls-cert-file", "tls.crt"), ("tls-key-file", "tls.key"), ("client-ca-file", "ca.crt")];
    let flags = parsed("scheduler-extender");
    let volumes = pod("scheduler-extender")["volumes"].clone();
    let mut volumes = volumes.as_array().expect("volumes").iter();
    let volume = volumes.find(|volume| volume["name"] == "certificates").expect("certificates");
    let secret = &volume["projected"]["sources"][0]["secret"];
    for (flag, file) in files {
        assert_eq!(flags.raw(flag), Some(format!("/etc/scheduler-extender/{file}")));
        let items = secret["items"].as_array().expect("items");
        assert!(items.contains(&json!({"key": file, "path": file})), "{file}");
    }
    let command = ["cluster_access/mod", "scheduler/certificates"];
    let command = command.map(|file| read(&format!("../cli/src/{file}.rs"))).concat();
    let own = flags.raw("replica-server-name").expect("a name");
    for line in [
        format!("pub(crate) const SERVER_SECRET: &str = {};", secret["name"]),
        format!("        format!(\"{}\", self.namespace)", own.replace(".plimsoll.", ".{}.")),
    ] {
        assert!(command.lines().any(|of_command| of_command == line), "{line}");
    }
    assert!(secret["optional"].is_null(), "without it no pod may start");
    // The common names that the command gives.
    let variables = pod("scheduler-extender")["containers"][0]["env"].clone();
    let names =
        json!({"name": "PLIMSOLL_CLIENT_NAMES", "value": format!("system:kube-scheduler,{own}")});
    assert!(variables.as_array().expect("variables").contains(&names));
}

#[test]
fn variables_of_a_component_name_paths_that_it_mounts() {
    for (path, patch) in mounting() {
        let pod_patch = &patch["spec"]["template"]["spec"];
        let change = &pod_patch["containers"][0];
        let mount = &change["volumeMounts"][0];
        if takes_out(mount) {
            continue;
        }
        let mounted = mount["mountPath"].as_str().expect("a path");
        for variable in change["env"].as_array().into_iter().flatten() {
            let named = Path::new(variable["value"].as_str().expect("a path"));
            assert!(named.starts_with(mounted), "{path}: {}", named.display());
        }
        assert_eq!(mount["name"], pod_patch["volumes"][0]["name"], "{path}");
        let program = patch["metadata"]["name"].as_str().expect("a name");
        let taken = pod(program)["volumes"].as_array().cloned().expect("volumes");
        assert!(taken.iter().all(|volume| volume["name"] != mount["name"]), "{path}");
    }
}

/// The exporter takes what is mounted below `--host-root` for the host's. A folder of another name there would be made
/// in the host's root, where that is mounted too.
#[test]
fn what_exporters_have_below_their_host_root_is_the_hosts_at_the_same_path() {
    let patches = mounting().into_iter().map(|(_, patch)| patch);
    let exporters = patches.filter(|patch| patch["metadata"]["name"] == "node-exporter-plus");
    let mut found = Vec::new();
    for set in [workload("node-exporter-plus")].into_iter().chain(exporters) {
        let pod = &set["spec"]["template"]["spec"];
        for mount in pod["containers"][0]["volumeMounts"].as_array().expect("mounts") {
            let [volume] = &items_named(&pod["volumes"], &text(&mount["name"]))[..] else {
                panic!("{mount}")
            };
            if let Some(below) = text(&mount["mountPath"]).strip_prefix("/host") {
                found.push((below.to_owned(), text(&volume["hostPath"]["path"])));
            }
        }
    }
    found.sort();
    let expected = [("", "/"), ("/proc", "/proc"), ("/sys", "/sys")];
    assert_eq!(found, expected.map(|(below, path)| (below.to_owned(), path.to_owned())));
}

/// Where a client of MPS has its pipes and the memory that it shares with its server.
#[test]
fn gpu_probe_has_the_mounts_of_a_client_of_mps_and_the_library_where_components_add_them() {
    let mut found = Vec::new();
    for (path, patch) in mounting() {
        let pod_patch = &patch["spec"]["template"]["spec"];
        let volumes = pod_patch["volumes"].as_array().expect("volumes");
        let containers = pod_patch["containers"].as_array().expect("containers").iter();
        let others = containers.skip(1).flat_map(|it| it["volumeMounts"].as_array().expect("it"));
        for mount in others {
            let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]);
            let folder = text(&volume.expect("a volume")["hostPath"]["path"]);
            let at = text(&mount["mountPath"]);
            let component = path.split('/').nth(1).expect("a component");
            found.push(format!("{component} {folder} {at} {}", mount["readOnly"]));
        }
    }
    found.sort();
    assert_eq!(
        found,
        [
            "gpu-mps /run/plimsoll-mps/pipe /run/nvidia-mps true",
            "gpu-mps /run/plimsoll-mps/shm /dev/shm null",
            "nvml-host-library /var/lib/plimsoll-node/nvidia /opt/nvidia true",
        ]
    );
}

#[test]
fn components_mount_these_host_folders_read_only() {
    let mut found = Vec::new();
    for (path, patch) in mounting() {
        let pod_patch = &patch["spec"]["template"]["spec"];
        let mount = &pod_patch["containers"][0]["volumeMounts"][0];
        assert!(mount["readOnly"] == true || takes_out(mount), "{path}");
        let folder = &pod_patch["volumes"][0]["hostPath"];
        let spread = &mount["mountPropagation"];
        found.extend(folder["path"].as_str().map(|folder| format!("{path} {folder} {spread}")));
    }
    found.sort();
    assert_eq!(
        found,
        [
            "components/gpu-mps/gpushare-device-plugin.yaml /run/plimsoll-mps \"HostToContainer\"",
            "components/host-file-systems/node-exporter-plus.yaml / \"HostToContainer\"",
            "components/nvml-host-library/gpushare-device-plugin.yaml /var/lib/plimsoll-node/nvidia null",
            "components/nvml-host-library/node-exporter-plus.yaml /var/lib/plimsoll-node/nvidia null",
        ]
    );
}

/// The files that a patch mounts from Secrets: the path, then the name of the Secret and the key in it.
fn secrets(patch: &Value) -> Vec<(String, String)> {
    let sources = &patch["spec"]["template"]["spec"]["volumes"][0]["projected"]["sources"];
    sources
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|source| files_of_secret(&source["secret"]))
        .collect()
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

fn files_of_secret(secret: &Value) -> Vec<(String, String)> {
    let items = secret["items"].as_array().expect("items").iter();
    items
        .map(|item| (text(&item["path"]), format!("{} {}", text(&secret["name"]), item["key"])))
        .collect()
}

#[test]
fn exporter_tls_names_every_mounted_secret_file_and_gives_the_key_to_exporters_alone() {
    for (path, patch) in patches_of("exporter-tls") {
        let variables = &patch["spec"]["template"]["spec"]["containers"][0]["env"];
        let named = variables.as_array().expect("variables").iter();
        let named: BTreeSet<&str> = named
            .filter_map(|variable| variable["value"].as_str()?.strip_prefix("/etc/exporter/"))
            .collect();
        let files = secrets(&patch);
        assert_eq!(named, files.iter().map(|(file, _)| file.as_str()).collect(), "{path}");
        let has_key = files.iter().any(|(file, _)| file == "tls.key");
        assert_eq!(has_key, patch["kind"] == "DaemonSet", "{path}");
        assert!(
            files.contains(&("token".to_owned(), "exporter-token \"token\"".to_owned())),
            "{path}"
        );
    }
}

#[test]
fn no_component_but_gpu_processes_gives_more_rights_to_a_pod() {
    for (path, mut patch) in patches() {
        let pod_patch = &mut patch["spec"]["template"]["spec"];
        if path == "components/gpu-processes/gpushare-device-plugin.yaml" {
            assert_eq!(*pod_patch, json!({"hostPID": true}), "and nothing else");
            pod_patch["hostPID"].take();
        }
        if path == "components/openshift/gpushare-device-plugin.yaml" {
            let confined = json!({"seLinuxOptions": {"type": "container_device_plugin_t"}});
            assert_eq!(*pod_patch, json!({"securityContext": confined}), "and nothing else");
            pod_patch["securityContext"].take();
        }
        for right in ["securityContext", "hostNetwork", "hostPID", "hostIPC", "serviceAccountName"]
        {
            assert!(pod_patch[right].is_null(), "{path}: {right}");
            assert!(pod_patch["containers"][0][right].is_null(), "{path}: {right}");
        }
    }
}

#[test]
fn the_exporter_of_gpu_nodes_is_the_shipped_one_with_the_cards_and_more_memory() {
    let shipped = workload("node-exporter-plus");
    let renamed = shipped.to_string().replace(
        "\"app.kubernetes.io/name\":\"node-exporter-plus\"",
        "\"app.kubernetes.io/name\":\"node-exporter-plus-gpu\"",
    );
    let mut wanted: Value = serde_json::from_str(&renamed).expect("JSON");
    wanted["metadata"]["name"] = GPU_EXPORTER.into();
    let pod_of_it = &mut wanted["spec"]["template"]["spec"];
    pod_of_it["nodeSelector"]["gpushare"] = "true".into();
    let plugin = pod("gpushare-device-plugin");
    // Not while the driver is replaced.
    pod_of_it["affinity"] = plugin["affinity"].clone();
    let in_plugin = container("gpushare-device-plugin");
    let driver = items_named(&in_plugin["env"], "NVIDIA_DRIVER_CAPABILITIES");
    let env = pod_of_it["containers"][0]["env"].as_array_mut().expect("variables");
    env.extend(driver);
    let mounts = pod_of_it["containers"][0]["volumeMounts"].as_array_mut().expect("mounts");
    mounts.extend(items_named(&in_plugin["volumeMounts"], ALL_CARDS));
    let volumes = pod_of_it["volumes"].as_array_mut().expect("volumes");
    volumes.extend(items_named(&plugin["volumes"], ALL_CARDS));
    pod_of_it["containers"][0]["resources"]["limits"]["memory"] = "64Mi".into();
    assert_eq!(yaml(GPU_EXPORTER_FILE), wanted);
}

fn items_named(list: &Value, name: &str) -> Vec<Value> {
    let items = list.as_array().expect("a list").iter();
    items.filter(|item| item["name"] == name).cloned().collect::<Vec<_>>()
}

/// NVIDIA's container runtime reads a mount of /dev/null below this folder as a request for a card
/// (`accept-nvidia-visible-devices-as-volume-mounts`), the last part being its UUID or `all`.
#[test]
fn cards_are_asked_for_by_a_mount_and_by_no_variable() {
    let exporter = yaml(GPU_EXPORTER_FILE)["spec"]["template"]["spec"].clone();
    for (pod, container) in [
        (pod("gpushare-device-plugin"), container("gpushare-device-plugin")),
        (pod("gpushare-device-plugin"), gpu_probe()),
        (exporter.clone(), exporter["containers"][0].clone()),
    ] {
        let name = &container["name"];
        let variables = container["env"].as_array().expect("variables");
        assert!(variables.iter().all(|v| v["name"] != "NVIDIA_VISIBLE_DEVICES"), "{name}");
        let mounts = container["volumeMounts"].as_array().expect("mounts").iter();
        let mounts: Vec<_> = mounts.filter(|mount| mount["name"] == ALL_CARDS).collect();
        let wanted = json!({
            "name": ALL_CARDS, "mountPath": "/var/run/nvidia-container-devices/all", "readOnly": true
        });
        assert_eq!(mounts, [&wanted], "{name}");
        let source =
            json!({"name": ALL_CARDS, "hostPath": {"path": "/dev/null", "type": "CharDevice"}});
        assert!(pod["volumes"].as_array().expect("volumes").contains(&source), "{name}");
    }
}

#[test]
fn every_file_of_the_base_is_listed() {
    let kustomization = yaml("base/kustomization.yaml");
    let mut listed = strings(&kustomization["resources"]);
    listed.extend(strings(&kustomization["configMapGenerator"][0]["files"]));
    listed.push("kustomization.yaml".to_owned());
    listed.sort();
    let files = fs::read_dir(deploy::folder().join("base")).expect("base");
    let mut found: Vec<_> =
        files.map(|file| file.expect("a file").file_name().into_string().expect("UTF-8")).collect();
    found.sort();
    assert_eq!(found, listed);
}

fn documents(path: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&read(path)).expect("YAML")
}

#[test]
fn one_server_of_mps_serves_clients_of_every_user() {
    let daemon = yaml("components/gpu-mps/mps-control-daemon.yaml");
    let containers = daemon["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    let command = strings(&containers[0]["command"]).join(" ");
    assert!(command.contains(" nvidia-cuda-mps-control -f -multiuser-server &"), "{command}");
}

#[test]
fn the_mps_daemon_which_speaks_by_pipes_has_no_network() {
    let policy = yaml("components/gpu-mps/network-policy.yaml");
    assert_eq!(through::<NetworkPolicy>(&policy), policy);
    let daemon = yaml("components/gpu-mps/mps-control-daemon.yaml");
    assert_eq!(policy["spec"]["podSelector"], daemon["spec"]["selector"]);
    assert_eq!(strings(&policy["spec"]["policyTypes"]), ["Ingress", "Egress"]);
    assert!(policy["spec"]["ingress"].is_null() && policy["spec"]["egress"].is_null());
    let kustomization = yaml("components/gpu-mps/kustomization.yaml");
    assert!(strings(&kustomization["resources"]).contains(&"network-policy.yaml".to_owned()));
}

#[test]
fn network_deny_denies_all_and_opens_what_each_program_calls() {
    let deny = yaml("components/network-deny/deny.yaml");
    assert_eq!(through::<NetworkPolicy>(&deny), deny);
    assert_eq!(deny["spec"], json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}));
    let egress = documents("components/network-deny/egress.yaml");
    assert_eq!(egress.len(), PROGRAMS.iter().filter(|program| !is_on_host(program)).count());
    let annotated: u64 = parsed("annotator").raw("exporter-port").expect("it").parse().expect("it");
    for policy in &egress {
        assert_eq!(through::<NetworkPolicy>(policy), *policy);
        let name = policy["metadata"]["name"].as_str().expect("a name");
        let program = name.strip_suffix("-egress").expect("a name");
        assert_eq!(policy["spec"]["podSelector"], workload(program)["spec"]["selector"]);
        let rules = policy["spec"]["egress"].as_array().expect("rules").iter();
        let called = rules.flat_map(|rule| rule["ports"].as_array().expect("ports"));
        let mut called: Vec<u64> = called.filter_map(|port| port["port"].as_u64()).collect();
        called.retain(|port| ![443, 6443, 53].contains(port));
        let wanted = match program {
            "scheduler-extender" => vec![
                port(program, "verbs"),
                port(program, "inspect"),
                port("annotator", "workloads"),
            ],
            "annotator" => vec![annotated, port("annotator", "workloads")],
            _ => Vec::new(),
        };
        assert_eq!(called, wanted, "{program}");
    }
    // The patch closes the first rule of each shipped policy, which must be that of the admin port.
    let patch = &yaml("components/network-deny/kustomization.yaml")["patches"][0];
    let patched: Vec<&str> =
        patch["target"]["name"].as_str().expect("names").split(['(', '|', ')']).collect();
    for policy in of_kind("NetworkPolicy") {
        let name = policy["metadata"]["name"].as_str().expect("a name");
        assert!(patched.contains(&name), "{name}");
        let first = &policy["spec"]["ingress"][0];
        assert_eq!(*first, json!({"ports": [{"port": "admin", "protocol": "TCP"}]}), "{name}");
    }
    assert!(patch["patch"].as_str().expect("a patch").contains("path: /spec/ingress/0/from\n"));
}

fn is_on_host(program: &str) -> bool {
    pod(program)["hostNetwork"] == true
}

fn port(program: &str, wanted: &str) -> u64 {
    ports(program).into_iter().find(|(name, _)| name == wanted).expect("a port").1
}

/// They are rendered with the component `two-namespaces` alone.
#[test]
fn what_node_agents_need_in_a_namespace_of_their_own_is_what_the_first_one_has() {
    for (component, file) in [
        ("network-deny", "deny.yaml"),
        ("critical-pods-quota", "quota.yaml"),
        ("cert-manager", "issuer.yaml"),
    ] {
        let folder = format!("components/{component}");
        let mut wanted = documents(&format!("{folder}/{file}"));
        for object in &mut wanted {
            object["metadata"]["namespace"] = "plimsoll-node-agents".into();
            object["metadata"]["annotations"] =
                json!({"config.kubernetes.io/local-config": "true"});
        }
        assert_eq!(documents(&format!("{folder}/node-agents.yaml")), wanted);
        let listed = strings(&yaml(&format!("{folder}/kustomization.yaml"))["resources"]);
        assert!(listed.contains(&"node-agents.yaml".to_owned()), "{component}");
    }
}

/// cert-manager's API is not among the types here. The script makes the same certificates, but for 365 days.
#[test]
fn cert_manager_makes_the_certificates_that_the_programs_check() {
    let own = parsed("scheduler-extender").raw("replica-server-name").expect("a name");
    let clients = parsed("scheduler-extender").raw("client-names").expect("names");
    let server = parsed("annotator").raw("exporter-server-name").expect("a name");
    let scheduler = clients.split(',').next().expect("a name");
    let both = json!(["digital signature", "server auth", "client auth"]);
    let client = json!(["digital signature", "client auth"]);
    let wanted = [
        ("scheduler-extender-tls", json!([own]), Value::Null, both),
        ("kube-scheduler-tls", Value::Null, json!(scheduler), client),
        ("exporter-tls", json!([server]), Value::Null, json!(["digital signature", "server auth"])),
    ];
    let certificates = documents("components/cert-manager/certificates.yaml");
    assert_eq!(certificates.len(), wanted.len());
    let issuers = documents("components/cert-manager/issuer.yaml");
    for (certificate, (name, dns_names, common_name, usages)) in certificates.iter().zip(wanted) {
        let spec = &certificate["spec"];
        assert_eq!(
            (&certificate["metadata"]["name"], &spec["secretName"]),
            (&json!(name), &json!(name))
        );
        assert_eq!(spec["dnsNames"], dns_names, "{name}");
        assert_eq!(spec["commonName"], common_name, "{name}");
        assert_eq!(spec["usages"], usages, "{name}");
        assert_eq!(spec["duration"], format!("{}h", 90 * 24), "{name}");
        // `plimsoll scheduler status` warns of a copy that ends within the same time.
        assert_eq!(spec["renewBefore"], format!("{}h", 30 * 24), "{name}");
        let signs = issuers.iter().find(|issuer| {
            issuer["kind"] == spec["issuerRef"]["kind"]
                && issuer["metadata"]["name"] == spec["issuerRef"]["name"]
        });
        let ca = &signs.expect("an issuer")["spec"]["ca"]["secretName"];
        let ca = issuers.iter().find(|issuer| issuer["spec"]["secretName"] == *ca);
        assert_eq!(ca.expect("a CA")["spec"]["isCA"], true, "{name}");
    }
    let command = read("../cli/src/scheduler/mod.rs");
    assert!(command.lines().any(|line| line == "const WARNED: i64 = 30 * 24;"));
    let secrets: BTreeSet<(String, String)> = patches_of("exporter-tls")
        .iter()
        .flat_map(|(_, patch)| secrets(patch))
        .filter(|(_, secret)| secret.starts_with("exporter-tls "))
        .collect();
    assert_eq!(secrets.len(), 3, "its ca.crt, tls.crt and tls.key are what cert-manager writes");
}

/// GKE asks for a quota whose scope names the class of the pod, and counts what the quota counts.
#[test]
fn the_quota_of_critical_pods_names_every_class_that_pods_have() {
    let quota = yaml("components/critical-pods-quota/quota.yaml");
    assert_eq!(through::<ResourceQuota>(&quota), quota);
    let scope = &quota["spec"]["scopeSelector"]["matchExpressions"][0];
    assert_eq!((&scope["scopeName"], &scope["operator"]), (&json!("PriorityClass"), &json!("In")));
    let named: BTreeSet<String> = strings(&scope["values"]).into_iter().collect();
    let mut classes: BTreeSet<String> = BTreeSet::new();
    for pod in PROGRAMS.into_iter().map(pod) {
        classes.insert(text(&pod["priorityClassName"]));
    }
    for file in [GPU_EXPORTER_FILE, "components/gpu-mps/mps-control-daemon.yaml"] {
        classes.insert(text(&yaml(file)["spec"]["template"]["spec"]["priorityClassName"]));
    }
    assert_eq!(named, classes);
}

/// OpenShift's API is not among the types here, so what can be compared is.
#[test]
fn each_program_has_security_context_constraints_that_let_it_run_as_it_does() {
    let all = documents("components/openshift/constraints.yaml");
    for program in PROGRAMS {
        let account = format!("system:serviceaccount:plimsoll:{program}");
        let of: Vec<&Value> =
            all.iter().filter(|found| strings(&found["users"]).contains(&account)).collect();
        let [constraints] = of[..] else { panic!("{} constraints of {program}", of.len()) };
        let pod = pod(program);
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
