//! What a container runtime does with CDI device names: look them up in the node's specifications.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// Every device of every specification, by its full name (`vendor/class=name`).
#[derive(Debug, Default)]
pub(super) struct Specs(BTreeMap<String, Value>);

/// What named devices add to a container.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Edits {
    pub(super) env: Vec<(String, String)>,
    pub(super) devices: Vec<String>,
}

impl Specs {
    /// Reads the directory afresh, as runtimes do when a device is not known yet.
    pub(super) fn read(directory: &Path) -> Self {
        let files = fs::read_dir(directory).into_iter().flatten().flatten();
        let json = files.filter(|file| file.path().extension().is_some_and(|kind| kind == "json"));
        let specs = json.filter_map(|file| {
            serde_json::from_str::<Value>(&fs::read_to_string(file.path()).ok()?).ok()
        });
        Self(specs.flat_map(|spec| devices(&spec)).collect())
    }

    /// What the named devices add. A real runtime refuses to start a container that names a device
    /// which nobody specified; here it gets nothing from it, and whoever checks sees no card.
    pub(super) fn edits(&self, names: &[String]) -> Edits {
        let mut edits = Edits::default();
        for device in names.iter().filter_map(|name| self.0.get(name)) {
            let list = |part: &str| device["containerEdits"][part].as_array().into_iter().flatten();
            let env = list("env").filter_map(Value::as_str).filter_map(|pair| pair.split_once('='));
            edits.env.extend(env.map(|(key, value)| (key.to_owned(), value.to_owned())));
            let paths = list("deviceNodes").filter_map(|node| node["path"].as_str());
            edits.devices.extend(paths.map(str::to_owned));
        }
        edits
    }

    /// Another device of the same kind, if there is one.
    pub(super) fn another(&self, name: &str) -> String {
        let kind = name.split('=').next().unwrap_or_default();
        let same_kind = |other: &&String| other.split('=').next() == Some(kind) && *other != name;
        self.0.keys().find(same_kind).map_or_else(|| name.to_owned(), String::clone)
    }
}

fn devices(spec: &Value) -> Vec<(String, Value)> {
    let kind = spec["kind"].as_str().unwrap_or_default();
    let devices = spec["devices"].as_array().into_iter().flatten();
    let named =
        |device: &Value| Some((format!("{kind}={}", device["name"].as_str()?), device.clone()));
    devices.filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: &str = r#"{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [
        {"name": "GPU-a", "containerEdits": {"env": ["A=1=2"], "deviceNodes": [{"path": "/dev/nvidia0"}]}},
        {"name": "GPU-b", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1"}]}}]}"#;

    fn specs() -> Specs {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("nvidia.json"), SPEC).unwrap();
        fs::write(directory.path().join("half.json"), "{").unwrap();
        Specs::read(directory.path())
    }

    #[test]
    fn a_named_device_adds_its_environment_and_nodes() {
        let edits = specs().edits(&["nvidia.com/gpu=GPU-a".to_owned()]);
        assert_eq!(edits.env, [("A".to_owned(), "1=2".to_owned())]);
        assert_eq!(edits.devices, ["/dev/nvidia0"]);
    }

    #[test]
    fn a_device_that_nobody_specified_adds_nothing() {
        assert_eq!(specs().edits(&["nvidia.com/gpu=GPU-c".to_owned()]), Edits::default());
    }
}
