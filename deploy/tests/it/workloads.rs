//! How each pod runs: its rights on the node, probes, resources and updates.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ResourceQuota, Service, ServiceAccount};
use k8s_openapi::api::flowcontrol::v1::FlowSchema;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::manifests::{
    Manifests, PROGRAMS, container, gpu_probe, objects, of_kind, pod, ports, read, strings,
    workload,
};

/// Parses into Kubernetes' own type and writes it again: a field that the type does not have is lost.
pub(crate) fn through<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
    let typed: T = serde_json::from_value(object.clone())
        .unwrap_or_else(|error| panic!("{error} in {object:#}"));
    serde_json::to_value(typed).unwrap()
}

/// The kinds of objects that are not of Kubernetes itself.
const OF_OTHERS: [&str; 5] =
    ["Certificate", "Issuer", "PodMonitor", "PrometheusRule", "SecurityContextConstraints"];

/// Fails where Kubernetes knows a field of an object not.
pub(crate) fn assert_known(manifests: &Manifests) {
    for object in manifests.objects() {
        let known = match object["kind"].as_str().unwrap() {
            "Namespace" => through::<Namespace>(object),
            "ServiceAccount" => through::<ServiceAccount>(object),
            "ConfigMap" => through::<ConfigMap>(object),
            "ResourceQuota" => through::<ResourceQuota>(object),
            "Service" => through::<Service>(object),
            "NetworkPolicy" => through::<NetworkPolicy>(object),
            "ClusterRole" => through::<ClusterRole>(object),
            "ClusterRoleBinding" => through::<ClusterRoleBinding>(object),
            "Role" => through::<Role>(object),
            "RoleBinding" => through::<RoleBinding>(object),
            "PodDisruptionBudget" => through::<PodDisruptionBudget>(object),
            "Deployment" => through::<Deployment>(object),
            "DaemonSet" => through::<DaemonSet>(object),
            "FlowSchema" => through::<FlowSchema>(object),
            "ValidatingAdmissionPolicy" => through::<ValidatingAdmissionPolicy>(object),
            "ValidatingAdmissionPolicyBinding" => {
                through::<ValidatingAdmissionPolicyBinding>(object)
            }
            "MutatingAdmissionPolicy" => through::<MutatingAdmissionPolicy>(object),
            "MutatingAdmissionPolicyBinding" => through::<MutatingAdmissionPolicyBinding>(object),
            other => {
                assert!(OF_OTHERS.contains(&other), "a {other} that no test looks at");
                continue;
            }
        };
        assert_eq!(known, *object);
    }
}

#[test]
fn every_field_of_every_manifest_is_one_that_kubernetes_knows() {
    for mode in ["external", "second", "none"] {
        assert_known(&Manifests::of_mode(mode));
    }
    assert_known(&Manifests::of_mps());
}

#[test]
fn every_field_of_the_samples_is_one_that_kubernetes_knows() {
    for sample in ["namespace-nodes", "scheduler-name", "tolerate-hot-nodes"] {
        let sample = &format!("samples/{sample}.yaml");
        let objects: Vec<Value> = serde_saphyr::from_multiple(&read(sample)).unwrap();
        let [policy, binding] = objects.as_slice() else { panic!("{objects:?}") };
        assert_eq!(through::<MutatingAdmissionPolicy>(policy), *policy);
        assert_eq!(through::<MutatingAdmissionPolicyBinding>(binding), *binding);
        assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
    }
}

#[test]
fn the_sample_tolerates_the_annotators_taint() {
    let sample = read("samples/tolerate-hot-nodes.yaml");
    let key = annotator::args::TAINT_KEY;
    assert_eq!(sample.matches(&format!("'{key}'")).count(), 2, "{key}");
}

