//! Node agents in a namespace of their own: what is where, and that everything names each account in its namespace.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::render::{HELMS, Objects, chart_objects};
use super::values::MANY;
use crate::pod_security::forbidden;

const RELEASE: &str = "elsewhere";
const NODE_AGENTS: &str = "agents";

/// The sets of values that the tests render, each with [`NODE_AGENTS`].
fn renderings() -> Vec<(String, Objects)> {
    let mut found = Vec::new();
    for by in HELMS {
        let metrics_server = ["readings=metricsServer", "namespace.create=true"];
        let none = ["scheduler.mode=none", "namespace.create=true"];
        for values in [&["namespace.create=true"][..], &MANY, &none, &metrics_server] {
            let all = [values, &["nodeAgents.namespace=agents"]].concat();
            found.push((format!("{by}, {values:?}"), chart_objects(by, RELEASE, &all)));
        }
    }
    found
}

fn namespace(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

/// The pods that an object makes.
fn pod(object: &Value) -> Option<&Value> {
    Some(&object["spec"]["template"]["spec"]).filter(|pod| pod.is_object())
}

#[test]
#[ignore = "make chart"]
fn the_releases_namespace_has_the_level_restricted_and_its_pods_satisfy_it() {
    for (what, objects) in renderings() {
        let levels = &objects[&format!("v1 Namespace -/{RELEASE}")]["metadata"]["labels"];
        for mode in ["enforce", "warn", "audit"] {
            let level = &levels[format!("pod-security.kubernetes.io/{mode}")];
            assert_eq!(level, "restricted", "{what}");
        }
        let of_release = objects.values().filter(|object| namespace(object) == RELEASE);
        let pods: Vec<&Value> = of_release.filter_map(pod).collect();
        assert!(!pods.is_empty(), "{what}");
        for pod in pods {
            assert_eq!(forbidden(pod), [""; 0], "{what}: {}", pod["serviceAccountName"]);
        }
    }
}

#[test]
#[ignore = "make chart"]
fn one_namespace_for_all_lets_pods_be_privileged() {
    for name in ["", RELEASE] {
        let one = format!("nodeAgents.namespace={name}");
        let objects = chart_objects("HELM3", RELEASE, &["namespace.create=true", &one]);
        let namespaces: Vec<_> = objects.keys().filter(|key| key.contains(" Namespace ")).collect();
        assert_eq!(namespaces, [&format!("v1 Namespace -/{RELEASE}")]);
        let labels = &objects[namespaces[0]]["metadata"]["labels"];
        assert_eq!(labels["pod-security.kubernetes.io/enforce"], "privileged");
    }
}

/// `helm install` makes no other namespace than the release's.
#[test]
#[ignore = "make chart"]
fn the_namespace_of_node_agents_is_rendered_unless_another_makes_it() {
    let key = format!("v1 Namespace -/{NODE_AGENTS}");
    for by in HELMS {
        let agents = "nodeAgents.namespace=agents";
        let objects = chart_objects(by, RELEASE, &[agents]);
        let labels = &objects[&key]["metadata"]["labels"];
        assert_eq!(labels["pod-security.kubernetes.io/enforce"], "privileged");
        assert!(!objects.contains_key(&format!("v1 Namespace -/{RELEASE}")), "{by}");
        let without = [agents, "nodeAgents.createNamespace=false", "namespace.create=true"];
        let objects = chart_objects(by, RELEASE, &without);
        assert!(!objects.contains_key(&key), "{by}");
        assert!(objects.contains_key(&format!("v1 Namespace -/{RELEASE}")), "{by}");
    }
}

#[test]
#[ignore = "make chart"]
fn node_agents_and_what_they_need_are_in_their_namespace_and_nothing_else_is() {
    let values = [&MANY[..], &["nodeAgents.namespace=agents"]].concat();
    for by in HELMS {
        let objects = chart_objects(by, RELEASE, &values);
        let inside = objects.values().filter(|object| namespace(object) == NODE_AGENTS);
        let names: Vec<String> = inside
            .map(|object| format!("{} {}", object["kind"], object["metadata"]["name"]))
            .map(|name| name.replace('"', ""))
            .collect();
        let mut wanted = vec![
            "DaemonSet gpushare-device-plugin",
            "DaemonSet mps-control-daemon",
            "DaemonSet node-exporter-plus",
            "DaemonSet node-exporter-plus-gpu",
            "Certificate exporter-tls",
            "Certificate plimsoll-ca",
            "Issuer plimsoll-ca",
            "Issuer plimsoll-self-signed",
            "NetworkPolicy deny",
            "NetworkPolicy gpushare-device-plugin",
            "NetworkPolicy gpushare-device-plugin-egress",
            "NetworkPolicy mps-control-daemon",
            "PodMonitor gpushare-device-plugin",
            "PodMonitor node-exporter-plus",
            "ResourceQuota critical-pods",
            "ServiceAccount gpushare-device-plugin",
            "ServiceAccount node-exporter-plus",
        ];
        let found: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(found, wanted.iter().copied().collect(), "{by}");
        // Of these the release's namespace has its own, and no other.
        let of_both = ["plimsoll-ca", "plimsoll-self-signed", "deny", "critical-pods"];
        wanted.retain(|name| !of_both.iter().any(|both| name.ends_with(&format!(" {both}"))));
        for object in objects.values().filter(|object| namespace(object) == RELEASE) {
            let name = format!("{} {}", object["kind"], object["metadata"]["name"]);
            assert!(!wanted.contains(&name.replace('"', "").as_str()), "{by}: {name}");
        }
    }
}

/// The name and the namespace of an account, where a value has both.
fn account(value: &Value) -> Option<(String, String)> {
    Some((value["name"].as_str()?.to_owned(), value["namespace"].as_str()?.to_owned()))
}

/// Names of accounts with their namespaces: of `system:serviceaccount:NAMESPACE:NAME` in texts, of subjects of
/// bindings and of those of flow schemas.
fn named_accounts(value: &Value, found: &mut Vec<(String, String)>) {
    match value {
        Value::String(text) => {
            for rest in text.split("system:serviceaccount:").skip(1) {
                let (namespace, rest) = rest.split_once(':').expect("a namespace");
                let is_end = |letter: char| !letter.is_ascii_alphanumeric() && letter != '-';
                let name = rest.split(is_end).next().expect("a first part");
                found.push((name.to_owned(), namespace.to_owned()));
            }
        }
        Value::Array(items) => items.iter().for_each(|item| named_accounts(item, found)),
        Value::Object(fields) => {
            // A binding's subject is the account itself, and that of a flow schema has it in a field.
            if value["kind"] == "ServiceAccount" {
                found.extend(account(value));
            }
            found.extend(account(&value["serviceAccount"]));
            fields.values().for_each(|field| named_accounts(field, found));
        }
        _ => {}
    }
}

/// Those of Aliyun's gpushare have names of ours.
const OF_OTHERS: &str = "kube-system";

#[test]
#[ignore = "make chart"]
fn every_account_is_named_in_the_namespace_that_it_is_in() {
    for (what, objects) in renderings() {
        let accounts = objects.iter().filter(|(key, _)| key.contains(" ServiceAccount "));
        let accounts: BTreeMap<&str, &str> = accounts
            .map(|(_, object)| {
                (object["metadata"]["name"].as_str().expect("a name"), namespace(object))
            })
            .collect();
        let mut seen = BTreeSet::new();
        for (key, object) in &objects {
            let mut named = Vec::new();
            named_accounts(object, &mut named);
            named.retain(|(_, namespace)| namespace != OF_OTHERS);
            for (name, namespace) in named {
                let wanted = accounts.get(name.as_str());
                assert!(
                    wanted == Some(&namespace.as_str()),
                    "{what}: {key} names {namespace}/{name}"
                );
                seen.insert(name);
            }
            let account = pod(object).and_then(|pod| pod["serviceAccountName"].as_str());
            if let Some(account) = account {
                assert_eq!(accounts.get(account), Some(&namespace(object)), "{what}: {key}");
            }
        }
        assert!(seen.contains("annotator"), "{what}: {seen:?}");
        let has_plugin = !what.contains("scheduler.mode=none");
        assert_eq!(seen.contains("gpushare-device-plugin"), has_plugin, "{what}: {seen:?}");
        if what.contains("openshift") {
            assert_eq!(seen, accounts.keys().map(|name| (*name).to_owned()).collect(), "{what}");
        }
    }
}

/// The texts in which a word stands, each with its path.
fn texts_with(value: &Value, word: &str, path: &str, found: &mut Vec<String>) {
    match value {
        Value::String(text) if text.contains(word) => found.push(format!("{path}: {text}")),
        Value::Array(items) => {
            items.iter().for_each(|item| texts_with(item, word, path, found));
        }
        Value::Object(fields) => {
            for (key, field) in fields {
                texts_with(field, word, &format!("{path}/{key}"), found);
            }
        }
        _ => {}
    }
}

/// No Service, Lease or Secret of the programs is in the node agents' namespace.
#[test]
#[ignore = "make chart"]
fn their_namespace_is_named_in_metadata_and_with_their_accounts_alone() {
    for (what, objects) in renderings() {
        for (key, object) in objects {
            let mut texts = Vec::new();
            texts_with(&object, NODE_AGENTS, "", &mut texts);
            texts.retain(|text| {
                let rest = text.replace(&format!("system:serviceaccount:{NODE_AGENTS}:"), "");
                let is_subject = *text == format!("/subjects/namespace: {NODE_AGENTS}");
                let is_own = *text == format!("/metadata/namespace: {NODE_AGENTS}")
                    || *text == format!("/metadata/name: {NODE_AGENTS}");
                rest.contains(NODE_AGENTS) && !is_subject && !is_own
            });
            assert!(texts.is_empty(), "{what}, {key}: {texts:?}");
        }
    }
}

/// cert-manager looks for an Issuer, and an Issuer for its CA, in the Certificate's own namespace.
#[test]
#[ignore = "make chart"]
fn each_namespace_has_the_issuer_of_its_certificates() {
    let values = [&MANY[..], &["nodeAgents.namespace=agents"]].concat();
    for by in HELMS {
        let objects = chart_objects(by, RELEASE, &values);
        let find = |kind: &str, namespace: &str, name: &Value| {
            let name = name.as_str().expect("a name");
            objects.get(&format!("cert-manager.io/v1 {kind} {namespace}/{name}"))
        };
        let certificates = objects.iter().filter(|(key, _)| key.contains(" Certificate "));
        let mut count = 0;
        for (key, certificate) in certificates {
            let issuer = &certificate["spec"]["issuerRef"];
            assert_eq!(issuer["kind"], "Issuer", "{by}: {key}");
            let issuer = find("Issuer", namespace(certificate), &issuer["name"]);
            let ca = &issuer.unwrap_or_else(|| panic!("{by}: no issuer of {key}"))["spec"]["ca"];
            if ca.is_object() {
                let ca = find("Certificate", namespace(certificate), &ca["secretName"]);
                assert_eq!(ca.expect("a CA")["spec"]["isCA"], true, "{by}: {key}");
            }
            count += 1;
        }
        assert_eq!(count, 5, "{by}");
    }
}

/// By an issuer of the whole cluster each pod finds its certificate where it is, and the annotator the exporters' CA.
#[test]
#[ignore = "make chart"]
fn a_cluster_issuer_makes_every_secret_with_a_certificate_where_it_is_mounted() {
    let mut values = MANY.to_vec();
    values.extend(["nodeAgents.namespace=agents", "certManager.issuer=ClusterIssuer/mine"]);
    for by in HELMS {
        let objects = chart_objects(by, RELEASE, &values);
        let certificates = objects.iter().filter(|(key, _)| key.contains(" Certificate "));
        let made: Vec<(&str, &Value)> = certificates
            .map(|(_, certificate)| {
                assert_eq!(certificate["spec"]["issuerRef"]["kind"], "ClusterIssuer");
                (namespace(certificate), &certificate["spec"]["secretName"])
            })
            .collect();
        let mut mounted = 0;
        for (key, object) in &objects {
            let volumes = pod(object).and_then(|pod| pod["volumes"].as_array());
            let sources = volumes.into_iter().flatten();
            let sources = sources.filter_map(|volume| volume["projected"]["sources"].as_array());
            let secrets = sources.flatten().map(|source| &source["secret"]);
            for secret in secrets.filter(|secret| secret["items"].to_string().contains(".crt")) {
                assert!(
                    made.contains(&(namespace(object), &secret["name"])),
                    "{by}, {key}: {secret}"
                );
                mounted += 1;
            }
        }
        assert_eq!(mounted, 5, "extender, kube-scheduler, annotator and two exporters");
        // A client's, which no program admits.
        let of_annotator =
            &objects[&format!("cert-manager.io/v1 Certificate {RELEASE}/exporter-tls")]["spec"];
        assert_eq!(of_annotator["commonName"], "annotator");
        assert!(!of_annotator["usages"].to_string().contains("server"), "{of_annotator}");
    }
}
