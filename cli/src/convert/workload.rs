//! One object of a manifest: its pods' units become claims.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use placement::gpu::ContainerRequest;
use placement::names::{Names, aliyun, limits};

use super::Place;
use super::claims::{claims, template_spec};
use super::request::{PodTemplate, list_of};
use super::yaml::Yaml;
use crate::args::convert::ConvertManifests;
use crate::stored_policy::checksum;

const API_VERSION: &str = "resource.k8s.io/v1";
const TEMPLATE: &str = "ResourceClaimTemplate";

/// What is known while documents are converted.
pub(super) struct Converter {
    names: Names,
    unit_mib: u32,
    /// The templates that are written: namespace, name and spec.
    templates: BTreeSet<(String, String, String)>,
    notes: Vec<String>,
}

impl Converter {
    pub(super) fn new(flags: &ConvertManifests) -> Self {
        let names = Names::new(&flags.gpu_resource, &flags.annotation_prefix);
        Self { names, unit_mib: flags.unit_mib, templates: BTreeSet::new(), notes: Vec::new() }
    }

    /// What is to be said, a line each.
    pub(super) fn into_notes(self) -> Vec<String> {
        self.notes
    }

    /// Whether a document may name units.
    pub(super) fn concerns(&self, document: &str) -> bool {
        // JSON may have a backslash before the slash.
        let unit = self.names.gpu_resource().rsplit('/').next();
        unit.is_some_and(|unit| document.contains(unit))
    }

    /// Converts a document, and gives the templates that it needs; `None` where it stays as it is. A list has them
    /// among its items.
    ///
    /// # Errors
    ///
    /// Names the object, the field and what to do.
    pub(super) fn document(&mut self, node: &mut Yaml, place: &Place) -> Result<Option<Vec<Yaml>>> {
        if items(node).is_empty() {
            return self.object(node, place);
        }
        let mut changed = false;
        let mut all = Vec::new();
        for (position, item) in items(node).iter().enumerate() {
            let mut item = item.clone();
            let object = format!(", items[{position}]");
            let place = Place { object, ..place.clone() };
            let templates = self.document(&mut item, &place)?;
            changed |= templates.is_some();
            all.extend(templates.unwrap_or_default());
            all.push(item);
        }
        if let Some(list) = node.list_mut("items").filter(|_| changed) {
            *list = all;
        }
        Ok(changed.then(Vec::new))
    }

    fn object(&mut self, object: &mut Yaml, place: &Place) -> Result<Option<Vec<Yaml>>> {
        let kind = object.text("kind").unwrap_or("object");
        let shown = |field| object.get("metadata").and_then(|metadata| metadata.text(field));
        let namespace = shown("namespace").map(|namespace| format!("{namespace}/"));
        let name = shown("name").or(shown("generateName")).unwrap_or("without a name");
        let at = format!("{place}, {kind} {}{name}", namespace.unwrap_or_default());
        let Some(path) = template_path(object) else {
            if let Some(field) = field_of(object, self.names.gpu_resource()) {
                self.notes.push(format!(
                    "Warning: {at}: {field}: left as it is, for this kind is no workload that can be converted; change \
                     it by hand"
                ));
            }
            return Ok(None);
        };
        let owner = TemplateOwner::of(object);
        let Some(pod) = object.at_mut(path) else { return Ok(None) };
        let prefix: String = path.iter().map(|field| format!("{field}.")).collect();
        let converted = self.pod(pod, &prefix, owner, &at);
        converted.with_context(|| at.clone())
    }

    /// Converts a pod, or a workload's template of pods.
    fn pod(
        &mut self,
        pod: &mut Yaml,
        prefix: &str,
        owner: Result<TemplateOwner>,
        at: &str,
    ) -> Result<Option<Vec<Yaml>>> {
        let template = PodTemplate { node: pod, path: prefix, names: &self.names };
        let Some(request) = template.request()? else { return Ok(None) };
        let owner = owner?;
        let mut lost = Vec::new();
        let claims = claims(&request, self.unit_mib, &mut lost)
            .with_context(|| template.annotation(&self.names.gpu_count()))?;
        let spec = template.field("spec");
        self.notes.extend(lost.iter().map(|lost| format!("Warning: {at}: {spec}: {lost}")));
        let unspoken = inexpressible(&template)?;
        self.notes.extend(unspoken.iter().map(|text| format!("Warning: {at}: {text}")));
        let dropped = take_off(pod, &self.names);
        self.notes.extend(dropped.iter().map(|key| {
            format!("Note: {at}: {prefix}{key}: dropped, for it is of no use with resource claims")
        }));
        let mut written = Vec::new();
        let alone = claims.len() == 1 && !has_claim(pod, "gpu");
        for claim in &claims {
            let share = template_spec(claim.share, request.filter(), &self.names);
            let (template, new) = self.template(&owner, share)?;
            written.extend(new);
            // A claim is named after the first container that uses it.
            let container = &request.containers()[claim.containers[0]].name;
            let own = if alone { "gpu".to_owned() } else { format!("gpu-{container}") };
            attach(pod, prefix, &own, &template)?;
            for place in &claim.containers {
                let ask = &request.containers()[*place];
                use_claim(pod, ask, &own)
                    .with_context(|| format!("{spec}.{}[{}]", list_of(ask.kind), ask.position))?;
            }
        }
        take_units(pod, self.names.gpu_resource());
        Ok(Some(written))
    }

