//! What the chart's files say by themselves, without Helm.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde_json::Value;

use super::render::{program, stderr};
use crate::flags::knows_variable;
use crate::manifests::{container, read, strings, yaml};
use crate::reference::assert_fresh;

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) fn schema() -> Value {
    serde_json::from_str(&read("chart/values.schema.json")).expect("JSON")
}

#[test]
fn the_chart_has_this_version() {
    let chart = yaml("chart/Chart.yaml");
    assert_eq!([&chart["version"], &chart["appVersion"]], [VERSION, VERSION]);
}

/// Templates cannot read values.yaml itself.
#[test]
fn the_values_for_templates_are_those_of_values_yaml_by_make_reference() {
    let values = serde_json::to_string_pretty(&yaml("chart/values.yaml")).expect("JSON");
    assert_fresh("deploy/chart/defaults.json", &format!("{values}\n"));
    let call = "{{- include \"plimsoll.complete\" . -}}\n";
    for file in fs::read_dir(deploy::folder().join("chart/templates")).expect("templates") {
        let path = file.expect("a template").path();
        let text = fs::read_to_string(&path).expect("UTF-8");
        assert!(text.starts_with(call) || path.ends_with("_helpers.tpl"), "{path:?}");
    }
}

#[test]
#[ignore = "make chart"]
fn the_dashboards_of_the_chart_satisfy_grafanas_schema() {
    let folder = deploy::folder().join("chart/monitoring/dashboards");
    let files = fs::read_dir(folder).expect("dashboards").map(|file| file.expect("it").path());
    let output = Command::new(program("DASHBOARDS")).args(files).output().expect("it runs");
    assert!(output.status.success(), "{}", stderr(&output));
}

/// The leaves of a tree of values: what is no object, and objects without fields.
pub(super) fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    match value.as_object() {
        Some(fields) if !fields.is_empty() => {
            for (name, field) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                leaves(field, &path, found);
            }
        }
        _ => found.push(path.to_owned()),
    }
}

/// Fails where an object of the schema takes names that it does not list. Objects without a list are maps.
fn assert_strict(schema: &Value, path: &str) {
    let is_kubernetes = OF_KUBERNETES.contains(&path);
    if schema["properties"].is_object() && !is_kubernetes {
        assert_eq!(schema["additionalProperties"], false, "{path}");
    }
    match schema {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, field)| assert_strict(field, &format!("{path}/{name}")));
        }
        Value::Array(items) => items.iter().for_each(|item| assert_strict(item, path)),
        _ => {}
    }
}

/// What has as many fields as Kubernetes gives it.
const OF_KUBERNETES: [&str; 2] =
    ["/definitions/podTemplate/properties/spec", "/definitions/containers/items"];

#[test]
fn no_object_of_the_schema_takes_a_name_that_it_does_not_list() {
    assert_strict(&schema(), "");
}

#[test]
fn the_schema_has_every_value_and_no_other() {
    let mut values = Vec::new();
    leaves(&yaml("chart/values.yaml"), "", &mut values);
    let mut known = Vec::new();
    known_values(&schema()["properties"], "", &mut known);
    for leaf in &values {
        assert!(known.iter().any(|known| is_in(leaf, known)), "the schema has no {leaf}");
    }
    for known in known.iter().filter(|known| !["global", "enabled"].contains(&known.as_str())) {
        assert!(values.iter().any(|leaf| is_in(leaf, known)), "values.yaml has no {known}");
    }
}

/// Whether a value is this one of the schema, or a field of it where the schema has a map.
fn is_in(leaf: &str, known: &str) -> bool {
    leaf.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn known_values(properties: &Value, path: &str, found: &mut Vec<String>) {
    for (name, property) in properties.as_object().expect("properties") {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        // What may be an object too was one in an earlier release.
        if property["properties"].is_object() && property["type"] == "object" {
            known_values(&property["properties"], &path, found);
        } else if property["$ref"] != MOVED {
            found.push(path);
        }
    }
}

const MOVED: &str = "#/definitions/moved";

fn moved_values(property: &Value, path: &str, found: &mut Vec<String>) {
    if property["$ref"] == MOVED {
        found.push(path.trim_start_matches('.').to_owned());
    }
    for (name, inner) in property["properties"].as_object().into_iter().flatten() {
        moved_values(inner, &format!("{path}.{name}"), found);
    }
}

/// Otherwise the schema would take one without a word, or refuse it without what is in its place.
#[test]
fn the_schema_takes_the_values_that_are_gone_so_that_the_templates_tell_of_them() {
    let mut taken = Vec::new();
    moved_values(&schema(), "", &mut taken);
    taken.sort();
    let told: BTreeMap<String, Value> =
        serde_json::from_str(&read("chart/moved.json")).expect("JSON");
    assert_eq!(taken, told.into_keys().collect::<Vec<_>>());
}

/// The variables that the values `names` set.
const NAMES: [&str; 2] = ["PLIMSOLL_ANNOTATION_PREFIX", "PLIMSOLL_GPU_RESOURCE"];

/// A flag among the arguments wins over its variable, which would have no effect.
#[test]
fn variables_of_flags_that_stand_among_the_arguments_are_refused() {
    for (program, values) in [
        ("annotator", "annotator"),
        ("gpushare-device-plugin", "devicePlugin"),
        ("node-exporter-plus", "exporter"),
        ("scheduler-extender", "extender"),
    ] {
        let container = container(program);
        let flags = strings(&container["args"]);
        let mut taken: Vec<String> = flags
            .iter()
            .map(|flag| flag.trim_start_matches('-').split('=').next().expect("a name"))
            .map(|flag| format!("PLIMSOLL_{}", flag.to_uppercase().replace(['-', '.'], "_")))
            .collect();
        let variables = container["env"].as_array().into_iter().flatten();
        let of_pod = variables.filter(|variable| !variable["valueFrom"].is_null());
        taken.extend(of_pod.map(|variable| variable["name"].as_str().expect("it").to_owned()));
        // Those of `names`, which the policies have too.
        taken.extend(
            NAMES
                .iter()
                .filter(|name| knows_variable(program, name))
                .map(|name| (*name).to_owned()),
        );
        taken.sort();
        let env = &schema()["properties"][values]["properties"]["env"]["propertyNames"];
        assert_eq!(strings(&env["not"]["enum"]), taken, "{program}");
    }
}
