//! Reads the objects that Helm renders from the chart, and finds the parts that tests look at. Those of each
//! `scheduler.mode` are kept in `deploy/manifests`; the functions here are about the mode `external`.

use std::fs;
use std::sync::LazyLock;

use serde_json::Value;

/// The programs, which are also the names of workloads, containers, images and service accounts.
pub(crate) const PROGRAMS: [&str; 4] =
    ["annotator", "gpushare-device-plugin", "node-exporter-plus", "scheduler-extender"];

/// Where the shipped manifests have the images: a name that no server can have.
pub(crate) const REGISTRY: &str = "plimsoll.invalid";

/// The modes whose manifests are kept.
pub(crate) const MODES: [&str; 3] = ["external", "second", "none"];

/// Where the MPS daemon is kept, which no mode has by itself.
const MPS: &str = "tests/rendered/mps-control-daemon.yaml";

/// A file of `deploy/`, as text.
pub(crate) fn read(path: &str) -> String {
    let path = deploy::folder().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// One YAML document of `deploy/`.
pub(crate) fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Objects that were rendered together.
pub(crate) struct Manifests(Vec<Value>);

/// Where what ResourceClaims need is kept, which no mode has by itself.
const CLAIMS: &str = "tests/rendered/claims.yaml";

impl Manifests {
    /// Those of a `scheduler.mode`, parsed once.
    pub(crate) fn of_mode(mode: &str) -> &'static Self {
        static ALL: LazyLock<[Manifests; 3]> = LazyLock::new(|| {
            MODES.map(|mode| Manifests::of_text(&read(&format!("manifests/{mode}/plimsoll.yaml"))))
        });
        &ALL[MODES.iter().position(|known| *known == mode).expect("a mode")]
    }

    /// The MPS daemon and what belongs to it, with `mps.exclusive`.
    pub(crate) fn of_mps() -> &'static Self {
        static MPS_DAEMON: LazyLock<Manifests> = LazyLock::new(|| Manifests::of_text(&read(MPS)));
        &MPS_DAEMON
    }

    /// What ResourceClaims need beside the device plugin, in the mode `external`.
    pub(crate) fn of_claims() -> &'static Self {
        static CLAIMS_OBJECTS: LazyLock<Manifests> =
            LazyLock::new(|| Manifests::of_text(&read(CLAIMS)));
        &CLAIMS_OBJECTS
    }

    pub(crate) fn of_text(text: &str) -> Self {
        // Strict about duplicate keys, as the API server is.
        let all: Vec<Value> =
            serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}"));
        Self(all.into_iter().filter(|object| !object.is_null()).collect())
    }

    pub(crate) fn objects(&self) -> &[Value] {
        &self.0
    }

    /// The objects of one kind.
    pub(crate) fn of_kind(&self, kind: &str) -> Vec<Value> {
        self.0.iter().filter(|object| object["kind"] == kind).cloned().collect()
    }

    /// The only object with this kind and name.
    pub(crate) fn object(&self, kind: &str, name: &str) -> Value {
        let mut found = self.of_kind(kind);
        found.retain(|object| object["metadata"]["name"] == name);
        assert_eq!(found.len(), 1, "{kind} {name}");
        found.remove(0)
    }

    pub(crate) fn has(&self, kind: &str, name: &str) -> bool {
        self.0.iter().any(|object| object["kind"] == kind && object["metadata"]["name"] == name)
    }

    /// The Deployment or DaemonSet of this name.
    pub(crate) fn workload(&self, name: &str) -> Value {
        let mut found: Vec<_> = self
            .0
            .iter()
            .filter(|object| {
                !object["spec"]["template"].is_null() && object["metadata"]["name"] == name
            })
            .collect();
        assert_eq!(found.len(), 1, "workloads named {name}");
        found.remove(0).clone()
    }

    /// Whether there is a workload of this name.
    pub(crate) fn runs(&self, name: &str) -> bool {
        self.has("Deployment", name) || self.has("DaemonSet", name)
    }

    /// The pod that a workload makes.
    pub(crate) fn pod(&self, name: &str) -> Value {
        self.workload(name)["spec"]["template"]["spec"].clone()
    }

    /// The first container of a workload's pod.
    pub(crate) fn container(&self, name: &str) -> Value {
        self.pod(name)["containers"][0].clone()
    }
}

fn external() -> &'static Manifests {
    Manifests::of_mode("external")
}

pub(crate) fn objects() -> &'static [Value] {
    external().objects()
}

/// The objects of one kind.
pub(crate) fn of_kind(kind: &str) -> Vec<Value> {
    external().of_kind(kind)
}

/// The Deployment or DaemonSet of a program.
pub(crate) fn workload(program: &str) -> Value {
    external().workload(program)
}

/// The pod that a program's workload makes.
pub(crate) fn pod(program: &str) -> Value {
    external().pod(program)
}

/// The container of a program in its pod: the first, and the only one but for the device plugin's [`gpu_probe`].
pub(crate) fn container(program: &str) -> Value {
    let containers = pod(program)["containers"].as_array().cloned().expect("containers");
    let count = if program == "gpushare-device-plugin" { 2 } else { 1 };
    assert_eq!(containers.len(), count, "containers of {program}");
    containers[0].clone()
}

/// The container beside the device plugin that opens CUDA contexts.
pub(crate) fn gpu_probe() -> Value {
    let container = pod("gpushare-device-plugin")["containers"][1].clone();
    assert_eq!(container["name"], "gpu-probe");
    container
}

/// A list of strings, or none where there is no list.
pub(crate) fn strings(list: &Value) -> Vec<String> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().map(|item| item.as_str().expect("a string").to_owned()).collect()
}

/// The items of a list that have this name.
pub(crate) fn items_named(list: &Value, name: &str) -> Vec<Value> {
    let items = list.as_array().into_iter().flatten();
    items.filter(|item| item["name"] == name).cloned().collect()
}

/// The container's ports by name.
pub(crate) fn ports(program: &str) -> Vec<(String, u64)> {
    let container = container(program);
    let mut ports = Vec::new();
    for port in container["ports"].as_array().expect("ports") {
        let name = port["name"].as_str().expect("a name").to_owned();
        ports.push((name, port["containerPort"].as_u64().expect("a number")));
    }
    ports
}