    /// The name of a template with this spec, and the template unless there is an equal one. A template cannot be
    /// changed, so that another share needs another name.
    fn template(&mut self, owner: &TemplateOwner, spec: Yaml) -> Result<(String, Option<Yaml>)> {
        let TemplateOwner { name, namespace } = owner;
        let text = serde_json::to_string(&spec)?;
        let hash = checksum(&text);
        let name = format!("{name}-gpu-{}", &hash[hash.len() - 6..]);
        ensure!(
            name.len() <= limits::NAME,
            "the claim template's name `{name}` has more than {} characters; shorten metadata.name",
            limits::NAME
        );
        if !self.templates.insert((namespace.clone(), name.clone(), text)) {
            return Ok((name, None));
        }
        let in_namespace = (!namespace.is_empty()).then(|| Yaml::scalar(namespace.as_str()));
        let metadata = [("name", Some(Yaml::scalar(name.as_str()))), ("namespace", in_namespace)];
        let template = Yaml::of([
            ("apiVersion", Yaml::scalar(API_VERSION)),
            ("kind", Yaml::scalar(TEMPLATE)),
            ("metadata", Yaml::some(metadata)),
            ("spec", spec),
        ]);
        Ok((name, Some(template)))
    }
}

/// The object that claim templates are named after.
struct TemplateOwner {
    name: String,
    namespace: String,
}

impl TemplateOwner {
    fn of(object: &Yaml) -> Result<Self> {
        let text = |field| object.text_at(&["metadata", field]);
        let given = text("name")?.map_or_else(|| text("generateName"), |name| Ok(Some(name)))?;
        let name = given.context("metadata.name: missing; the claim template is named after it")?;
        let namespace = text("namespace")?.unwrap_or_default().to_owned();
        Ok(Self { name: name.trim_end_matches('-').to_owned(), namespace })
    }
}

/// The objects of a List. Other kinds of lists can have no templates among their items.
fn items(object: &Yaml) -> &[Yaml] {
    match object.text("kind") {
        Some("List") => object.list(&["items"]),
        _ => &[],
    }
}

/// Where the pod of an object is; `None` of a kind that is not converted.
fn template_path(object: &Yaml) -> Option<&'static [&'static str]> {
    let version = object.text("apiVersion")?;
    let group = version.split_once('/').map_or("", |(group, _)| group);
    match (group, object.text("kind")?) {
        ("", "Pod") => Some(&[]),
        ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet") | ("batch", "Job") => {
            Some(&["spec", "template"])
        }
        ("batch", "CronJob") => Some(&["spec", "jobTemplate", "spec", "template"]),
        _ => None,
    }
}

/// The path of the first field with this name, or with it behind a dot, as quotas have it.
fn field_of(node: &Yaml, name: &str) -> Option<String> {
    for (key, value) in node.fields() {
        if key.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')) {
            return Some(format!("[{key}]"));
        }
        if let Some(inner) = field_of(value, name) {
            let dot = if inner.starts_with('[') { "" } else { "." };
            return Some(format!("{key}{dot}{inner}"));
        }
    }
    node.items().iter().enumerate().find_map(|(position, item)| {
        let inner = field_of(item, name)?;
        let dot = if inner.starts_with('[') { "" } else { "." };
        Some(format!("[{position}]{dot}{inner}"))
    })
}

