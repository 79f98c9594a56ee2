//! Our own kind, `plimsoll.dev/v1alpha1 SchedulingPolicy`: parsed, printed, and as a JSON schema.
//!
//! Invariant: what is printed of a policy of this kind parses to the same policy.

mod document;
mod parse;
mod print;
mod scalar;

use schemars::Schema;
use schemars::transform::{RecursiveTransform, Transform};
use serde_json::Value;

use super::Scale;

pub(super) use parse::parse;
pub(super) use print::to_yaml;

pub(super) const API_VERSION: &str = "plimsoll.dev/v1alpha1";
pub(super) const KIND: &str = "SchedulingPolicy";

/// The default time that a pod waits for a node below its hard limits.
const MAX_WAIT: jiff::SignedDuration = jiff::SignedDuration::from_mins(5);
/// The priority classes that every cluster has for pods that it needs to run.
const SYSTEM_CLASSES: [&str; 2] = ["system-node-critical", "system-cluster-critical"];
/// The scale where none is given.
const DEFAULT_SCALE: Scale = Scale::of(30);

/// The JSON schema of the kind, for editors and pipelines. It describes fields and their values; only the parser checks
/// what depends on several fields.
#[must_use]
pub fn json_schema() -> Schema {
    let mut schema = schemars::schema_for!(document::SchedulingPolicy);
    RecursiveTransform(tidy).transform(&mut schema);
    schema
}

/// Removes defaults of `null`, and puts each description on one line.
fn tidy(schema: &mut Schema) {
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ");
    }
}
