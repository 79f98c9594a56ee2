//! The kube-scheduler of `scheduler.mode` second: rights that follow the API server's version, a Lease that is not the
//! provider's, and one name for it everywhere.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::manifests::{Manifests, pod, read, strings, workload, yaml};

fn second() -> &'static Manifests {
    Manifests::of_mode("second")
}

/// What pods name in `spec.schedulerName`.
const NAME: &str = "plimsoll-scheduler";

/// Its object of a kind.
fn object(kind: &str) -> Value {
    second().object(kind, "kube-scheduler")
}

pub(crate) fn pod_of_it() -> Value {
    object("Deployment")["spec"]["template"]["spec"].clone()
}

fn configuration() -> Value {
    let text = object("ConfigMap")["data"]["config.yaml"].clone();
    serde_saphyr::from_str(text.as_str().expect("a text")).expect("YAML")
}

/// A copy of these roles would miss what a later kube-scheduler needs, as the binding of resource claims of 1.36.
#[test]
fn its_rights_are_the_api_servers_own_roles_and_no_copy() {
    let of_it = second().objects().iter().filter(|object| {
        object["roleRef"].is_object()
            && object["metadata"]["labels"]["app.kubernetes.io/name"] == "kube-scheduler"
    });
    let bindings: Vec<&Value> = of_it.collect();
    let mut bound: Vec<String> = Vec::new();
    for binding in bindings {
        let [subject] = &binding["subjects"].as_array().unwrap()[..] else { panic!("{binding}") };
        let account = json!({
            "kind": "ServiceAccount", "name": "kube-scheduler", "namespace": "plimsoll"
        });
        assert_eq!(*subject, account);
        let namespace = binding["metadata"]["namespace"].as_str().unwrap_or("everywhere");
        let role = &binding["roleRef"];
        bound.push(format!("{namespace} {} {}", text(&role["kind"]), text(&role["name"])));
    }
    bound.sort_unstable();
    assert_eq!(
        bound,
        [
            "everywhere ClusterRole system:kube-scheduler",
            "everywhere ClusterRole system:volume-scheduler",
            "kube-system Role extension-apiserver-authentication-reader",
            "plimsoll Role kube-scheduler",
        ]
    );
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

/// The built-in role lets it update a Lease of kube-scheduler's default name alone, so its own needs a Role.
#[test]
fn it_holds_a_lease_of_its_own_and_may_update_that_one() {
    let lease = &configuration()["leaderElection"];
    let wanted =
        json!({"leaderElect": true, "resourceName": NAME, "resourceNamespace": "plimsoll"});
    assert_eq!(*lease, wanted);
    let role = object("Role");
    assert_eq!(role["metadata"]["namespace"], lease["resourceNamespace"]);
    let rule = json!({
        "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
        "resourceNames": [lease["resourceName"]], "verbs": ["get", "update"]
    });
    assert_eq!(role["rules"], json!([rule]));
}

#[test]
fn its_two_pods_run_like_those_of_the_programs() {
    let deployment = object("Deployment");
    assert_eq!(deployment["spec"]["replicas"], 2);
    let extender = workload("scheduler-extender");
    assert_eq!(deployment["spec"]["strategy"], extender["spec"]["strategy"]);
    let of_extender = pod("scheduler-extender");
    let of_it = pod_of_it();
    for part in [
        "automountServiceAccountToken",
        "enableServiceLinks",
        "priorityClassName",
        "nodeSelector",
        "tolerations",
    ] {
        assert_eq!(of_it[part], of_extender[part], "{part}");
    }
    let context = &of_it["containers"][0]["securityContext"];
    assert_eq!(*context, of_extender["containers"][0]["securityContext"]);
    let budget = object("PodDisruptionBudget");
    assert_eq!(budget["spec"]["maxUnavailable"], 1);
    let selector = &deployment["spec"]["selector"];
    assert_eq!(budget["spec"]["selector"], *selector);
    assert_eq!(of_it["topologySpreadConstraints"][0]["labelSelector"], *selector);
    assert_eq!(deployment["spec"]["template"]["metadata"]["labels"], selector["matchLabels"]);
    assert_eq!(object("NetworkPolicy")["spec"]["podSelector"], *selector);
}

#[test]
fn it_is_probed_on_its_secure_port_as_kubeadm_probes_it() {
    let container = pod_of_it()["containers"][0].clone();
    let port = json!([{"name": "secure", "containerPort": 10259, "protocol": "TCP"}]);
    assert_eq!(container["ports"], port);
    for (probe, path) in
        [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")]
    {
        let asked = json!({"path": path, "port": "secure", "scheme": "HTTPS"});
        assert_eq!(container[probe]["httpGet"], asked, "{probe}");
    }
    let opened = &object("NetworkPolicy")["spec"]["ingress"];
    assert_eq!(*opened, json!([{"ports": [{"port": "secure", "protocol": "TCP"}]}]));
}

#[test]
fn it_reads_the_configuration_and_the_certificate_that_are_mounted() {
    let pod = pod_of_it();
    let container = &pod["containers"][0];
    assert_eq!(container["command"], json!(["kube-scheduler"]));
    assert_eq!(container["args"], json!(["--config=/etc/kube-scheduler/config.yaml"]));
    let mounts = container["volumeMounts"].as_array().unwrap().iter();
    let mounts: Vec<(&str, &str)> =
        mounts.map(|mount| (text(&mount["name"]), text(&mount["mountPath"]))).collect();
    let certificates = "/etc/kubernetes/plimsoll";
    assert_eq!(mounts, [("config", "/etc/kube-scheduler"), ("certificates", certificates)]);
    assert_eq!(pod["volumes"][0]["configMap"]["name"], "kube-scheduler");
    assert!(second().has("ConfigMap", "kube-scheduler"));
    let secret = &pod["volumes"][1]["projected"]["sources"][0]["secret"];
    let files = secret["items"].as_array().unwrap().iter();
    let files: BTreeSet<String> =
        files.map(|item| format!("{certificates}/{}", text(&item["path"]))).collect();
    for entry in configuration()["extenders"].as_array().unwrap() {
        assert_eq!(entry["enableHTTPS"], true);
        let tls = &entry["tlsConfig"];
        let named = ["caFile", "certFile", "keyFile"].map(|file| text(&tls[file]).to_owned());
        assert_eq!(BTreeSet::from(named), files);
        let (_, host) = text(&entry["urlPrefix"]).split_once("https://").expect("TLS");
        assert!(host.starts_with(&format!("{}:19100/", text(&tls["serverName"]))), "{host}");
    }
}

/// kube-scheduler reads the CA of its extenders when it starts, and never again.
#[test]
fn it_is_ended_and_started_anew_where_its_ca_is_replaced() {
    let pod = pod_of_it();
    let [it, beside] = &pod["containers"].as_array().unwrap()[..] else { panic!("{pod}") };
    assert_eq!(
        beside["image"],
        workload("scheduler-extender")["spec"]["template"]["spec"]["containers"][0]["image"]
    );
    let [command, file, process] = &strings(&beside["args"])[..] else { panic!("{beside}") };
    assert_eq!(command, scheduler_extender::new_ca::COMMAND);
    assert_eq!(*file, configuration()["extenders"][0]["tlsConfig"]["caFile"]);
    assert_eq!(*process, it["command"][0]);
    // By a signal to a process of another container, of the same user; and it sees what that one sees of the file.
    assert_eq!(pod["shareProcessNamespace"], true);
    for container in [it, beside] {
        assert_eq!(container["securityContext"]["runAsUser"], Value::Null);
        assert_eq!(container["securityContext"], it["securityContext"]);
    }
    assert_eq!(beside["volumeMounts"], json!([it["volumeMounts"][1]]));
}

#[test]
fn it_asks_the_extender_what_one_on_the_control_plane_asks() {
    let mut of_it = configuration()["extenders"].clone();
    for entry in of_it.as_array_mut().unwrap() {
        let url = text(&entry["urlPrefix"]).replace("https://", "http://");
        let entry = entry.as_object_mut().unwrap();
        entry.insert("urlPrefix".to_owned(), url.into());
        entry.remove("enableHTTPS").unwrap();
        entry.remove("tlsConfig").unwrap();
    }
    let external = yaml("chart/kube-scheduler/shipped.yaml");
    assert_eq!(of_it, external["extenders"]);
    assert_eq!(configuration()["percentageOfNodesToScore"], external["percentageOfNodesToScore"]);
}

#[test]
fn it_has_one_name_in_its_configuration_and_in_the_policies() {
    assert_eq!(configuration()["profiles"], json!([{"schedulerName": NAME}]));
    let policy =
        second().object("ValidatingAdmissionPolicy", "plimsoll-scheduler-name").to_string();
    assert!(policy.contains(&format!("orValue('') != '{NAME}'")));
    assert!(policy.contains(&format!("`schedulerName: {NAME}`")), "the line to add");
    let sample = read("samples/scheduler-name.yaml");
    assert!(sample.contains(&format!("path: '/spec/schedulerName', value: '{NAME}'")));
}

#[test]
fn the_extenders_verbs_are_open_to_it_and_to_the_other_replica_alone() {
    let policy = second().object("NetworkPolicy", "scheduler-extender");
    let verbs = &policy["spec"]["ingress"][1];
    assert_eq!(verbs["ports"][0]["port"], "verbs");
    let own = json!({"podSelector": object("Deployment")["spec"]["selector"]});
    let replica = json!({"podSelector": workload("scheduler-extender")["spec"]["selector"]});
    assert_eq!(verbs["from"], json!([own, replica]));
}

/// Its requests wait where those of the provider's do.
#[test]
fn the_api_servers_queues_are_those_of_the_providers_scheduler() {
    let account = json!({
        "kind": "ServiceAccount",
        "serviceAccount": {"namespace": "plimsoll", "name": "kube-scheduler"},
    });
    for name in ["plimsoll-leases", "plimsoll-scheduling"] {
        let rules = second().object("FlowSchema", name)["spec"]["rules"].clone();
        let subjects = rules.as_array().unwrap().iter().map(|rule| &rule["subjects"]);
        let mut subjects = subjects.flat_map(|subjects| subjects.as_array().unwrap());
        assert!(subjects.any(|subject| *subject == account), "{name}");
    }
}