/// What a pod says that has no effect, or another one, with claims. It stays.
fn inexpressible(template: &PodTemplate<'_>) -> Result<Vec<String>> {
    let names = template.names;
    let mut found = Vec::new();
    for (key, remedy) in [
        (
            names.gpu_processes(),
            "a claim has no number of processes and counts as one client of MPS; remove it, or leave the pod on nodes \
             with units",
        ),
        (
            names.gpu_placement(),
            "kube-scheduler chooses the GPU of a claim; remove it, or leave the pod on nodes with units",
        ),
    ] {
        if template.text(&key)?.is_some() {
            found.push(format!("{}: {remedy}", template.annotation(&key)));
        }
    }
    let spec = template.node.get("spec");
    let scheduler = spec.and_then(|spec| spec.text("schedulerName"));
    if let Some(scheduler) = scheduler.filter(|name| *name != "default-scheduler") {
        found.push(format!(
            "{}: the provider's kube-scheduler places claims; remove it, unless `{scheduler}` serves claims too",
            template.field("spec.schedulerName")
        ));
    }
    let (mode, path) = (names.gpu_mode(), ["affinity", "nodeAffinity"]);
    if serde_json::to_string(&spec.and_then(|spec| spec.at(&path)))?.contains(&mode) {
        found.push(format!(
            "{}: nodes with claims have the label {mode}=claims; correct or remove it",
            template.field("spec.affinity.nodeAffinity")
        ));
    }
    let text = serde_json::to_string(&spec)?;
    for variable in [aliyun::DEV, aliyun::IDX, aliyun::POD] {
        if text.contains(variable) {
            found.push(format!(
                "{}: {variable} is not set with claims; read {} instead",
                template.field("spec"),
                aliyun::CONTAINER
            ));
        }
    }
    Ok(found)
}

/// Takes off what is said by the claims now, and what was written about a pod with units; the latter is given.
fn take_off(pod: &mut Yaml, names: &Names) -> Vec<String> {
    for key in [
        names.gpu_count(),
        names.gpu_cores(),
        names.gpu_mem_limit(),
        names.gpu_model(),
        names.gpu_uuid(),
        names.isolation(),
    ] {
        pod.remove(&["metadata", "annotations", &key]);
    }
    let mut dropped = Vec::new();
    let claim = names.claim();
    for key in [
        aliyun::IDX,
        aliyun::DEV,
        aliyun::POD,
        aliyun::ASSIGNED,
        aliyun::ASSUME_TIME,
        aliyun::ALLOCATION,
        &claim,
    ] {
        if pod.at(&["metadata", "annotations", key]).is_some() {
            pod.remove(&["metadata", "annotations", key]);
            dropped.push(format!("metadata.annotations[{key}]"));
        }
    }
    let mode = names.gpu_mode();
    let selected = pod.at(&["spec", "nodeSelector"]).and_then(|labels| labels.text(&mode));
    if selected.is_some_and(|selected| selected != "claims") {
        pod.remove(&["spec", "nodeSelector", &mode]);
        dropped.push(format!("spec.nodeSelector[{mode}]"));
    }
    dropped
}

fn has_claim(pod: &Yaml, name: &str) -> bool {
    pod.list(&["spec", "resourceClaims"]).iter().any(|claim| claim.text("name") == Some(name))
}

/// Gives the pod a claim by this template.
fn attach(pod: &mut Yaml, prefix: &str, name: &str, template: &str) -> Result<()> {
    let field = format!("{prefix}spec.resourceClaims");
    ensure!(
        name.len() <= limits::LABEL,
        "{field}: the name `{name}` has more than {} characters; shorten the container's",
        limits::LABEL
    );
    ensure!(!has_claim(pod, name), "{field}: there is a claim `{name}` already; rename it");
    let spec = pod.at_mut(&["spec"]);
    let Some(list) = spec.and_then(|spec| spec.list_mut("resourceClaims")) else {
        bail!("{field}: no list");
    };
    list.push(Yaml::of([
        ("name", Yaml::scalar(name)),
        ("resourceClaimTemplateName", Yaml::scalar(template)),
    ]));
    Ok(())
}

/// Has a container use a claim of its pod.
fn use_claim(pod: &mut Yaml, ask: &ContainerRequest, claim: &str) -> Result<()> {
    let containers = pod.at_mut(&["spec"]).and_then(|spec| spec.list_mut(list_of(ask.kind)));
    let container = containers.and_then(|list| list.get_mut(ask.position));
    let resources = container.and_then(|container| container.at_mut(&["resources"]));
    let Some(list) = resources.and_then(|resources| resources.list_mut("claims")) else {
        bail!("resources.claims: no list");
    };
    list.push(Yaml::of([("name", Yaml::scalar(claim))]));
    Ok(())
}

/// Takes units off all containers.
fn take_units(pod: &mut Yaml, resource: &str) {
    for list in ["initContainers", "containers"] {
        let Some(Yaml::List(containers)) = pod.at_mut(&["spec", list]) else { continue };
        for container in containers {
            for part in ["limits", "requests"] {
                container.remove(&["resources", part, resource]);
            }
        }
    }
}
