//! The samples for autoscalers: objects that Kubernetes and the autoscalers know, for the resource that is shipped.

use std::collections::BTreeSet;
use std::fs;

use placement::names::Names;
use serde_json::{Value, json};

use crate::manifests::{Manifests, read};
use crate::repository;

const FOLDER: &str = "samples/autoscalers";

/// Where Cluster Autoscaler reads what a machine of Cluster API has.
const CAPACITY: &str = "capacity.cluster-autoscaler.kubernetes.io";

pub(crate) fn files() -> BTreeSet<String> {
    let folder = fs::read_dir(deploy::folder().join(FOLDER)).expect("the folder of the samples");
    folder.map(|file| file.expect("a file").file_name().into_string().expect("UTF-8")).collect()
}

fn object(file: &str, kind: &str) -> Value {
    Manifests::of_text(&read(&format!("{FOLDER}/{file}"))).of_kind(kind).remove(0)
}

fn keys(object: &Value) -> Vec<&str> {
    let mut keys: Vec<_> =
        object.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// By the types of Cluster Autoscaler (`autoscaling.x-k8s.io/v1beta1`) and Karpenter (`karpenter.sh/v1alpha1`).
#[test]
fn custom_resources_have_the_fields_of_their_projects_types() {
    let buffer = object("capacity-buffer.yaml", "CapacityBuffer");
    assert_eq!(buffer["apiVersion"], "autoscaling.x-k8s.io/v1beta1");
    assert_eq!(keys(&buffer["spec"]), ["podTemplateRef", "provisioningStrategy", "replicas"]);
    let template = object("capacity-buffer.yaml", "PodTemplate");
    assert_eq!(buffer["spec"]["podTemplateRef"], json!({"name": template["metadata"]["name"]}));
    assert_eq!(buffer["metadata"]["namespace"], template["metadata"]["namespace"]);

    let overlay = object("karpenter-node-overlay.yaml", "NodeOverlay");
    assert_eq!(overlay["apiVersion"], "karpenter.sh/v1alpha1");
    assert_eq!(keys(&overlay["metadata"]), ["name"], "a NodeOverlay is of the cluster");
    assert_eq!(keys(&overlay["spec"]), ["capacity", "requirements"]);
    for requirement in overlay["spec"]["requirements"].as_array().expect("a list") {
        assert_eq!(keys(requirement), ["key", "operator", "values"]);
    }
    assert_eq!(keys(&overlay["spec"]["capacity"]), [Names::default().gpu_resource()]);
}

#[test]
fn cluster_api_is_told_of_the_units_and_of_what_they_count_for_nothing_without() {
    let machines = object("cluster-api.yaml", "MachineDeployment");
    let annotations = &machines["metadata"]["annotations"];
    let gpu_type = &annotations[&format!("{CAPACITY}/gpu-type")];
    assert_eq!(*gpu_type, Names::default().gpu_resource());
    let units = annotations[&format!("{CAPACITY}/gpu-count")].as_str().expect("a string");
    assert!(units.parse::<u32>().is_ok_and(|units| units > 0), "{units}");
    for needed in ["cpu", "memory"] {
        assert!(annotations[&format!("{CAPACITY}/{needed}")].is_string(), "{needed}");
    }
    assert!(annotations.as_object().expect("a map").values().all(Value::is_string));
}

/// What takes less than a whole node fits on the node where the pod that waits does not.
#[test]
fn a_placeholder_takes_equal_parts_of_several_gpus() {
    let names = Names::default();
    let deployment = object("spare-node.yaml", "Deployment");
    let template = object("capacity-buffer.yaml", "PodTemplate");
    for template in [&deployment["spec"]["template"], &template["template"]] {
        let gpus = template["metadata"]["annotations"][names.gpu_count()].as_str();
        let gpus: u32 = gpus.expect("a number of GPUs").parse().expect("a number");
        let limits = &template["spec"]["containers"][0]["resources"]["limits"];
        let units = limits[names.gpu_resource()].as_str().expect("units");
        let units: u32 = units.parse().expect("a number");
        assert!(gpus > 1 && units > gpus && units.is_multiple_of(gpus), "{units} on {gpus} GPUs");
        assert_eq!(template["spec"]["schedulerName"], "plimsoll-scheduler");
    }
}

#[test]
fn a_placeholder_makes_way_for_every_pod_and_still_has_a_node_made() {
    // Karpenter reads the template itself, in which the API server lets no requests follow from limits.
    let template = object("capacity-buffer.yaml", "PodTemplate");
    let resources = &template["template"]["spec"]["containers"][0]["resources"];
    assert!(resources["limits"].is_object(), "{resources}");
    assert_eq!(resources["requests"], resources["limits"]);
    let deployment = object("spare-node.yaml", "Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    // Otherwise the object of a preempted placeholder goes before its process. The pod that preempted it then finds the
    // GPU taken and loses its place on the node, and the next placeholder may take it.
    assert_ne!(pod["terminationGracePeriodSeconds"], json!(0));
    // Cluster Autoscaler makes no node for pods whose priority is below -10, its default.
    let class = object("spare-node.yaml", "PriorityClass");
    assert_eq!((&class["value"], &class["preemptionPolicy"]), (&json!(-10), &json!("Never")));
    assert_eq!(pod["priorityClassName"], class["metadata"]["name"]);
}

#[test]
fn every_sample_begins_with_what_it_is_for_and_is_in_the_document() {
    let document = repository::read("docs/autoscalers.md");
    for file in files() {
        assert!(read(&format!("{FOLDER}/{file}")).starts_with("# "), "{file}");
        assert!(document.contains(&format!("(../deploy/{FOLDER}/{file})")), "{file}");
    }
}
