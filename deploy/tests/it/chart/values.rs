//! Wrong values are refused with what to change, every value does something, and the namespace is the release's.

use std::fs;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::files::leaves;
use super::render::{HELMS, chart, chart_objects, helm, objects, stderr, stdout, template};
use crate::manifests::{read, yaml};

/// The standard error of Helm, which must refuse these values.
fn refused(by: &str, values: &[&str]) -> String {
    let args: Vec<&str> = values.iter().flat_map(|value| ["--set-json", value]).collect();
    let output = template(by, "plimsoll", &args);
    assert!(!output.status.success(), "{by} takes {values:?}");
    stderr(&output)
}

#[test]
#[ignore = "make chart"]
fn the_schema_refuses_what_is_misspelt_or_of_another_kind() {
    // Each with the place that the error names.
    let wrong = [
        (r#"imagee={}"#, "imagee"),
        (r#"image.registri="x.example.com""#, "registri"),
        (r#"image.registry="https://registry.example.com""#, "registry"),
        (r#"image.registry="registry.example.com/plimsoll/""#, "registry"),
        (r#"image.tag="a:b""#, "tag"),
        (r#"image.pullPolicy="Sometimes""#, "pullPolicy"),
        (r#"image.architecture="x86_64""#, "architecture"),
        (r#"image.pullSecrets=[{"name":"x"}]"#, "pullSecrets"),
        (r#"nodeAgents.namespace="Agents""#, "namespace"),
        (r#"nodeAgents.create=true"#, "create"),
        (r#"scheduler.mode="both""#, "mode"),
        (r#"scheduler.name="mine""#, "name"),
        (r#"scheduler.image="kube-scheduler""#, "image"),
        (r#"scheduler.image="r.example.com/kube-scheduler@sha256:1""#, "image"),
        (r#"scheduler.setName.namespaces="team-a""#, "namespaces"),
        (r#"scheduler.setName.pods="some""#, "pods"),
        (r#"scheduler.replicas=0"#, "replicas"),
        (r#"policy.text={"kind":"SchedulingPolicy"}"#, "text"),
        (r#"policy.crane="yes""#, "crane"),
        (r#"readings="metrics-server""#, "readings"),
        (r#"readings="prometheus:9090""#, "readings"),
        (r#"gpuNodes.label=true"#, "label"),
        (r#"gpuNodes.find="nfd""#, "find"),
        (r#"gpuNodes.runtimeClass="nvidia""#, "runtimeClass"),
        (r#"extender.replicas=0"#, "replicas"),
        (r#"extender.tls="yes""#, "tls"),
        (r#"extender.resources.limit={}"#, "limit"),
        (r#"extender.resources.limits.memory="640MB""#, "memory"),
        (r#"extender.env.PLIMSOLL_LOG_LEVEL=5"#, "PLIMSOLL_LOG_LEVEL"),
        (r#"extender.env.PLIMSOLL_LEASE_NAME="x""#, "PLIMSOLL_LEASE_NAME"),
        (r#"extender.env.log="x""#, "log"),
        (r#"annotator.taintHotNodes=false"#, "taintHotNodes"),
        (r#"annotator.taintHotNodes="NoExecute""#, "taintHotNodes"),
        (r#"annotator.nodeBands="on""#, "nodeBands"),
        (r#"exporter.port="19101""#, "port"),
        (r#"exporter.port=70000"#, "port"),
        (r#"exporter.nodeSelector={}"#, "nodeSelector"),
        (r#"devicePlugin.kubeletDir="/var/lib/kubelet/""#, "kubeletDir"),
        (r#"claims="yes""#, "claims"),
        (r#"mps.exclusive="auto""#, "exclusive"),
        (r#"podTemplates.extender={}"#, "extender"),
        (r#"podTemplates.annotator.labels={}"#, "labels"),
        (r#"podTemplates.annotator.spec.volumes=[{"emptyDir":{}}]"#, "volumes"),
        (r#"podTemplates.annotator.spec.tolerations=[{"operators":"Exists"}]"#, "operators"),
        (r#"podTemplates.annotator.spec.containers=[{"image":"x"}]"#, "containers"),
        (r#"admission.validationActions=[]"#, "validationActions"),
        (r#"admission.validationActions=["Deny","Deny"]"#, "validationActions"),
        (r#"networkPolicy.enabled=true"#, "enabled"),
        (r#"networkPolicy.controlPlane=["192.0.2.10"]"#, "controlPlane"),
        (r#"monitoring.podMonitors="yes""#, "podMonitors"),
        (r#"monitoring.labels={"release":1}"#, "release"),
        (r#"monitoring.runbookUrl="docs/monitoring.md""#, "runbookUrl"),
        (r#"criticalPodsQuota=true"#, "criticalPodsQuota"),
        (r#"certManager.issuer="AWSPCAIssuer/mine""#, "issuer"),
        (r#"nvmlHostLibrary=true"#, "nvmlHostLibrary"),
    ];
    for by in HELMS {
        for (value, place) in wrong {
            let error = refused(by, &[value]);
            let told = error.contains("values don't meet the specifications of the schema");
            assert!(told && error.contains(place), "{by}, {value}: {error}");
        }
    }
}

#[test]
#[ignore = "make chart"]
fn values_that_contradict_each_other_are_refused_with_what_to_change() {
    let none = r#"scheduler.mode="none""#;
    let metrics = r#"readings="metricsServer""#;
    let config_map = r#"policy.existingConfigMap="mine""#;
    let second = r#"scheduler.mode="second""#;
    let set_name = r#"scheduler.setName.namespaces=["a"]"#;
    let look = r#"gpuNodes.find="look""#;
    let deny = "networkPolicy.deny=true";
    let shared = r#"nodeAgents.namespace="kube-system""#;
    let profile =
        r#"scheduler.configuration="profiles: [{schedulerName: plimsoll-scheduler}, {}]""#;
    let contradictions: [(&[&str], &str); 32] = [
        (&[r#"image.registry="""#], "image.registry is not set: no images are published."),
        (&[r#"image.registry="plimsoll""#], "or docker.io/plimsoll for Docker Hub"),
        (&["policy.crane=true", config_map], "policy.crane and policy.existingConfigMap are set"),
        (&[r#"policy.text="x""#, "policy.crane=true"], "policy.crane and policy.text are set"),
        (&[r#"policy.shadow="x""#, config_map], "put it there as shadow.yaml"),
        (&[metrics, "exporter.gpuSignals=true"], "exporter.gpuSignals is set, and with"),
        (&[metrics, "exporter.hostFileSystems=true"], "exporter.hostFileSystems is set"),
        (&[metrics, "exporter.tls=true"], "or set readings to exporters"),
        (&[look, "exporter.gpuSignals=true"], "exporter.gpuSignals is set, and gpuNodes.find look"),
        (&[r#"certManager.issuer="Issuer/mine""#], "certManager.enabled is false: set it to true"),
        (&[look, "mps.enabled=true"], "mps.enabled is set, and gpuNodes.find look"),
        (&[look, r#"gpuNodes.runtimeClassName="nvidia""#], "to label or hardwareLabels"),
        (&[none, "extender.evictForCards=true"], "extender.evictForCards is set, and with"),
        (&[none, "extender.moveForCards=true"], "extender.moveForCards is set, and with"),
        (&[none, "extender.evictOutsideMps=true"], "extender.evictOutsideMps is set, and with"),
        (&[none, "mps.enabled=true"], "mps.enabled is set"),
        (&[none, "fromGpushare=true"], "fromGpushare is set"),
        (&[none, "devicePlugin.processes=true"], "devicePlugin.processes is set"),
        (
            &[none, "devicePlugin.unhealthyConfigMaps=true"],
            "or set scheduler.mode to external or second",
        ),
        (&[none, r#"policy.shadow="x""#], "policy.shadow is set"),
        (&[second, "extender.tls=false"], "extender.tls is false, and with"),
        (
            &["annotator.nodeBands=true"],
            "annotator.nodeBands is set, and with scheduler.mode external",
        ),
        (&[set_name], "scheduler.setName.namespaces is set, and with scheduler.mode external"),
        (&[none, set_name], "scheduler.setName.namespaces is set, and with scheduler.mode none"),
        (&[r#"scheduler.configuration="x""#], "scheduler.configuration is set"),
        (&[r#"scheduler.image="r.example.com/k:v1.35.0""#], "scheduler.image is set"),
        (&[none, r#"scheduler.image="r.example.com/k:v1""#], "or set scheduler.mode to second"),
        (
            &[second, r#"scheduler.configuration="kind: Mine""#],
            "no profile with schedulerName plimsoll-scheduler",
        ),
        (&[second, profile], "has a profile with schedulerName default-scheduler"),
        (&[shared], "nodeAgents.namespace kube-system is there already"),
        (
            &[shared, "nodeAgents.createNamespace=false", deny],
            "other pods of the namespace kube-system",
        ),
        (&[r#"nodeAgents.namespace="1e3""#], "the namespace 1e3: YAML takes this name for no text"),
    ];
    for by in HELMS {
        for (values, wanted) in contradictions {
            let error = refused(by, values);
            assert!(error.contains(wanted), "{by}, {values:?}: {error}");
        }
    }
}

#[test]
#[ignore = "make chart"]
fn the_chart_passes_helms_own_checks() {
    for by in HELMS {
        for values in ["image.registry=registry.example.com/p", "image.tag=v1"] {
            let output = helm(by, &["lint", "--strict", &chart(), "--set", values]);
            let text = stdout(&output);
            assert!(text.contains("0 chart(s) failed"), "{text}");
        }
    }
}

#[test]
#[ignore = "make chart"]
fn kubernetes_with_a_providers_suffix_is_taken_and_an_older_one_refused() {
    for by in HELMS {
        for version in ["v1.34.0", "v1.36.3-eks-abc123", "v1.34.0-gke.1000000", "v1.35.0+k3s1"] {
            stdout(&template(by, "plimsoll", &["--kube-version", version]));
        }
        let output = template(by, "plimsoll", &["--kube-version", "v1.33.9"]);
        assert!(stderr(&output).contains("incompatible with Kubernetes v1.33.9"));
    }
}

fn image_of_second(by: &str, flags: &[&str]) -> String {
    let args = [&["--set", "scheduler.mode=second"], flags].concat();
    let objects = objects(&stdout(&template(by, "plimsoll", &args)));
    let pod = &objects["apps/v1 Deployment plimsoll/kube-scheduler"]["spec"]["template"]["spec"];
    pod["containers"][0]["image"].as_str().expect("an image").to_owned()
}

/// What providers put behind the version is no part of the published tags.
#[test]
#[ignore = "make chart"]
fn the_second_scheduler_has_the_version_of_the_api_server_without_a_providers_suffix() {
    for by in HELMS {
        for (version, tag) in [
            ("v1.36.3-eks-abc", "v1.36.3"),
            ("v1.34.10-gke.1000000", "v1.34.10"),
            ("v1.35.0+k3s1", "v1.35.0"),
            ("v1.36.3", "v1.36.3"),
        ] {
            let image = image_of_second(by, &["--kube-version", version]);
            assert_eq!(image, format!("registry.k8s.io/kube-scheduler:{tag}"), "{by}");
        }
        let mirror = "mirror.example.com:5000/kube-scheduler";
        let digest = format!("{mirror}@sha256:{}", "0f".repeat(32));
        let tag = format!("{mirror}:v1.35.9");
        let of_server = format!("{mirror}:v1.36.3");
        for (image, wanted) in [(mirror, &of_server), (&tag, &tag), (&digest, &digest)] {
            let set = format!("scheduler.image={image}");
            assert_eq!(image_of_second(by, &["--set", &set]), *wanted);
        }
    }
}

fn configuration_of_second(by: &str, namespace: &str, values: &[&str]) -> String {
    let values = [&["scheduler.mode=second"], values].concat();
    let objects = chart_objects(by, namespace, &values);
    let text = &objects[&format!("v1 ConfigMap {namespace}/kube-scheduler")]["data"]["config.yaml"];
    text.as_str().expect("a text").to_owned()
}

#[test]
#[ignore = "make chart"]
fn the_second_scheduler_has_the_configuration_of_the_policy_and_of_the_namespace() {
    for by in HELMS {
        let shipped = configuration_of_second(by, "plimsoll", &[]);
        for (policy, name) in [(&[][..], "shipped"), (&["policy.crane=true"], "crane")] {
            let text = configuration_of_second(by, "plimsoll", policy);
            let [mut external, it] = [read(&format!("chart/kube-scheduler/{name}.yaml")), text]
                .map(|text| serde_saphyr::from_str::<Value>(&text).expect("YAML"));
            let [of_external, of_it] = [&external, &it].map(asked);
            assert_eq!(of_it, of_external, "{by}, {name}");
            assert_eq!(it["percentageOfNodesToScore"], external["percentageOfNodesToScore"]);
            if external["profiles"].is_array() {
                external["profiles"][0]["schedulerName"] = "plimsoll-scheduler".into();
                assert_eq!(it["profiles"], external["profiles"], "{by}, {name}");
            }
        }
        let own = ["scheduler.configuration=profiles:\n- schedulerName: plimsoll-scheduler"];
        let wanted = "profiles:\n- schedulerName: plimsoll-scheduler\n";
        assert_eq!(configuration_of_second(by, "plimsoll", &own), wanted);
        let elsewhere = configuration_of_second(by, "elsewhere", &[]);
        let wanted = shipped
            .replace("scheduler-extender.plimsoll.svc", "scheduler-extender.elsewhere.svc")
            .replace("resourceNamespace: plimsoll\n", "resourceNamespace: elsewhere\n");
        assert_eq!(elsewhere, wanted);
        assert_eq!(elsewhere.matches("elsewhere").count(), 5);
    }
}

/// What a configuration has kube-scheduler ask the extender, without how.
fn asked(configuration: &Value) -> Value {
    let mut extenders = configuration["extenders"].clone();
    for entry in extenders.as_array_mut().expect("extenders") {
        let entry = entry.as_object_mut().expect("an entry");
        let url = entry["urlPrefix"].as_str().expect("a URL").replace("https://", "http://");
        entry.insert("urlPrefix".to_owned(), url.into());
        entry.retain(|key, _| key != "enableHTTPS" && key != "tlsConfig");
    }
    extenders
}

/// Its scheduler gives these pods a GPU, as crane's policy has it do with pods of crane-scheduler.
#[test]
#[ignore = "make chart"]
fn gpu_pods_may_name_every_profile_of_the_second_scheduler() {
    let own = "scheduler.configuration=profiles:\n- schedulerName: plimsoll-scheduler\n- schedulerName: a'b";
    for by in HELMS {
        for (values, wanted) in [
            (&[][..], "orValue('') != 'plimsoll-scheduler'"),
            (
                &["policy.crane=true"],
                r#"!(object.spec.?schedulerName.orValue('') in ["plimsoll-scheduler","crane-scheduler"])"#,
            ),
            (&[own], r#".orValue('') in ["plimsoll-scheduler","a'b"])"#),
        ] {
            let values = [&["scheduler.mode=second"], values].concat();
            let objects = chart_objects(by, "plimsoll", &values);
            let key = "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy -/plimsoll-scheduler-name";
            let condition = &objects[key]["spec"]["matchConditions"][0];
            assert_eq!(condition["name"], "names-another-scheduler");
            let expression = condition["expression"].as_str().expect("a text");
            assert!(expression.ends_with(wanted), "{by}, {values:?}: {expression}");
        }
    }
}

/// A policy for all pods of kube-system, or a level for all of it, stops the cluster.
#[test]
#[ignore = "make chart"]
fn a_namespace_of_others_too_is_neither_made_nor_closed() {
    for by in HELMS {
        for namespace in ["kube-system", "default"] {
            stdout(&template(by, namespace, &[]));
            for (value, wanted) in [
                ("namespace.create=true", "namespace.create is set, and the namespace"),
                ("networkPolicy.deny=true", "networkPolicy.deny is set, and would cut off"),
            ] {
                let error = stderr(&template(by, namespace, &["--set", value]));
                assert!(error.contains(wanted), "{by}, {namespace}, {value}: {error}");
            }
        }
    }
}

const SET_NAME: [&str; 2] = ["scheduler.mode=second", "scheduler.setName.namespaces={team-a}"];

#[test]
#[ignore = "make chart"]
fn the_chart_gives_pods_the_schedulers_name_as_the_sample_does() {
    let sample = objects(&read("samples/scheduler-name.yaml"));
    assert_eq!(sample.len(), 2);
    for by in HELMS {
        let chart = chart_objects(by, "plimsoll", &SET_NAME);
        for (key, object) in &sample {
            assert_eq!(chart.get(key), Some(object), "{by}: {key}");
        }
        let without = chart_objects(by, "plimsoll", &SET_NAME[..1]);
        assert!(!without.keys().any(|key| sample.contains_key(key)), "off by itself");
    }
}

#[test]
#[ignore = "make chart"]
fn pods_get_the_schedulers_name_by_the_version_of_the_policy_that_the_api_server_has() {
    let v1beta1 = "admissionregistration.k8s.io/v1beta1";
    let has = format!("{v1beta1}/MutatingAdmissionPolicy");
    let set: Vec<&str> = SET_NAME.iter().flat_map(|value| ["--set", value]).collect();
    let old = ["--kube-version", "v1.35.2-eks-abc"];
    for by in HELMS {
        let error = stderr(&template(by, "plimsoll", &[&set[..], &old].concat()));
        assert!(error.contains("the API server has no MutatingAdmissionPolicy"), "{error}");
        let flags = [&set[..], &old, &["--api-versions", &has]].concat();
        let objects = objects(&stdout(&template(by, "plimsoll", &flags)));
        let key = format!("{v1beta1} MutatingAdmissionPolicy -/plimsoll-scheduler-name");
        assert!(objects.contains_key(&key), "{by}: {:?}", objects.keys());
    }
}

/// Without it GKE refuses pods of the classes that all programs have. Helm 3 takes a cluster's own version with its
/// suffix too, but drops the suffix of `--kube-version`.
#[test]
#[ignore = "make chart"]
fn the_quota_of_critical_pods_is_there_on_gke_and_where_it_is_asked_for() {
    for (by, version, quota, is_there) in [
        ("HELM4", "v1.34.0-gke.1000000", "auto", true),
        ("HELM4", "v1.34.0-gke.1000000", "never", false),
        ("HELM4", "v1.36.3-eks-abc123", "auto", false),
        ("HELM3", "v1.36.3", "auto", false),
        ("HELM3", "v1.36.3", "always", true),
    ] {
        let quota = format!("criticalPodsQuota={quota}");
        let args = ["--kube-version", version, "--set", &quota];
        let text = stdout(&template(by, "plimsoll", &args));
        assert_eq!(text.contains("kind: ResourceQuota"), is_there, "{by}, {version}, {quota}");
    }
}

#[test]
#[ignore = "make chart"]
fn images_of_one_architecture_run_on_its_nodes_alone_and_no_other_node_is_measured() {
    let mut values = vec!["image.architecture=arm64", "mps.enabled=true"];
    values.extend(["exporter.gpuSignals=true", "scheduler.mode=second"]);
    for by in HELMS {
        let objects = chart_objects(by, "plimsoll", &values);
        let mut count = 0;
        for (key, object) in &objects {
            let pod = &object["spec"]["template"]["spec"];
            if pod.is_object() {
                assert_eq!(pod["nodeSelector"]["kubernetes.io/arch"], "arm64", "{by}, {key}");
                count += 1;
            }
        }
        assert_eq!(count, 7, "{by}");
        let annotator = &objects["apps/v1 Deployment plimsoll/annotator"]["spec"]["template"];
        let measured = annotator.to_string();
        assert!(measured.contains("compute-type!=fargate,kubernetes.io/arch=arm64"), "{measured}");
    }
}

/// Programs read the Secrets that cert-manager writes.
#[test]
#[ignore = "make chart"]
fn certificates_are_written_to_the_secrets_that_the_programs_mount() {
    let values = ["certManager.enabled=true,exporter.tls=true,certManager.issuer=Issuer/mine"];
    let objects = chart_objects("HELM3", "elsewhere", &values);
    let of =
        |name: &str| &objects[&format!("cert-manager.io/v1 Certificate elsewhere/{name}")]["spec"];
    for name in ["scheduler-extender-tls", "kube-scheduler-tls", "exporter-tls"] {
        assert_eq!(of(name)["secretName"], name);
        assert_eq!(of(name)["issuerRef"]["kind"], "Issuer", "{name}");
        assert_eq!(of(name)["issuerRef"]["name"], "mine", "{name}");
    }
    let names = &of("scheduler-extender-tls")["dnsNames"];
    assert_eq!(*names, serde_json::json!(["scheduler-extender.elsewhere.svc"]));
    assert!(!objects.keys().any(|key| key.contains(" Issuer ")), "the CA is another's");
}

/// The values of many components, of which each pair goes together.
pub(super) const MANY: [&str; 26] = [
    "namespace.create=true",
    "scheduler.mode=second",
    "scheduler.setName.namespaces={team-a}",
    "exporter.gpuSignals=true",
    "exporter.hostFileSystems=true",
    "exporter.tls=true",
    "mps.enabled=true",
    "claims=true",
    "devicePlugin.processes=true",
    "devicePlugin.unhealthyConfigMaps=true",
    "gpuNodes.runtimeClassName=nvidia",
    "policy.shadow=x",
    "fromGpushare=true",
    "networkPolicy.deny=true",
    "criticalPodsQuota=always",
    "certManager.enabled=true",
    "openshift=true",
    "extender.evictForCards=true",
    "extender.moveForCards=true",
    "extender.evictOutsideMps=true",
    "annotator.taintHotNodes=NoSchedule",
    "annotator.nodeBands=true",
    "nvmlHostLibrary=/nvml",
    "monitoring.podMonitors=true",
    "monitoring.rules=true",
    "monitoring.dashboards=true",
];

/// What has the project's name in it and is no namespace: names of objects, taints and metrics, the domain of
/// annotations, folders, images, and the label of all objects.
fn is_no_namespace(word: &str) -> bool {
    let starts = [
        "plimsoll-",
        "plimsoll.dev",
        "gpu.plimsoll.dev",
        "gpu-share.plimsoll.dev",
        "/etc/plimsoll",
        "/etc/kubernetes/plimsoll",
        "/run/plimsoll",
    ];
    starts.iter().any(|start| word.starts_with(start))
        || ["plimsoll_", "plimsoll:slo", "monitoring.md#plimsoll"]
            .iter()
            .any(|it| word.contains(it))
        || word.starts_with("--storage.file=/run/plimsoll/")
        || word.starts_with("--context-probe-socket=/run/plimsoll-")
        || word.starts_with("--policy-file=/etc/plimsoll/")
        || word.starts_with("--lease-name=plimsoll-")
        || word.starts_with("registry.example.com/plimsoll/")
        || word == "status-taint.cluster-autoscaler.kubernetes.io/plimsoll-hot"
}

/// Whether an object has the project's plain name at this place.
fn is_name(object: &str, path: &str) -> bool {
    path.ends_with("/app.kubernetes.io/part-of")
        || path == "/metadata/labels/app.kubernetes.io/name" && object.starts_with("v1 Namespace ")
        || path == "/metadata/name" && object.contains(" SecurityContextConstraints ")
        || path == "/metadata/name" && object.contains(" PrometheusRule ")
}

/// The words of texts and keys with the project's name, each with where it is.
fn named(value: &Value, path: &str, found: &mut Vec<(String, String)>) {
    match value {
        Value::String(text) => {
            let words = text.split([' ', '\n', '\'', '"', ',', '(', ')']);
            let words = words.filter(|word| word.contains("plimsoll"));
            found.extend(words.map(|word| (path.to_owned(), word.to_owned())));
        }
        Value::Array(items) => items.iter().for_each(|item| named(item, path, found)),
        Value::Object(fields) => {
            for (key, field) in fields {
                named(&Value::String(key.clone()), path, found);
                named(field, &format!("{path}/{key}"), found);
            }
        }
        _ => {}
    }
}

#[test]
#[ignore = "make chart"]
fn a_release_elsewhere_names_no_namespace_plimsoll() {
    for by in HELMS {
        let with_agents = [&MANY[..], &["nodeAgents.namespace=agents"]].concat();
        for values in
            [&[][..], &MANY, &with_agents, &["scheduler.mode=none"], &["readings=metricsServer"]]
        {
            let objects = chart_objects(by, "elsewhere", values);
            assert!(objects.keys().any(|key| key.contains(" elsewhere/annotator")));
            for (key, object) in objects {
                // The texts of the policy tell of files of the project.
                if key.contains("ConfigMap") {
                    assert!(key.contains(" elsewhere/"), "{key}");
                    continue;
                }
                let mut words = Vec::new();
                named(&object, "", &mut words);
                for (path, word) in words {
                    let is_good =
                        is_no_namespace(&word) || word == "plimsoll" && is_name(&key, &path);
                    assert!(is_good, "{by}, {values:?}: {key} {path} names {word}");
                }
            }
        }
    }
}

#[test]
#[ignore = "make chart"]
fn a_closed_network_lets_the_annotator_reach_prometheus() {
    for (url, port) in [("http://p:9090", 9090), ("http://p", 80), ("https://[fd00::1]/", 443)] {
        let readings = format!("readings={url}");
        let values = ["networkPolicy.deny=true", &readings];
        let objects = chart_objects("HELM3", "plimsoll", &values);
        let key = "networking.k8s.io/v1 NetworkPolicy plimsoll/annotator-egress";
        assert_eq!(objects[key]["spec"]["egress"][2]["ports"][0]["port"], port, "{url}");
    }
}

/// Programs and policies have the same names, or the policies would protect nothing.
#[test]
#[ignore = "make chart"]
fn other_names_are_in_programs_and_policies_alike() {
    let mut values = vec!["names.gpuResource=example.com/gpu-mem"];
    values.push("names.annotationPrefix=example.com");
    values.extend(MANY);
    for by in HELMS {
        for (key, object) in chart_objects(by, "plimsoll", &values) {
            let text = object.to_string();
            let others = ["aliyun.com/gpu-mem", "plimsoll.dev/gpu", "gpu.plimsoll.dev"];
            let other = others.iter().find(|other| text.contains(**other));
            // The texts of the policy tell of the defaults.
            assert!(key.ends_with("/policy") || other.is_none(), "{by}, {key} has {other:?}");
        }
        let objects = chart_objects(by, "plimsoll", &values);
        for program in ["annotator", "gpushare-device-plugin"] {
            let workload = objects.iter().find(|(key, _)| {
                key.starts_with("apps/v1 ") && key.ends_with(&format!("/{program}"))
            });
            let container = &workload.expect("it").1["spec"]["template"]["spec"]["containers"][0];
            let env = container["env"].as_array().expect("variables").iter();
            let named = env.filter(|variable| {
                variable["value"].as_str().is_some_and(|value| value.starts_with("example.com"))
            });
            assert_eq!(named.count(), 2, "{by}, {program}");
        }
    }
}

/// A value of every leaf of values.yaml that is not its default, with values that it needs.
const CHANGED: &[(&str, &str, &[&str])] = &[
    ("image.registry", r#""other.example.com""#, &[]),
    ("image.tag", r#""9""#, &[]),
    ("image.pullPolicy", r#""Always""#, &[]),
    ("image.pullSecrets", r#"["s"]"#, &[]),
    ("image.architecture", r#""arm64""#, &[]),
    ("commonLabels", r#"{"team":"a"}"#, &[]),
    ("namespace.create", "true", &[]),
    ("nodeAgents.namespace", r#""agents""#, &[]),
    ("nodeAgents.createNamespace", "false", &[r#"nodeAgents.namespace="agents""#]),
    ("scheduler.mode", r#""none""#, &[]),
    ("scheduler.image", r#""mirror.example.com/kube-scheduler""#, SECOND),
    ("scheduler.configuration", r#""profiles: [{schedulerName: plimsoll-scheduler}]""#, SECOND),
    ("scheduler.setName.namespaces", r#"["a"]"#, SECOND),
    (
        "scheduler.setName.pods",
        r#""all""#,
        &[r#"scheduler.mode="second""#, r#"scheduler.setName.namespaces=["a"]"#],
    ),
    ("scheduler.replicas", "3", SECOND),
    ("policy.text", r#""x""#, &[]),
    ("policy.existingConfigMap", r#""mine""#, &[]),
    ("policy.crane", "true", &[]),
    ("policy.shadow", r#""x""#, &[]),
    ("readings", r#""metricsServer""#, &[]),
    ("gpuNodes.find", r#""hardwareLabels""#, &[]),
    ("gpuNodes.label", r#""nvidia.com/gpu.present""#, &[]),
    ("gpuNodes.runtimeClassName", r#""nvidia""#, &[]),
    ("extender.replicas", "3", &[]),
    ("extender.tls", "false", &[]),
    ("extender.evictForCards", "true", &[]),
    ("extender.moveForCards", "true", &[]),
    ("extender.evictOutsideMps", "true", &[]),
    ("annotator.replicas", "3", &[]),
    ("annotator.nodes", r#""pool=batch""#, &[]),
    ("annotator.taintHotNodes", r#""NoSchedule""#, &[]),
    ("annotator.nodeBands", "true", SECOND),
    ("exporter.port", "9", &[]),
    ("exporter.everyAddress", "true", &[]),
    ("exporter.gpuSignals", "true", &[]),
    ("exporter.hostFileSystems", "true", &[]),
    ("exporter.tls", "true", &[]),
    ("devicePlugin.kubeletDir", r#""/var/lib/k0s/kubelet""#, &[]),
    ("devicePlugin.processes", "true", &[]),
    ("devicePlugin.unhealthyConfigMaps", "true", &[]),
    ("claims", "true", &[]),
    ("mps.enabled", "true", &[]),
    ("mps.exclusive", "true", &[r#"devicePlugin.env={"PLIMSOLL_ISOLATION":"mps"}"#]),
    ("mps.image", r#""x""#, &[]),
    ("podTemplates", r#"{"annotator":{"spec":{"hostIPC":true}}}"#, &[]),
    ("fromGpushare", "true", &[]),
    ("names.gpuResource", r#""example.com/gpu-mem""#, &[]),
    ("names.annotationPrefix", r#""example.com""#, &[]),
    ("admission.enabled", "false", &[]),
    ("admission.validationActions", r#"["Audit"]"#, &[]),
    ("flowSchemas", "false", &[]),
    ("networkPolicy.controlPlane", r#"["192.0.2.10/32"]"#, &[]),
    ("networkPolicy.deny", "true", &[]),
    ("networkPolicy.monitoringNamespace", r#""m""#, &["networkPolicy.deny=true"]),
    ("monitoring.podMonitors", "true", &[]),
    ("monitoring.rules", "true", &[]),
    ("monitoring.labels", r#"{"release":"x"}"#, &["monitoring.rules=true"]),
    ("monitoring.dashboards", "true", &[]),
    ("monitoring.runbookUrl", r#""https://git.example.com/a.md""#, &["monitoring.rules=true"]),
    ("criticalPodsQuota", r#""always""#, &[]),
    ("certManager.enabled", "true", &[]),
    ("certManager.issuer", r#""Issuer/mine""#, &["certManager.enabled=true"]),
    ("openshift", "true", &[]),
    ("nvmlHostLibrary", r#""/x""#, &[]),
];

const SECOND: &[&str] = &[r#"scheduler.mode="second""#];

/// What each of the programs has.
const OF_PROGRAMS: &[(&str, &str)] = &[
    ("resources.requests.cpu", r#""9m""#),
    ("resources.requests.memory", r#""9Mi""#),
    ("resources.limits.memory", r#""9Mi""#),
    ("env", r#"{"PLIMSOLL_LOG_LEVEL":"debug"}"#),
];

#[test]
#[ignore = "make chart"]
fn every_value_changes_what_is_rendered() {
    let mut untried = Vec::new();
    leaves(&yaml("chart/values.yaml"), "", &mut untried);
    let mut tried: Vec<(String, &str, &[&str])> =
        CHANGED.iter().map(|(path, value, needs)| ((*path).to_owned(), *value, *needs)).collect();
    for program in ["annotator", "devicePlugin", "exporter", "extender", "mps", "scheduler"] {
        let needs = if program == "scheduler" { SECOND } else { &[] };
        for (part, value) in OF_PROGRAMS {
            let path = format!("{program}.{part}");
            if untried.contains(&path) {
                tried.push((path, value, needs));
            }
        }
    }
    for (path, value, needs) in tried {
        untried.retain(|leaf| *leaf != path);
        // MPS is there, so that its values have an object.
        let mut args = vec![];
        if !path.starts_with("scheduler.") && path != "mps.enabled" {
            args.extend(["--set-json", "mps.enabled=true"]);
        }
        needs.iter().for_each(|value| args.extend(["--set-json", value]));
        let before = stdout(&template("HELM3", "plimsoll", &args));
        let changed = format!("{path}={value}");
        args.extend(["--set-json", &changed]);
        let after = stdout(&template("HELM3", "plimsoll", &args));
        assert!(before != after, "{changed} changes nothing");
    }
    assert!(untried.is_empty(), "values without a test: {untried:?}");
}

/// Two namespaces, each with a CA of its own.
const TWO: &str = "nodeAgents.namespace=agents,exporter.tls=true,certManager.enabled=true";
/// Two namespaces with one CA.
const TWO_BY_AN_ISSUER: &str = "nodeAgents.namespace=agents,exporter.tls=true,certManager.enabled=true,certManager.issuer=ClusterIssuer/mine";

const RUNBOOK: &str =
    "monitoring.rules=true,monitoring.runbookUrl=https://git.example.com/monitoring.md";

const SECOND_BY_CERT_MANAGER: &str = "scheduler.mode=second,certManager.enabled=true";

/// What Helm prints after an installation, from a copy of the chart that renders its notes as an object.
fn notes(by: &str, values: &str) -> String {
    let folder = TempDir::new().expect("a folder");
    let copy = folder.path().join("chart");
    let copied = Command::new("cp").arg("--recursive").arg(chart()).arg(&copy).status();
    assert!(copied.expect("cp runs").success());
    fs::rename(copy.join("templates/NOTES.txt"), copy.join("NOTES.txt")).expect("notes");
    let object = "notes: {{ tpl (.Files.Get \"NOTES.txt\") . | toJson }}\n";
    fs::write(copy.join("templates/notes.yaml"), object).expect("a template");
    let copy = copy.display().to_string();
    let mut args = vec!["template", "plimsoll", &copy, "--namespace", "elsewhere"];
    args.extend(["--show-only", "templates/notes.yaml"]);
    args.extend(["--set", "image.registry=registry.example.com/p", "--set", values]);
    let object: Value = serde_saphyr::from_str(&stdout(&helm(by, &args))).expect("YAML");
    object["notes"].as_str().expect("a text").to_owned()
}

#[test]
#[ignore = "make chart"]
fn the_notes_say_the_next_step_of_the_chosen_way() {
    let enable = "plimsoll scheduler enable --namespace elsewhere\n";
    let make = "plimsoll scheduler certificates --namespace elsewhere\n";
    let crane = " --config deploy/chart/kube-scheduler/crane.yaml\n";
    let taint = "Nodes over a limit carry a taint";
    let line = "\n  schedulerName: plimsoll-scheduler\n";
    let copy =
        "kubectl --namespace elsewhere create secret generic exporter-tls --from-file=ca.crt";
    let wait = "kubectl --namespace agents wait certificate --all";
    let runbook = "Set monitoring.runbookUrl to where";
    for by in HELMS {
        for (values, said, not_said) in [
            ("scheduler.mode=external", [enable, make], [crane, taint]),
            ("extender.tls=false", [enable, "rollout status"], [make, taint]),
            ("certManager.enabled=true", [enable, "wait certificate --all"], [make, taint]),
            ("policy.crane=true", [crane, make], [enable, taint]),
            ("scheduler.mode=none", [taint, "plimsoll taints --clear"], [enable, make]),
            ("scheduler.mode=second", [line, make], [enable, taint]),
            (SECOND_BY_CERT_MANAGER, [line, "wait certificate --all"], [make, taint]),
            (TWO, [copy, wait], [make, taint]),
            (TWO, [copy, "delete secret exporter-tls --ignore-not-found"], [make, taint]),
            (TWO_BY_AN_ISSUER, [enable, wait], [make, copy]),
            ("monitoring.rules=true", [enable, runbook], [crane, taint]),
            (RUNBOOK, [enable, make], [runbook, taint]),
            ("scheduler.mode=second,policy.text=x", [line, "--in-cluster --gpu"], [enable, taint]),
        ] {
            let notes = notes(by, values);
            assert!(said.iter().all(|text| notes.contains(text)), "{by}, {values}: {notes}");
            assert!(!not_said.iter().any(|text| notes.contains(text)), "{by}, {values}: {notes}");
        }
    }
}
