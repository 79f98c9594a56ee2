//! How each pod runs: its rights on the node, probes, resources, updates and network.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, PodTemplate, ResourceQuota, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::flowcontrol::v1::FlowSchema;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaimTemplate};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::manifests::{
    MODES, Manifests, PROGRAMS, container, gpu_probe, objects, of_kind, pod, ports, read, strings,
    workload,
};

/// Parses into Kubernetes' own type and writes it again: a field that the type does not have is lost.
fn through<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
    let typed: T = serde_json::from_value(object.clone())
        .unwrap_or_else(|error| panic!("{error} in {object:#}"));
    serde_json::to_value(typed).unwrap()
}

/// Writes an object anew by the type of its kind.
macro_rules! by_kind {
    ($object:expr, [$($kind:ident),*], $other:expr) => {
        match $object["kind"].as_str().unwrap() {
            $(stringify!($kind) => through::<$kind>($object),)*
            other => $other(other),
        }
    };
}

/// The kinds of objects that are not of Kubernetes itself.
const OF_OTHERS: [&str; 8] = [
    "CapacityBuffer",
    "Certificate",
    "Issuer",
    "MachineDeployment",
    "NodeOverlay",
    "PodMonitor",
    "PrometheusRule",
    "SecurityContextConstraints",
];

/// Fails where Kubernetes knows a field of an object not.
pub(crate) fn assert_known(manifests: &Manifests) {
    for object in manifests.objects() {
        let of_others = |kind: &str| {
            assert!(OF_OTHERS.contains(&kind), "a {kind} that no test looks at");
            object.clone()
        };
        let known = by_kind!(
            object,
            [
                ClusterRole,
                ClusterRoleBinding,
                ConfigMap,
                DaemonSet,
                Deployment,
                DeviceClass,
                FlowSchema,
                MutatingAdmissionPolicy,
                MutatingAdmissionPolicyBinding,
                Namespace,
                NetworkPolicy,
                PodDisruptionBudget,
                PodTemplate,
                PriorityClass,
                ResourceClaimTemplate,
                ResourceQuota,
                Role,
                RoleBinding,
                Secret,
                Service,
                ServiceAccount,
                ValidatingAdmissionPolicy,
                ValidatingAdmissionPolicyBinding
            ],
            of_others
        );
        assert_eq!(known, *object);
    }
}

