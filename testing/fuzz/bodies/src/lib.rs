//! The body of every fuzz target: parses one input and asserts what must hold of the result. `make fuzz` has libFuzzer
//! call the bodies for a given time, `make test` calls them for a short time on stable Rust (`tests/it/stable.rs`).
//!
//! Invariant: a body panics only where the code under test breaks a promise. An input that a parser refuses is no
//! finding. A new target is an entry of [`TARGETS`] and a file in `fuzz_targets/`; a test compares the two.

mod annotations;
mod claims;
mod exporter;
mod extender;
mod kernel;
mod objects;
mod plugin;
mod pod_use;
pub mod seeds;

/// A fuzz target: its body, and the inputs that it starts from.
///
/// # Examples
/// ```
/// let target = bodies::TARGETS.iter().find(|target| target.name == "reading").unwrap();
/// // Panics only on a finding.
/// (target.body)(b"0.63012,2026-11-20T09:00:00Z");
/// assert!(!target.seeds().is_empty());
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, and that of its file in `fuzz_targets/` without `.rs`.
    pub name: &'static str,
    /// Parses an input and asserts what must hold. Panics on a finding.
    pub body: fn(&[u8]),
    /// Files and folders whose content are seeds, as paths from the repository's root.
    pub files: &'static [&'static str],
    /// Further seeds, written in code.
    pub examples: fn() -> Vec<Vec<u8>>,
}

/// Files of `/proc` and `/sys` as they were recorded on real nodes.
const TREES: &str = "node-exporter-plus/tests/fixtures";
const JSON: &str = "crates/api/tests/golden";
const POLICIES: &str = "crates/placement/tests/golden";

/// All targets, by name.
pub static TARGETS: &[Target] = &[
    Target { name: "gpus", body: annotations::gpus, files: &[JSON], examples: Vec::new },
    Target {
        name: "cgroup_files",
        body: kernel::cgroup_files,
        files: &["node-exporter-plus/tests/fixtures/cgroups"],
        examples: kernel::cgroup_names,
    },
    Target {
        name: "claim",
        body: annotations::claim,
        files: &[JSON],
        examples: annotations::claims,
    },
    Target {
        name: "gpu_wishes",
        body: annotations::gpu_wishes,
        files: &[],
        examples: annotations::wishes,
    },
    Target { name: "device_ids", body: plugin::device_ids, files: &[JSON], examples: plugin::ids },
    Target {
        name: "exporter_config",
        body: exporter::config,
        files: &["docs/readings.md"],
        examples: exporter::configs,
    },
    Target {
        name: "exporter_statistics",
        body: exporter::statistics,
        files: &["node-exporter-plus/tests/golden"],
        examples: Vec::new,
    },
    Target {
        name: "extender_names",
        body: extender::names,
        files: &[],
        examples: extender::go_examples,
    },
    Target {
        name: "extender_requests",
        body: extender::requests,
        files: &[],
        examples: extender::examples,
    },
    Target {
        name: "gpu_report",
        body: kernel::gpu_report,
        files: &[],
        examples: kernel::gpu_reports,
    },
    Target {
        name: "nvidia_cdi",
        body: plugin::nvidia_cdi,
        files: &[],
        examples: plugin::specifications,
    },
    Target { name: "objects", body: objects::objects, files: &[JSON], examples: objects::examples },
    Target {
        name: "pod_use",
        body: pod_use::pod_use,
        files: &[JSON, "node-exporter-plus/tests/golden"],
        examples: Vec::new,
    },
    Target {
        name: "policy",
        body: annotations::policy,
        files: &[
            POLICIES,
            "deploy/chart/policies/shipped.yaml",
            "deploy/chart/policies/crane.yaml",
            "testing/e2e/deploy/short-periods/policy.yaml",
        ],
        examples: Vec::new,
    },
    Target {
        name: "proc_files",
        body: kernel::proc_files,
        files: &[TREES],
        examples: kernel::recorded_files,
    },
    Target {
        name: "process_groups",
        body: plugin::process_groups,
        files: &[],
        examples: plugin::groups,
    },
    Target {
        name: "reading",
        body: annotations::reading,
        files: &[JSON],
        examples: annotations::readings,
    },
    Target {
        name: "resource_claim",
        body: claims::resource_claim,
        files: &[],
        examples: claims::resource_claims,
    },
    Target {
        name: "samples_file",
        body: exporter::samples,
        files: &[],
        examples: exporter::samples_files,
    },
    Target {
        name: "share_config",
        body: claims::share_config,
        files: &["crates/api/tests/golden/share-config.json"],
        examples: claims::share_configs,
    },
];

/// Runs the target of this name. libFuzzer's targets call it.
///
/// # Panics
/// On a finding, and when no target has the name.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    assert!(target.is_some(), "no target is named {name}");
    target.into_iter().for_each(|target| (target.body)(input));
}

/// The input as text; `None` where it is not UTF-8.
fn text(input: &[u8]) -> Option<&str> {
    str::from_utf8(input).ok()
}
