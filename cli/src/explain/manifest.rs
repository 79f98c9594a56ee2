//! The pod of a manifest: a Pod itself, or the template of a workload.

use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::format::printable;
use crate::policy::read;

/// The first pod of the documents of a file, in this namespace if one is given, else in the manifest's own, else in the
/// one that `context` tells.
///
/// # Errors
///
/// If the file cannot be read, or has no pod.
pub(super) fn pod_of(
    file: &Path,
    namespace: Option<&str>,
    context: impl FnOnce() -> String,
) -> Result<Value> {
    let text = read(file)?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)
        .with_context(|| format!("{}: no YAML or JSON", file.display()))?;
    let pods: Vec<Value> = documents.iter().flat_map(pods_in).collect();
    if let [first, .., _] = &pods[..] {
        let name = printable(first["metadata"]["name"].as_str().unwrap_or_default());
        let (file, count) = (file.display(), pods.len());
        writeln!(io::stderr(), "Warning: {file} has {count} pods; shown is the first, {name}")?;
    }
    let Some(mut pod) = pods.into_iter().next() else {
        bail!(
            "{}: no pod in it; expected a Pod, or a workload with a template of pods, as a Deployment or a Job",
            file.display()
        );
    };
    let given = namespace.or(pod["metadata"]["namespace"].as_str()).map(str::to_owned);
    pod["metadata"]["namespace"] = json!(given.unwrap_or_else(context));
    Ok(pod)
}

/// The pod of a document, or those of a list.
fn pods_in(document: &Value) -> Vec<Value> {
    match document["items"].as_array() {
        Some(items) => items.iter().flat_map(pods_in).collect(),
        None => pod_in(document).into_iter().collect(),
    }
}

fn pod_in(document: &Value) -> Option<Value> {
    let spec = &document["spec"];
    let of_cron_job = &spec["jobTemplate"]["spec"]["template"];
    let template = match document["kind"].as_str()? {
        "Pod" => return Some(pod(document, document)),
        _ if of_cron_job.is_object() => of_cron_job,
        _ => &spec["template"],
    };
    let has_containers = template["spec"]["containers"].is_array();
    has_containers.then(|| pod(document, template))
}

/// The pod of a template, by the name and in the namespace of its workload.
fn pod(workload: &Value, template: &Value) -> Value {
    let mut metadata = template["metadata"].clone();
    if !metadata.is_object() {
        metadata = json!({});
    }
    let own = &workload["metadata"];
    let name = own["name"].as_str().or(own["generateName"].as_str()).unwrap_or("manifest");
    metadata["name"] = json!(name);
    metadata["namespace"] = own["namespace"].clone();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn of(text: &str, namespace: Option<&str>) -> Result<Value> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("manifest.yaml");
        fs::write(&file, text).unwrap();
        pod_of(&file, namespace, || "of-context".to_owned())
    }

    const DEPLOYMENT: &str = "\
kind: Service
metadata: {name: web}
---
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main}]}
";

    #[test]
    fn the_first_document_with_a_pod_counts_under_its_workloads_name() {
        let expected = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main"}]},
        });
        assert_eq!(of(DEPLOYMENT, None).unwrap(), expected);
        let given = of(DEPLOYMENT, Some("other")).unwrap();
        assert_eq!(given["metadata"]["namespace"], "other");
    }

    #[test]
    fn pods_cron_jobs_lists_and_json_are_read_too() {
        let pod = r#"{"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": []}}"#;
        assert_eq!(
            of(pod, None).unwrap()["metadata"],
            json!({"name": "a", "namespace": "of-context"})
        );
        let list = format!(r#"{{"kind": "List", "items": [{{"kind": "Secret"}}, {pod}]}}"#);
        assert_eq!(of(&list, None).unwrap()["metadata"]["name"], "a");
        let cron = "kind: CronJob\nmetadata: {name: c}\nspec: {jobTemplate: {spec: {template: {spec: {containers: []}}}}}";
        assert_eq!(of(cron, None).unwrap()["metadata"]["name"], "c");
    }

    #[test]
    fn a_file_without_a_pod_is_an_error_that_says_what_is_expected() {
        let error = of("kind: Service\nmetadata: {name: web}\n", None).unwrap_err().to_string();
        assert!(error.contains("no pod in it") && error.contains("a Deployment"), "{error}");
        assert!(of("a: [", None).unwrap_err().to_string().contains("no YAML"));
    }
}