#[test]
fn every_field_is_one_that_kubernetes_knows() {
    for mode in MODES {
        assert_known(Manifests::of_mode(mode));
    }
    assert_known(Manifests::of_mps());
    assert_known(Manifests::of_claims());
    let files =
        ["descheduler/descheduler.yaml", "claims/share.yaml", "claims/units-as-claims.yaml"];
    let mut samples = files.map(str::to_owned).to_vec();
    samples.extend(crate::autoscalers::files().iter().map(|file| format!("autoscalers/{file}")));
    for sample in samples {
        assert_known(&Manifests::of_text(&read(&format!("samples/{sample}"))));
    }
    for sample in ["namespace-nodes", "scheduler-name", "tolerate-hot-nodes"] {
        let sample = Manifests::of_text(&read(&format!("samples/{sample}.yaml")));
        assert_known(&sample);
        let [policy, binding] = sample.objects() else { panic!("not a policy and its binding") };
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
    let mut names: Vec<Value> = objects()
        .iter()
        .filter(|object| object["spec"]["template"].is_object())
        .map(|object| object["metadata"]["name"].clone())
        .collect();
    names.sort_by_key(Value::to_string);
    assert_eq!(names, PROGRAMS);
}

#[test]
fn everything_is_labelled_and_lives_in_the_namespace() {
    for mode in MODES {
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
    let mut annotator = none.workload("annotator");
    let env = annotator["spec"]["template"]["spec"]["containers"][0]["env"].take();
    let taints = json!([{"name": "PLIMSOLL_TAINT_HOT_NODES", "value": "PreferNoSchedule"}]);
    assert_eq!(env, taints);
    let mut with_extender = workload("annotator");
    with_extender["spec"]["template"]["spec"]["containers"][0]["env"] = Value::Null;
    assert_eq!(annotator, with_extender);
    let [leases] = &none.of_kind("FlowSchema")[..] else { panic!("one flow schema") };
    let subjects = leases["spec"]["rules"][0]["subjects"].as_array().unwrap();
    let [subject] = &subjects[..] else { panic!("{leases}") };
    assert_eq!(subject["serviceAccount"]["name"], "annotator");
}

/// The label by which scrapes and people tell programs apart, whatever their workloads are called.
const COMPONENT: &str = "app.kubernetes.io/component";

#[test]
fn selectors_and_components_are_of_one_program_each() {
    let daemon = Manifests::of_mps().workload("mps-control-daemon");
    let mut components = vec![daemon["spec"]["template"]["metadata"]["labels"][COMPONENT].clone()];
    for program in PROGRAMS {
        let workload = workload(program);
        let labels = &workload["spec"]["template"]["metadata"]["labels"];
        let selector = workload["spec"]["selector"]["matchLabels"].as_object().unwrap();
        assert_eq!(selector["app.kubernetes.io/name"], program);
        assert!(selector.iter().all(|(key, value)| labels[key] == *value), "{program}");
        let component = &workload["metadata"]["labels"][COMPONENT];
        assert!(component.is_string() && !components.contains(component), "{component}");
        assert_eq!(labels[COMPONENT], *component, "{program}");
        components.push(component.clone());
        for object in objects() {
            if object["metadata"]["labels"]["app.kubernetes.io/name"] == program {
                assert_eq!(object["metadata"]["labels"][COMPONENT], *component, "{object:#}");
            }
        }
    }
}

/// The kernel lets a process read the memory, the environment and the files of every other process with its user and
/// group, through the host's /proc too, which the exporter mounts.
#[test]
fn no_two_programs_share_a_user_or_a_group_nor_have_that_of_other_images() {
    let descheduler = Manifests::of_text(&read("samples/descheduler/descheduler.yaml"));
    for part in ["runAsUser", "runAsGroup"] {
        // 65532 is `nonroot` of distroless images, 65534 `nobody`.
        let mut numbers: Vec<u64> = vec![65_532, 65_534];
        let pods = PROGRAMS.map(pod).into_iter();
        let others = [gpu_probe(), descheduler.pod("descheduler")];
        for of in pods.chain(others).chain([crate::second_scheduler::pod_of_it()]) {
            numbers.push(of["securityContext"][part].as_u64().unwrap());
        }
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count, "{part}: {numbers:?}");
    }
    let exporter = pod("node-exporter-plus");
    let user = format!("--storage.prepare={}", exporter["securityContext"]["runAsUser"]);
    assert!(strings(&exporter["initContainers"][0]["args"]).contains(&user), "{user}");
}

/// A container that mounts something where the token goes gets none: Kubernetes' admission plugin ServiceAccount.
#[test]
fn gpu_probe_has_no_token_and_shares_the_plugins_socket_alone() {
    let probe = gpu_probe();
    let mounts = probe["volumeMounts"].as_array().unwrap();
    let at = |path: &str| &mounts.iter().find(|mount| mount["mountPath"] == path).unwrap()["name"];
    let volumes = pod("gpushare-device-plugin")["volumes"].clone();
    let named = |name: &Value| {
        volumes.as_array().unwrap().iter().find(|volume| volume["name"] == *name).unwrap().clone()
    };
    for path in ["/var/run/secrets/kubernetes.io/serviceaccount", "/run/plimsoll-contexts"] {
        let memory = json!({"medium": "Memory", "sizeLimit": "1Mi"});
        assert_eq!(named(at(path))["emptyDir"], memory, "{path}");
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

/// Where the runtime cannot do it, what is mounted below a read-only folder stays as writable as it is on the host.
#[test]
fn host_folders_are_these_and_writable_only_where_something_is_written() {
    let mut found = Vec::new();
    for program in PROGRAMS {
        let (pod, container) = (pod(program), container(program));
        for volume in pod["volumes"].as_array().into_iter().flatten() {
            let mounts = container["volumeMounts"].as_array().unwrap();
            let Some(mount) = mounts.iter().find(|mount| mount["name"] == volume["name"]) else {
                continue;
            };
            assert!(mount["mountPropagation"].is_null(), "which excludes it: {mount}");
            let path = volume["hostPath"]["path"].as_str();
            let kind = volume["hostPath"]["type"].as_str().unwrap_or_default();
            let is_read = mount["readOnly"] == true;
            let recursive = is_read && kind.starts_with("Directory");
            let wanted = if recursive { "IfPossible".into() } else { Value::Null };
            assert_eq!(mount["recursiveReadOnly"], wanted, "{program}: {mount}");
            let mode = if is_read { "read" } else { "write" };
            found.extend(path.map(|path| format!("{program} {mode} {path}")));
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

/// What starts a container counts as its memory too (<https://github.com/opencontainers/runc/issues/1980>), and a
/// kernel with pages of 64 KiB rounds up what a process takes.
#[test]
fn containers_have_requests_and_a_memory_limit() {
    for container in PROGRAMS.into_iter().map(container).chain([gpu_probe()]) {
        for amount in ["/requests/cpu", "/requests/memory", "/limits/memory"] {
            let found = container["resources"].pointer(amount);
            assert!(found.is_some_and(Value::is_string), "{}: {amount}", container["name"]);
        }
    }
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
    }
    for port in container("node-exporter-plus")["ports"].as_array().unwrap() {
        assert_eq!(port["hostPort"], port["containerPort"], "on the host's network");
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
        assert_eq!(spec["selector"], workload(program)["spec"]["selector"]["matchLabels"]);
        let mut of_service = spec["ports"].as_array().unwrap().iter();
        let port = of_service.find(|port| port["targetPort"] == wanted).unwrap();
        let of_program = ports(program).into_iter().find(|(name, _)| name == wanted).unwrap().1;
        assert_eq!(port["port"], of_program);
    }
}

#[test]
fn updates_and_drains_take_one_pod_at_a_time() {
    let budgets = of_kind("PodDisruptionBudget");
    assert_eq!(budgets.len(), 2);
    for program in PROGRAMS {
        let workload = workload(program);
        let spec = &workload["spec"];
        if workload["kind"] == "DaemonSet" {
            assert_eq!(spec["updateStrategy"]["rollingUpdate"]["maxSurge"], 0, "{program}");
            continue;
        }
        assert_eq!(
            (&spec["replicas"], &spec["strategy"]["type"]),
            (&json!(2), &json!("RollingUpdate"))
        );
        let args = strings(&container(program)["args"]);
        assert!(args.iter().any(|arg| arg.starts_with("--lease-name=")), "{args:?}");
        let budget = budgets.iter().find(|budget| budget["metadata"]["name"] == program).unwrap();
        // Two replicas that are not ready hold up no drain.
        let wanted = json!({
            "maxUnavailable": 1, "selector": spec["selector"],
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        });
        assert_eq!(budget["spec"], wanted);
        let spread = &pod(program)["topologySpreadConstraints"][0];
        assert_eq!(spread["labelSelector"], spec["selector"]);
    }
}

/// The ports of a program that its NetworkPolicy opens, each with who gets in.
fn opened(program: &str) -> Vec<(String, Value)> {
    let policies = of_kind("NetworkPolicy");
    let policy = policies.iter().find(|policy| policy["metadata"]["name"] == program).unwrap();
    let spec = &policy["spec"];
    assert_eq!(spec["podSelector"], workload(program)["spec"]["selector"], "{program}");
    assert_eq!(strings(&spec["policyTypes"]), ["Ingress"], "{program}");
    let mut opened = Vec::new();
    for rule in spec["ingress"].as_array().unwrap() {
        for port in rule["ports"].as_array().unwrap() {
            opened.push((port["port"].as_str().unwrap().to_owned(), rule["from"].clone()));
        }
    }
    opened
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
    let sources = |program: &str, wanted: &str| {
        opened(program).into_iter().find(|(port, _)| port == wanted).unwrap().1
    };
    let pods_of = |program| json!({"podSelector": workload(program)["spec"]["selector"]});
    let asking = json!([pods_of("scheduler-extender"), pods_of("annotator")]);
    assert_eq!(sources("annotator", "workloads"), asking);
    // A pod's author chooses its labels, but not the name of its namespace.
    let descheduler = &sources("scheduler-extender", "inspect")[0];
    let pod = &descheduler["podSelector"]["matchLabels"];
    assert_eq!(pod["app.kubernetes.io/name"], "descheduler");
    let namespace = &descheduler["namespaceSelector"]["matchLabels"];
    assert_eq!(namespace["kubernetes.io/metadata.name"], "descheduler");
    for program in ["annotator", "scheduler-extender", "gpushare-device-plugin"] {
        assert!(sources(program, "admin").is_null(), "{program}: probes and scrapes");
    }
}

/// The queue of the API server that each request of a program waits in, by user, verb, group and resource.
fn queue(user: &str, verb: &str, group: &str, resource: &str) -> Option<String> {
    let has = |list: &Value, wanted: &str| strings(list).iter().any(|name| name == wanted);
    let account = json!({"namespace": "plimsoll", "name": user});
    let is_about = |rule: &Value| {
        let mut subjects = rule["subjects"].as_array().unwrap().iter();
        let mut resources = rule["resourceRules"].as_array().unwrap().iter();
        subjects.any(|subject| subject["serviceAccount"] == account)
            && resources.any(|rule| {
                has(&rule["verbs"], verb)
                    && has(&rule["apiGroups"], group)
                    && has(&rule["resources"], resource)
            })
    };
    let mut schemas = of_kind("FlowSchema");
    schemas.sort_by_key(|schema| schema["spec"]["matchingPrecedence"].as_u64());
    let mut schemas = schemas.iter();
    let found =
        schemas.find(|schema| schema["spec"]["rules"].as_array().unwrap().iter().any(is_about))?;
    found["spec"]["priorityLevelConfiguration"]["name"].as_str().map(str::to_owned)
}

#[test]
fn leases_and_bindings_do_not_wait_behind_the_requests_of_other_service_accounts() {
    const LEASES: &str = "coordination.k8s.io";
    const OWN: Option<&str> = Some("leader-election");
    const HIGH: Option<&str> = Some("workload-high");
    for (user, verb, group, resource, wanted) in [
        ("annotator", "get", LEASES, "leases", OWN),
        ("annotator", "create", LEASES, "leases", OWN),
        ("annotator", "update", LEASES, "leases", OWN),
        ("scheduler-extender", "get", LEASES, "leases", OWN),
        ("scheduler-extender", "create", LEASES, "leases", OWN),
        ("scheduler-extender", "update", LEASES, "leases", OWN),
        ("scheduler-extender", "create", "", "pods/binding", HIGH),
        ("scheduler-extender", "create", "", "pods/eviction", HIGH),
        ("scheduler-extender", "get", "", "pods", HIGH),
        ("scheduler-extender", "watch", "", "pods", HIGH),
        ("scheduler-extender", "list", "", "nodes", HIGH),
        ("annotator", "patch", "", "nodes", None),
        ("gpushare-device-plugin", "patch", "", "pods", None),
        ("node-exporter-plus", "get", LEASES, "leases", None),
    ] {
        let level = queue(user, verb, group, resource);
        assert_eq!(level.as_deref(), wanted, "{user}: {verb} {resource}");
    }
}
