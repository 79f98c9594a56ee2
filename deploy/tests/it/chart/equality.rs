//! Helm and kustomize render the same objects.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use super::render::{HELMS, Objects, chart_objects, kustomize_objects, kustomize_objects_with};
use crate::documents::cells;
use crate::repository::read;

/// What differs, each as the object, the path in it, and both values.
fn differences(kustomize: &Objects, chart: &Objects) -> String {
    let mut found = String::new();
    for object in kustomize.keys().chain(chart.keys()).collect::<BTreeSet<_>>() {
        let left = kustomize.get(object).unwrap_or(&Value::Null);
        let right = chart.get(object).unwrap_or(&Value::Null);
        compare(object, "", left, right, &mut found);
    }
    found
}

fn compare(object: &str, path: &str, kustomize: &Value, chart: &Value, found: &mut String) {
    match (kustomize, chart) {
        (Value::Object(left), Value::Object(right)) => {
            for key in left.keys().chain(right.keys()).collect::<BTreeSet<_>>() {
                compare(object, &format!("{path}/{key}"), &kustomize[key], &chart[key], found);
            }
        }
        (Value::Array(left), Value::Array(right)) => {
            for index in 0..left.len().max(right.len()) {
                let path = format!("{path}/{index}");
                let left = left.get(index).unwrap_or(&Value::Null);
                let right = right.get(index).unwrap_or(&Value::Null);
                compare(object, &path, left, right, found);
            }
        }
        _ if kustomize == chart => {}
        _ => {
            writeln!(found, "{object} {path}\n  kustomize: {kustomize}\n  chart:     {chart}")
                .expect("a text");
        }
    }
}

/// A component of `deploy/components`.
struct Component {
    name: String,
    /// As for `--set`.
    value: String,
    /// Components that it does not go with.
    excludes: Vec<String>,
}

impl Component {
    fn goes_with(&self, other: &Self) -> bool {
        !self.excludes.contains(&other.name) && !other.excludes.contains(&self.name)
    }
}

/// The components of docs/install.md in their order, with the values of its table.
fn components() -> Vec<Component> {
    let text = read("docs/install.md");
    let rows: Vec<Vec<&str>> =
        text.lines().filter(|line| line.starts_with("| `")).map(cells).collect();
    let mut found = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("- ../deploy/components/")) {
        let (name, comment) = line.split_once('#').unwrap_or((line, ""));
        let name = name.trim();
        let row = rows.iter().find(|row| row[0].trim_matches('`') == name);
        let value = row.unwrap_or_else(|| panic!("no row of {name}"))[1].trim_matches('`');
        let excluded = comment.trim().strip_prefix("not with ").unwrap_or_default();
        let excludes = excluded.split([' ', ',']).map(str::to_owned).collect();
        found.push(Component { name: name.to_owned(), value: value.to_owned(), excludes });
    }
    found
}

#[test]
fn the_documents_have_a_value_for_every_component() {
    let folders = std::fs::read_dir(deploy::folder().join("components")).expect("components");
    let folders: BTreeSet<String> = folders
        .map(|folder| folder.expect("it").file_name().into_string().expect("UTF-8"))
        .collect();
    let named: BTreeSet<String> = components().into_iter().map(|it| it.name).collect();
    assert_eq!(named, folders);
}

/// A kustomization of the shipped manifests with some components.
fn with_components(components: &[&Component]) -> String {
    let mut lines = "resources: [DEPLOY]\ncomponents:\n".to_owned();
    for component in components {
        lines += &format!("- DEPLOY/components/{}\n", component.name);
    }
    lines
}

/// Fails unless both say the same in the namespace of the kustomization.
fn assert_same(what: &str, kustomization: &str, values: &[&str]) {
    let wanted = kustomize_objects(kustomization);
    let mut all = vec!["namespace.create=true"];
    all.extend(values);
    for helm in HELMS {
        let found = differences(&wanted, &chart_objects(helm, "plimsoll", &all));
        assert!(found.is_empty(), "{what}, {values:?}, {helm}:\n{found}");
    }
}

fn assert_same_components(components: &[&Component]) {
    let names: Vec<&str> = components.iter().map(|component| component.name.as_str()).collect();
    let values: Vec<&str> = components.iter().map(|component| component.value.as_str()).collect();
    assert_same(&names.join(" and "), &with_components(components), &values);
}

#[test]
#[ignore = "make chart"]
fn chart_and_kustomization_say_the_same() {
    assert_same_components(&[]);
    let components = components();
    for component in &components {
        assert_same_components(&[component]);
    }
}

#[test]
#[ignore = "make chart"]
fn chart_and_kustomization_say_the_same_of_two_components() {
    let components = components();
    let mut pairs = 0;
    for (position, one) in components.iter().enumerate() {
        for other in components[position + 1..].iter().filter(|other| one.goes_with(other)) {
            assert_same_components(&[one, other]);
            pairs += 1;
        }
    }
    assert!(pairs > 100, "{pairs}");
}

/// Each component that is not excluded by one before it, from the front and from the back of the list.
#[test]
#[ignore = "make chart"]
fn chart_and_kustomization_say_the_same_of_many_components() {
    let components = components();
    for order in [components.iter().collect::<Vec<_>>(), components.iter().rev().collect()] {
        let mut many: Vec<&Component> = Vec::new();
        for component in order {
            if many.iter().all(|other| component.goes_with(other)) {
                many.push(component);
            }
        }
        assert!(many.len() > 12, "{}", many.len());
        // In the order of the documents.
        many.sort_by_key(|one| components.iter().position(|other| other.name == one.name));
        assert_same_components(&many);
    }
}

