//! The checked-in schemas are what the types give. After a change of a type:
//! `PLIMSOLL_REGENERATE=1 cargo test -p plimsoll-api schema`.

use std::fs;
use std::path::Path;

use schemars::{JsonSchema, Schema, schema_for};

fn is_fresh<T: JsonSchema>(name: &str) {
    is_kept(name, &schema_for!(T));
}

fn is_kept(name: &str, schema: &Schema) {
    let fresh = serde_json::to_string_pretty(schema).unwrap() + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("schema/{name}.schema.json"));
    if std::env::var_os("PLIMSOLL_REGENERATE").is_some() {
        fs::write(&path, &fresh).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == fresh, "{name}: stale; the first lines of {} say how to renew it", file!());
}

#[test]
fn gpus() {
    is_fresh::<api::gpus::Gpus>("gpu-cards");
}

#[test]
fn share() {
    is_fresh::<api::share::NodeShare>("gpu-share");
}

#[test]
fn share_config() {
    is_fresh::<api::share_config::ShareConfig>("share-config");
}

#[test]
fn claim() {
    is_fresh::<api::claim::Claim>("gpu-claim");
}

#[test]
fn allocation() {
    is_fresh::<api::allocation::Allocation>("gpu-allocation");
}

#[test]
fn expected_use() {
    is_fresh::<api::expected_use::ExpectedUse>("expected-use");
}

#[test]
fn inspect() {
    is_fresh::<api::inspect::Inspected>("inspect");
}

#[test]
fn what_the_page_shows() {
    is_fresh::<api::state::State>("state");
    is_fresh::<api::node::NodeDetail>("node");
    is_fresh::<api::node::AllGpus>("all-cards");
    is_fresh::<api::decisions::Decisions>("decisions");
    is_fresh::<api::capacity::Question>("capacity-request");
    is_fresh::<Vec<api::capacity::Capacity>>("capacity");
    is_fresh::<api::moves::Moves>("moves");
    is_fresh::<api::simulate::SimulateRequest>("simulate-request");
    is_fresh::<api::simulate::Simulation>("simulate");
}

#[test]
fn explain() {
    is_fresh::<api::explain::Explanation>("explain");
    is_fresh::<api::explain::Request>("explain-request");
}

#[test]
fn health() {
    is_fresh::<api::health::Health>("health");
}

#[test]
fn shadow() {
    is_fresh::<api::shadow::Shadow>("shadow");
}

#[test]
fn policy_check() {
    is_fresh::<api::policy_check::PolicyCheck>("policy-check");
}

#[test]
fn pods() {
    is_fresh::<api::pods::NodePods>("pods");
}

#[test]
fn readings() {
    is_fresh::<api::readings::PolledReadings>("readings");
}

#[test]
fn workloads() {
    is_fresh::<api::workloads::Workloads>("workloads");
}

#[test]
fn scheduling_policy() {
    is_kept("scheduling-policy", &placement::policy::json_schema());
}
