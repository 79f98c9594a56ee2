//! The fields of Kubernetes' objects that go into a bundle.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use placement::names::Names;
use serde_json::Value;

use super::{BLANK, blank, is_secret_name, is_value_of_flag, text};

/// The fields that are kept. Of a field that is none of these nothing is kept.
static FIELDS: LazyLock<BTreeSet<&str>> =
    LazyLock::new(|| FIELD_NAMES.split_ascii_whitespace().collect());
/// Their names, with blanks between.
const FIELD_NAMES: &str = include_str!("fields.txt");
/// The fields whose own fields have names of the cluster's making, and are all kept but for what has a secret's name.
const MAPS: [&str; 8] = [
    "labels",
    "matchLabels",
    "selector",
    "nodeSelector",
    "requests",
    "limits",
    "capacity",
    "allocatable",
];
/// The keys of Plimsoll's own ConfigMaps, the only ones whose data are kept.
const DATA: [&str; 2] = ["policy.yaml", "config.yaml"];
/// The beginning of variables whose values are kept, unless their names are those of secrets.
const VARIABLES: [&str; 2] = ["PLIMSOLL_", "NVIDIA_"];
/// Other programs' annotations that are kept: who installs Plimsoll, and how often a Deployment changed.
const ANNOTATIONS: [&str; 4] = [
    "meta.helm.sh/release-name",
    "meta.helm.sh/release-namespace",
    "argocd.argoproj.io/tracking-id",
    "deployment.kubernetes.io/revision",
];
/// The beginning of Aliyun's annotations about GPUs, which are kept.
const ALIYUN: &str = "ALIYUN_COM_GPU_MEM_";

/// Drops from an object, or a list of them, all that is not kept. Of a Secret nothing is kept.
pub(in super::super) fn kept(value: &mut Value) {
    keep("", value);
}

/// `key` is the field that the value is of.
fn keep(key: &str, value: &mut Value) {
    match value {
        Value::Object(fields) if fields.get("kind").is_some_and(|kind| kind == "Secret") => {
            fields.clear();
        }
        Value::Object(fields) => {
            match key {
                "annotations" => fields.retain(|key, value| is_kept_annotation(key, value)),
                "data" => fields.retain(|key, _| DATA.contains(&key.as_str())),
                key if MAPS.contains(&key) => {
                    for (key, value) in &mut *fields {
                        if is_secret_name(key) {
                            blank(value);
                        }
                    }
                }
                _ => fields.retain(|key, _| {
                    MAPS.contains(&key.as_str())
                        || ["annotations", "data"].contains(&key.as_str())
                        || FIELDS.contains(key.as_str())
                }),
            }
            let name = fields.get("name").and_then(Value::as_str).unwrap_or_default();
            if key == "env" && !is_kept_variable(name) || is_secret_name(name) {
                fields.remove("value");
            }
            fields.iter_mut().for_each(|(key, value)| keep(key, value));
        }
        Value::Array(words) if ["args", "command"].contains(&key) => keep_words(words),
        Value::Array(items) => items.iter_mut().for_each(|item| keep(key, item)),
        Value::String(kept) => *kept = text(kept),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Of a command's words, a script is dropped, and what is a flag's secret.
fn keep_words(words: &mut [Value]) {
    let mut flag = String::new();
    for word in words {
        let before = word.as_str().unwrap_or_default().to_owned();
        if before.contains(char::is_whitespace) || is_value_of_flag(&flag, &before) {
            *word = Value::from(BLANK);
        } else {
            *word = Value::from(text(&before));
        }
        flag = before;
    }
}

pub(super) fn is_kept_variable(name: &str) -> bool {
    VARIABLES.iter().any(|start| name.starts_with(start))
}

pub(super) fn is_kept_annotation(key: &str, value: &Value) -> bool {
    Names::default().owns(key)
        || ANNOTATIONS.contains(&key)
        || key.starts_with(ALIYUN)
        || value.as_str().is_some_and(|value| is_reading(key, value))
}

/// Whether it is an annotation of crane's form: a key without a domain, and a number with a time behind it.
fn is_reading(key: &str, value: &str) -> bool {
    let of_reading = |c: char| c.is_ascii_digit() || ".,:-+eTZ".contains(c);
    !key.contains('/') && value.contains(',') && value.chars().all(of_reading)
}
