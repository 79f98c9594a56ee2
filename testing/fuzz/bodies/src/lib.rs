//! What every fuzz target does with its input, once: libFuzzer runs these functions for as long as it is
//! told to (`make fuzz`), and `tests/stable.rs` for a short time on stable Rust (`make test`).
//!
//! Invariant: a body panics exactly where a promise of the code under it is broken; input that is refused is
//! fine. A new target is a line in [`TARGETS`] and a file in `fuzz_targets/`, which a test compares.

mod annotations;
mod exporter;
mod extender;
mod kernel;
mod objects;
mod plugin;
pub mod seeds;

/// A target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, which is that of its file in `fuzz_targets/`.
    pub name: &'static str,
    /// What it does with an input.
    pub body: fn(&[u8]),
    /// Files and folders of the repository whose content is a good start.
    pub files: &'static [&'static str],
    /// More such inputs.
    pub made: fn() -> Vec<Vec<u8>>,
}

const TREES: &str = "node-exporter-plus/tests/fixtures";
const JSON: &str = "crates/api/tests/golden";
const POLICIES: &str = "crates/placement/tests/golden";

/// All of them.
pub static TARGETS: &[Target] = &[
    Target { name: "cards", body: annotations::cards, files: &[JSON], made: Vec::new },
    Target { name: "claim", body: annotations::claim, files: &[JSON], made: annotations::claims },
    Target { name: "device_ids", body: plugin::device_ids, files: &[JSON], made: plugin::ids },
    Target {
        name: "exporter_config",
        body: exporter::config,
        files: &["docs/configuration.md"],
        made: exporter::configs,
    },
    Target {
        name: "exporter_statistics",
        body: exporter::statistics,
        files: &["node-exporter-plus/tests/golden"],
        made: Vec::new,
    },
    Target {
        name: "extender_requests",
        body: extender::requests,
        files: &[],
        made: extender::examples,
    },
    Target { name: "gpu_report", body: kernel::gpu_report, files: &[], made: kernel::reports },
    Target { name: "objects", body: objects::objects, files: &[JSON], made: objects::examples },
    Target {
        name: "policy",
        body: annotations::policy,
        files: &[
            POLICIES,
            "deploy/base/policy.yaml",
            "testing/e2e/deploy/short-periods/policy.yaml",
        ],
        made: Vec::new,
    },
    Target { name: "proc_files", body: kernel::proc_files, files: &[TREES], made: kernel::pairs },
    Target { name: "reading", body: annotations::reading, files: &[], made: annotations::readings },
    Target {
        name: "samples_file",
        body: exporter::samples,
        files: &[],
        made: exporter::samples_files,
    },
];

/// What libFuzzer's targets call.
///
/// # Panics
/// Where the target does, which is a finding, and where there is none of that name.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    assert!(target.is_some(), "no target is named {name}");
    target.into_iter().for_each(|target| (target.body)(input));
}

/// A text, where the input is one.
fn text(input: &[u8]) -> Option<&str> {
    str::from_utf8(input).ok()
}