#[test]
fn there_is_one_workload_for_each_program_and_no_other() {
    let mut running: Vec<_> =
        objects().into_iter().filter(|object| object["spec"]["template"].is_object()).collect();
    running.sort_by_key(|object| object["metadata"]["name"].to_string());
    let names: Vec<_> =
        running.iter().map(|object| object["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, PROGRAMS);
}

#[test]
fn everything_is_labelled_and_lives_in_the_namespace() {
    for mode in ["external", "second", "none"] {
        for object in Manifests::of_mode(mode).objects() {
            let metadata = &object["metadata"];
            assert_eq!(metadata["labels"]["app.kubernetes.io/part-of"], "plimsoll", "{metadata}");
            let kind = object["kind"].as_str().unwrap();
            let cluster_wide = ["Namespace", "ClusterRole", "ClusterRoleBinding", "FlowSchema"];
            let wanted = match metadata["name"].as_str() {
                _ if cluster_wide.contains(&kind) || kind.contains("AdmissionPolicy") => {
                    Value::Null
                }
                // By it kube-scheduler learns who may read its metrics.
                Some("plimsoll-kube-scheduler") => "kube-system".into(),
                _ => "plimsoll".into(),
            };
            assert_eq!(metadata["namespace"], wanted, "{metadata}");
        }
    }
}

/// What taints on hot nodes need, and no more.
#[test]
fn without_an_extender_there_is_nothing_of_it_nor_of_gpus() {
    let none = Manifests::of_mode("none");
    for object in none.objects() {
        let name = object["metadata"]["name"].as_str().unwrap();
        let of_others = ["extender", "gpushare", "device-plugin", "claims", "bindings", "gpu-"];
        assert!(!of_others.iter().any(|other| name.contains(other)), "{name}");
        // What is there is as with an extender.
        let kind = object["kind"].as_str().unwrap();
        let annotator = kind == "Deployment" || kind == "FlowSchema";
        let external = Manifests::of_mode("external").object(kind, name);
        assert!(annotator || external == *object, "{kind} {name}");
    }
    let taints =
        serde_json::json!([{"name": "PLIMSOLL_TAINT_HOT_NODES", "value": "PreferNoSchedule"}]);
    let mut annotator = none.workload("annotator");
    let env = annotator["spec"]["template"]["spec"]["containers"][0]["env"].take();
    assert_eq!(env, taints);
    let mut with_extender = workload("annotator");
    with_extender["spec"]["template"]["spec"]["containers"][0]["env"] = Value::Null;
    assert_eq!(annotator, with_extender);
    let [leases] = &none.of_kind("FlowSchema")[..] else { panic!("one flow schema") };
    let subjects = leases["spec"]["rules"][0]["subjects"].as_array().unwrap();
    let [subject] = &subjects[..] else { panic!("{leases}") };
    assert_eq!(subject["serviceAccount"]["name"], "annotator");
}

#[test]
fn selectors_find_their_own_pods_only() {
    for program in PROGRAMS {
        let workload = workload(program);
        let labels = &workload["spec"]["template"]["metadata"]["labels"];
        let selector = &workload["spec"]["selector"]["matchLabels"];
        assert_eq!(selector["app.kubernetes.io/name"], program);
        for (key, value) in selector.as_object().unwrap() {
            assert_eq!(labels[key], *value, "{program}");
        }
    }
    for service in of_kind("Service") {
        let program =
            service["spec"]["selector"]["app.kubernetes.io/name"].as_str().unwrap().to_owned();
        assert_eq!(
            service["spec"]["selector"],
            workload(&program)["spec"]["selector"]["matchLabels"]
        );
    }
}

/// The label by which scrapes and people tell programs apart, whatever their workloads are called.
const COMPONENT: &str = "app.kubernetes.io/component";

#[test]
fn each_program_has_a_component_of_its_own_on_all_that_is_its() {
    let mut components = Vec::new();
    for program in PROGRAMS {
        let component = workload(program)["metadata"]["labels"][COMPONENT].clone();
        assert!(
            component.is_string() && !components.contains(&component),
            "{program}: {component}"
        );
        for object in objects() {
            if object["metadata"]["labels"]["app.kubernetes.io/name"] == program {
                assert_eq!(object["metadata"]["labels"][COMPONENT], component, "{object:#}");
            }
        }
        let pods = &workload(program)["spec"]["template"]["metadata"]["labels"];
        assert_eq!(pods[COMPONENT], component, "{program}");
        components.push(component);
    }
    let daemon = Manifests::of_mps().workload("mps-control-daemon");
    let of_daemon = &daemon["spec"]["template"]["metadata"]["labels"][COMPONENT];
    assert!(of_daemon.is_string() && !components.contains(of_daemon), "{of_daemon}");
}

#[test]
fn containers_cannot_gain_privileges_or_write_to_their_image() {
    for container in PROGRAMS.into_iter().map(container).chain([gpu_probe()]) {
        let (context, name) = (&container["securityContext"], &container["name"]);
        assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
        assert_eq!(context["readOnlyRootFilesystem"], true, "{name}");
        assert_eq!(strings(&context["capabilities"]["drop"]), ["ALL"], "{name}");
        assert!(
            context["capabilities"]["add"].is_null() && context["privileged"].is_null(),
            "{name}"
        );
    }
    for program in PROGRAMS {
        assert_eq!(
            pod(program)["securityContext"]["seccompProfile"]["type"],
            "RuntimeDefault",
            "{program}"
        );
    }
}

#[test]
fn only_the_device_plugin_is_root_and_only_the_exporter_is_on_the_host_network() {
    for program in PROGRAMS {
        let pod = pod(program);
        let user = pod["securityContext"]["runAsUser"].as_u64();
        assert_eq!(user == Some(0), program == "gpushare-device-plugin", "{program}");
        assert_eq!(pod["securityContext"]["runAsNonRoot"] == true, user != Some(0), "{program}");
        assert_eq!(pod["hostNetwork"] == true, program == "node-exporter-plus", "{program}");
        assert!(pod["hostPID"].is_null() && pod["hostIPC"].is_null(), "{program}");
    }
}

/// The kernel lets a process read the memory, the environment and the files of every other process with its user and
/// group, through the host's /proc too, which the exporter mounts.
#[test]
fn no_two_programs_share_a_user_or_a_group_nor_have_that_of_other_images() {
    // 65532 is `nonroot` of distroless images, 65534 `nobody`.
    let common = [65_532, 65_534];
    for part in ["runAsUser", "runAsGroup"] {
        let mut numbers: Vec<u64> = Vec::new();
        for program in PROGRAMS {
            numbers.push(pod(program)["securityContext"][part].as_u64().unwrap());
        }
        numbers.push(gpu_probe()["securityContext"][part].as_u64().unwrap());
        let sample: Vec<Value> =
            serde_saphyr::from_multiple(&read("samples/descheduler/descheduler.yaml")).unwrap();
        let sample = sample.iter().find(|object| object["kind"] == "Deployment").unwrap();
        let context = &sample["spec"]["template"]["spec"]["securityContext"];
        numbers.push(context[part].as_u64().unwrap());
        assert!(numbers.iter().all(|number| !common.contains(number)), "{part}: {numbers:?}");
        numbers.sort_unstable();
        let count = numbers.len();
        numbers.dedup();
        assert_eq!(numbers.len(), count, "{part}: {numbers:?}");
    }
    let prepare = &pod("node-exporter-plus")["initContainers"][0];
    let user =
        format!("--storage.prepare={}", pod("node-exporter-plus")["securityContext"]["runAsUser"]);
    assert!(strings(&prepare["args"]).contains(&user), "{user}");
}

/// A container that mounts something where the token goes gets none: Kubernetes' admission plugin ServiceAccount.
#[test]
fn gpu_probe_is_no_root_has_no_token_and_shares_the_plugins_socket_alone() {
    let probe = gpu_probe();
    assert_eq!(probe["securityContext"]["runAsNonRoot"], true);
    let mounts = probe["volumeMounts"].as_array().unwrap();
    let at = |path: &str| &mounts.iter().find(|mount| mount["mountPath"] == path).unwrap()["name"];
    let volumes = pod("gpushare-device-plugin")["volumes"].clone();
    let named = |name: &Value| {
        volumes.as_array().unwrap().iter().find(|volume| volume["name"] == *name).unwrap().clone()
    };
    let token = named(at("/var/run/secrets/kubernetes.io/serviceaccount"));
    let socket = named(at("/run/plimsoll-contexts"));
    for volume in [token, socket] {
        assert_eq!(volume["emptyDir"], serde_json::json!({"medium": "Memory", "sizeLimit": "1Mi"}));
    }
    let args = strings(&probe["args"]);
    let flag = format!("--context-probe-socket={}", args[1]);
    assert!(strings(&container("gpushare-device-plugin")["args"]).contains(&flag), "{flag}");
    let hosts: Vec<&Value> = mounts
        .iter()
        .map(|mount| &mount["name"])
        .filter(|name| named(name)["hostPath"].is_object())
        .collect();
    assert_eq!(hosts, ["all-cards"]);
}

#[test]
fn host_folders_are_these_and_writable_only_where_something_is_written() {
    let mut found = Vec::new();
    for program in PROGRAMS {
        let pod = pod(program);
        let container = container(program);
        for volume in pod["volumes"].as_array().into_iter().flatten() {
            let Some(path) = volume["hostPath"]["path"].as_str() else { continue };
            let mounts = container["volumeMounts"].as_array().unwrap();
            let mount = mounts.iter().find(|mount| mount["name"] == volume["name"]).unwrap();
            let mode = if mount["readOnly"] == true { "read" } else { "write" };
            found.push(format!("{program} {mode} {path}"));
        }
    }
    assert_eq!(
        found,
        [
            "gpushare-device-plugin write /var/lib/kubelet/device-plugins",
            "gpushare-device-plugin read /var/lib/kubelet/pod-resources",
            "gpushare-device-plugin write /var/run/cdi",
            "gpushare-device-plugin read /etc/cdi",
            "gpushare-device-plugin read /sys/fs/cgroup",
            "gpushare-device-plugin write /run/plimsoll-gpu",
            "gpushare-device-plugin read /dev/null",
            "node-exporter-plus write /run/plimsoll",
            "node-exporter-plus read /proc",
            "node-exporter-plus read /sys",
        ]
    );
}

/// Where the runtime cannot do it, what is mounted below such a folder stays as writable as it is on the host.
#[test]
fn what_is_mounted_below_a_read_only_folder_of_the_host_is_read_only_where_the_runtime_can() {
    for program in PROGRAMS {
        let folders = host_folders(&pod(program));
        for mount in container(program)["volumeMounts"].as_array().unwrap() {
            let is_read = mount["readOnly"] == true && folders.contains(&mount["name"]);
            let wanted = if is_read { "IfPossible".into() } else { Value::Null };
            assert_eq!(mount["recursiveReadOnly"], wanted, "{program}: {mount}");
            assert!(mount["mountPropagation"].is_null(), "which excludes it: {mount}");
        }
    }
}

/// The names of a pod's volumes that are folders of the host.
fn host_folders(pod: &Value) -> Vec<Value> {
    let volumes = pod["volumes"].as_array().into_iter().flatten();
    let folders = volumes.filter(|volume| {
        let kind = volume["hostPath"]["type"].as_str();
        kind.is_some_and(|kind| kind.starts_with("Directory"))
    });
    folders.map(|volume| volume["name"].clone()).collect()
}

#[test]
fn every_container_has_requests_and_a_memory_limit() {
    for container in PROGRAMS.into_iter().map(container).chain([gpu_probe()]) {
        let resources = &container["resources"];
        for amount in [
            &resources["requests"]["cpu"],
            &resources["requests"]["memory"],
            &resources["limits"]["memory"],
        ] {
            assert!(amount.is_string(), "{}: {resources}", container["name"]);
        }
    }
}

/// What starts a container counts as its memory too (<https://github.com/opencontainers/runc/issues/1980>), and a
/// kernel with pages of 64 KiB rounds up what a process takes.
#[test]
fn the_exporters_containers_have_12_mib_beyond_what_the_program_plans_with() {
    let planned = node_exporter_plus::config::Config::default().memory_limit();
    let limit = format!("{}Mi", (planned >> 20) + 12);
    let pod = pod("node-exporter-plus");
    for containers in ["initContainers", "containers"] {
        assert_eq!(pod[containers][0]["resources"]["limits"]["memory"], limit, "{containers}");
    }
}

#[test]
fn probes_ask_the_admin_port() {
    for program in PROGRAMS {
        let container = container(program);
        for (probe, path) in [("livenessProbe", "/livez"), ("readinessProbe", "/readyz")] {
            assert_eq!(container[probe]["httpGet"]["path"], path, "{program}");
            assert_eq!(container[probe]["httpGet"]["port"], "admin", "{program}");
        }
        assert!(ports(program).iter().any(|(name, _)| name == "admin"), "{program}");
    }
}

#[test]
fn on_the_host_network_the_ports_are_the_hosts() {
    for port in container("node-exporter-plus")["ports"].as_array().unwrap() {
        assert_eq!(port["hostPort"], port["containerPort"]);
    }
}

#[test]
fn each_service_targets_the_port_of_its_program() {
    let services = of_kind("Service");
    assert_eq!(services.len(), 2);
    let wanted = [
        ("annotator", "workloads"),
        ("scheduler-extender", "verbs"),
        ("scheduler-extender", "inspect"),
    ];
    for (program, wanted) in wanted {
        let service = services.iter().find(|service| service["metadata"]["name"] == program);
        let spec = &service.unwrap()["spec"];
        assert_eq!(spec["selector"]["app.kubernetes.io/name"], program);
        let mut of_service = spec["ports"].as_array().unwrap().iter();
        let port = of_service.find(|port| port["targetPort"] == wanted).unwrap();
        let of_program = ports(program).into_iter().find(|(name, _)| name == wanted).unwrap().1;
        assert_eq!(port["port"], of_program);
    }
}

#[test]
fn no_update_runs_two_pods_of_one_program_side_by_side_unless_a_lease_chooses_one() {
    for program in PROGRAMS {
        let workload = workload(program);
        let spec = &workload["spec"];
        match workload["kind"].as_str() {
            Some("Deployment") => {
                assert_eq!(spec["replicas"], 2);
                assert_eq!(spec["strategy"]["type"], "RollingUpdate");
                let args = strings(&container(program)["args"]);
                assert!(args.iter().any(|arg| arg.starts_with("--lease-name=")), "{args:?}");
            }
            _ => assert_eq!(spec["updateStrategy"]["rollingUpdate"]["maxSurge"], 0, "{program}"),
        }
    }
}

#[test]
fn a_drain_takes_one_of_two_replicas_at_a_time() {
    let budgets = of_kind("PodDisruptionBudget");
    assert_eq!(budgets.len(), 2);
    for program in ["annotator", "scheduler-extender"] {
        let budget = budgets.iter().find(|budget| budget["metadata"]["name"] == program).unwrap();
        assert_eq!(budget["spec"]["selector"], workload(program)["spec"]["selector"]);
        assert_eq!(budget["spec"]["maxUnavailable"], 1);
        let unready = &budget["spec"]["unhealthyPodEvictionPolicy"];
        assert_eq!(unready, "AlwaysAllow", "two replicas that are not ready hold up no drain");
        let spread = &pod(program)["topologySpreadConstraints"][0];
        assert_eq!(spread["labelSelector"], budget["spec"]["selector"]);
    }
}

/// The ports of a program that its NetworkPolicy opens, each with who gets in.
fn opened(program: &str) -> Vec<(String, Value)> {
    let policies = of_kind("NetworkPolicy");
    let policy = policies.iter().find(|policy| policy["metadata"]["name"] == program).unwrap();
    let spec = &policy["spec"];
    assert_eq!(spec["podSelector"], workload(program)["spec"]["selector"], "{program}");
    assert_eq!(strings(&spec["policyTypes"]), ["Ingress"], "{program}");
    let rules = spec["ingress"].as_array().unwrap().iter();
    rules.flat_map(ports_and_sources).collect()
}

fn ports_and_sources(rule: &Value) -> Vec<(String, Value)> {
    let ports = rule["ports"].as_array().unwrap().clone();
    let from = rule["from"].clone();
    ports
        .into_iter()
        .map(|port| (port["port"].as_str().unwrap().to_owned(), from.clone()))
        .collect()
}

#[test]
fn network_policies_open_every_port_of_a_program_and_no_other() {
    for program in PROGRAMS.into_iter().filter(|program| *program != "node-exporter-plus") {
        let mut opened: Vec<String> = opened(program).into_iter().map(|(port, _)| port).collect();
        let mut ports: Vec<String> = ports(program).into_iter().map(|(name, _)| name).collect();
        opened.sort();
        ports.sort();
        assert_eq!(opened, ports, "{program}");
    }
}

#[test]
fn what_tells_of_workloads_is_open_to_those_that_ask_alone() {
    let asking = [pods_of("scheduler-extender"), pods_of("annotator")];
    assert_eq!(sources_of_port("annotator", "workloads"), serde_json::json!(asking));
    // A pod's author chooses its labels, but not the name of its namespace.
    let descheduler = &sources_of_port("scheduler-extender", "inspect")[0];
    let pod = &descheduler["podSelector"]["matchLabels"];
    assert_eq!(pod["app.kubernetes.io/name"], "descheduler");
    let namespace = &descheduler["namespaceSelector"]["matchLabels"];
    assert_eq!(namespace["kubernetes.io/metadata.name"], "descheduler");
    for program in ["annotator", "scheduler-extender", "gpushare-device-plugin"] {
        assert!(sources_of_port(program, "admin").is_null(), "{program}: probes and scrapes");
    }
}

fn sources_of_port(program: &str, wanted: &str) -> Value {
    let found = opened(program).into_iter().find(|(port, _)| port == wanted);
    found.unwrap().1
}

fn pods_of(program: &str) -> Value {
    serde_json::json!({"podSelector": workload(program)["spec"]["selector"]})
}

/// The queue of the API server that each request of a program waits in, by user, verb, group and resource.
fn queue(user: &str, verb: &str, group: &str, resource: &str) -> Option<String> {
    let mut schemas = of_kind("FlowSchema");
    schemas.sort_by_key(|schema| schema["spec"]["matchingPrecedence"].as_u64());
    let found = schemas.iter().find(|schema| {
        let mut rules = schema["spec"]["rules"].as_array().unwrap().iter();
        rules.any(|rule| is_about(rule, user) && covers(rule, verb, group, resource))
    })?;
    found["spec"]["priorityLevelConfiguration"]["name"].as_str().map(str::to_owned)
}

/// Whether a rule of a flow schema is about this service account.
fn is_about(rule: &Value, user: &str) -> bool {
    let subjects = rule["subjects"].as_array().unwrap().iter();
    let mut accounts = subjects.map(|subject| &subject["serviceAccount"]);
    accounts.any(|account| account["namespace"] == "plimsoll" && account["name"] == user)
}

/// Whether a rule of a flow schema covers requests with this verb about this resource.
fn covers(rule: &Value, verb: &str, group: &str, resource: &str) -> bool {
    rule["resourceRules"].as_array().unwrap().iter().any(|rule| {
        has_name(&rule["verbs"], verb)
            && has_name(&rule["apiGroups"], group)
            && has_name(&rule["resources"], resource)
    })
}

fn has_name(list: &Value, wanted: &str) -> bool {
    strings(list).iter().any(|name| name == wanted)
}

#[test]
fn leases_and_bindings_do_not_wait_behind_the_requests_of_other_service_accounts() {
    for program in ["annotator", "scheduler-extender"] {
        for verb in ["get", "create", "update"] {
            let level = queue(program, verb, "coordination.k8s.io", "leases");
            assert_eq!(level.as_deref(), Some("leader-election"), "{program}: {verb}");
        }
    }
    for (verb, resource) in [
        ("create", "pods/binding"),
        ("create", "pods/eviction"),
        ("get", "pods"),
        ("watch", "pods"),
        ("list", "nodes"),
    ] {
        let level = queue("scheduler-extender", verb, "", resource);
        assert_eq!(level.as_deref(), Some("workload-high"), "{verb} {resource}");
    }
    assert_eq!(queue("annotator", "patch", "", "nodes"), None);
    assert_eq!(queue("gpushare-device-plugin", "patch", "", "pods"), None);
    assert_eq!(queue("node-exporter-plus", "get", "coordination.k8s.io", "leases"), None);
}
