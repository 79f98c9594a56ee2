//! The container runtime's side of CDI: devices are looked up by name in the node's specifications.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::json::{list, text};

/// The devices of all specifications, by full name (`vendor/class=name`).
#[derive(Debug, Default)]
pub(super) struct Specs(BTreeMap<String, Value>);

/// What devices add to a container: environment, and device nodes by their paths.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Edits {
    pub(super) env: Vec<(String, String)>,
    pub(super) devices: Vec<String>,
}

impl Specs {
    /// Reads the specifications in a directory. Files that are no JSON are skipped.
    pub(super) fn read(directory: &Path) -> Self {
        let files = fs::read_dir(directory).into_iter().flatten().flatten();
        let json = files.filter(|file| file.path().extension().is_some_and(|kind| kind == "json"));
        let specs = json.filter_map(|file| {
            serde_json::from_str::<Value>(&fs::read_to_string(file.path()).ok()?).ok()
        });
        Self(specs.flat_map(|spec| devices(&spec)).collect())
    }

    /// What the named devices add. A real runtime refuses to start a container with an unknown device. Here an unknown
    /// one adds nothing, and the container is without a GPU.
    pub(super) fn edits(&self, names: &[String]) -> Edits {
        let mut edits = Edits::default();
        for device in names.iter().filter_map(|name| self.0.get(name)) {
            let added = &device["containerEdits"];
            let env = list(&added["env"]).filter_map(|pair| text(pair).split_once('='));
            edits.env.extend(env.map(|(key, value)| (key.to_owned(), value.to_owned())));
            let paths = list(&added["deviceNodes"]).filter_map(|node| node["path"].as_str());
            edits.devices.extend(paths.map(str::to_owned));
        }
        edits
    }

    /// The name of another device of the same kind, or the same name where there is none.
    pub(super) fn another(&self, name: &str) -> String {
        let kind = name.split('=').next().unwrap_or_default();
        self.0
            .keys()
            .find(|other| other.split('=').next() == Some(kind) && *other != name)
            .map_or_else(|| name.to_owned(), String::clone)
    }
}

fn devices(spec: &Value) -> Vec<(String, Value)> {
    let kind = text(&spec["kind"]);
    list(&spec["devices"]).map(|device| named_device(kind, device)).collect()
}

fn named_device(kind: &str, device: &Value) -> (String, Value) {
    (format!("{kind}={}", text(&device["name"])), device.clone())
}