#[test]
#[ignore = "make chart"]
fn chart_and_kustomization_say_the_same_without_policies_and_flow_schemas() {
    let base = "resources: [DEPLOY/base]\n";
    assert_same("base alone", base, &["admission.enabled=false", "flowSchemas.enabled=false"]);
    let count =
        "resources: [DEPLOY/base, DEPLOY/flow]\ncomponents:\n- DEPLOY/components/gpu-count\n";
    assert_same("gpu-count", count, &["admission.enabled=false", "devicePlugin.gpuCount=true"]);
}

/// What a kustomization has to take out and set for taints alone.
const TAINTS_ALONE: &str = r#"
resources: [DEPLOY]
patches:
- target: {labelSelector: app.kubernetes.io/name=scheduler-extender}
  patch: &delete |
    $patch: delete
    kind: any
    metadata: {name: any}
- target: {labelSelector: app.kubernetes.io/name=gpushare-device-plugin}
  patch: *delete
- target: {kind: ValidatingAdmissionPolicy.*, name: plimsoll-(claims|bindings|gpu-environment|node-name|device-plugin-.*|extender-.*)}
  patch: *delete
- target: {kind: FlowSchema, name: plimsoll-scheduling}
  patch: *delete
- target: {kind: FlowSchema, name: plimsoll-leases}
  patch: |
    - {op: test, path: /spec/rules/0/subjects/0/serviceAccount/name, value: scheduler-extender}
    - {op: remove, path: /spec/rules/0/subjects/0}
- target: {kind: Deployment, name: annotator}
  patch: |
    - op: add
      path: /spec/template/spec/containers/0/env
      value: [{name: PLIMSOLL_TAINT_HOT_NODES, value: PreferNoSchedule}]
"#;

#[test]
#[ignore = "make chart"]
fn chart_without_an_extender_has_what_taints_need_and_no_more() {
    assert_same("taints alone", TAINTS_ALONE, &["scheduler.mode=none"]);
}

/// What docs/certificates.md has for a kustomization.
const CONTROL_PLANE: &str = "
resources: [DEPLOY]
patches:
- target: {kind: NetworkPolicy, name: scheduler-extender}
  patch: |-
    - op: add
      path: /spec/ingress/1/from
      value:
      - ipBlock:
          cidr: 192.0.2.10/32
      - podSelector:
          matchLabels:
            app.kubernetes.io/name: scheduler-extender
            app.kubernetes.io/part-of: plimsoll
";

#[test]
#[ignore = "make chart"]
fn chart_and_kustomization_say_the_same_of_the_control_planes_addresses() {
    let patch = CONTROL_PLANE.split_once("patches:").expect("it").1;
    assert!(read("docs/certificates.md").contains(patch), "docs/certificates.md has another one");
    assert_same("addresses", CONTROL_PLANE, &["networkPolicy.controlPlane={192.0.2.10/32}"]);
}

/// What docs/monitoring.md has for a kustomization.
const RUNBOOK: &str = r##"
resources: [DEPLOY]
replacements:
- source: {kind: ConfigMap, name: runbook, fieldPath: data.url}
  targets:
  - select: {kind: PrometheusRule, name: plimsoll}
    fieldPaths: [spec.groups.*.rules.*.annotations.runbook_url]
    options: {delimiter: "#", index: 0}
components:
- DEPLOY/components/monitoring
"##;

#[test]
#[ignore = "make chart"]
fn chart_and_kustomization_say_the_same_of_where_the_runbook_is() {
    let url = "https://git.example.com/plimsoll/blob/main/docs/monitoring.md";
    let document = read("docs/monitoring.md");
    assert!(
        document.contains(
            RUNBOOK
                .split_once("replacements:")
                .expect("them")
                .1
                .split_once("components:")
                .expect("them")
                .0
        ),
        "docs/monitoring.md has another one"
    );
    let runbook = format!(
        "{{name: runbook, literals: [url={url}], options: {{annotations: {{config.kubernetes.io/local-config: \"true\"}}}}}}"
    );
    let wanted = kustomize_objects_with(RUNBOOK, &runbook);
    let set = format!("monitoring.runbookUrl={url}");
    let values = ["namespace.create=true", ALL_OF_MONITORING, &set];
    for helm in HELMS {
        let chart = chart_objects(helm, "plimsoll", &values);
        let found = differences(&wanted, &chart);
        assert!(found.is_empty(), "{helm}:\n{found}");
        let rules = chart["monitoring.coreos.com/v1 PrometheusRule plimsoll/plimsoll"].to_string();
        assert!(rules.contains(&format!("{url}#plimsollextendernoleader")), "{rules}");
    }
}

/// All that the component `monitoring` has.
const ALL_OF_MONITORING: &str = "monitoring.podMonitor.enabled=true,monitoring.prometheusRule.enabled=true,monitoring.dashboards.enabled=true";

/// Neither the alerts of an extender, which would be missed, nor what scrapes it.
#[test]
#[ignore = "make chart"]
fn without_an_extender_nothing_watches_for_one() {
    for helm in HELMS {
        let values = ["scheduler.mode=none", ALL_OF_MONITORING];
        let objects = chart_objects(helm, "plimsoll", &values);
        let mut scraped: Vec<&str> = Vec::new();
        for object in objects.values().filter(|object| object["kind"] == "PodMonitor") {
            scraped.push(object["metadata"]["name"].as_str().expect("a name"));
        }
        assert_eq!(scraped, ["annotator", "node-exporter-plus"], "{helm}");
        let rule = &objects["monitoring.coreos.com/v1 PrometheusRule plimsoll/plimsoll"];
        let groups = rule["spec"]["groups"].as_array().expect("groups");
        let names: Vec<&Value> = groups.iter().map(|group| &group["name"]).collect();
        assert_eq!(names, ["plimsoll-annotator"], "{helm}");
    }
}
