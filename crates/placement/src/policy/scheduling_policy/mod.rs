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

pub(super) use parse::parse;
pub(super) use print::to_yaml;

pub(super) const API_VERSION: &str = "plimsoll.dev/v1alpha1";
pub(super) const KIND: &str = "SchedulingPolicy";

/// Until when a pod waits for a node below its hard limits, where the policy does not say.
const MAX_WAIT: jiff::SignedDuration = jiff::SignedDuration::from_mins(5);
/// The priority classes that every cluster has for what keeps it running.
const SYSTEM_CLASSES: [&str; 2] = ["system-node-critical", "system-cluster-critical"];
/// Trimaran's default, as a fraction.
const TARGET: f64 = 0.4;

/// The JSON schema of the kind, for editors and pipelines. It describes fields and words; what depends on several fields
/// is checked by the parser alone.
#[must_use]
pub fn json_schema() -> Schema {
    let mut schema = schemars::schema_for!(document::SchedulingPolicy);
    RecursiveTransform(tidy).transform(&mut schema);
    schema
}

/// Leaves out a default of `null`, and makes one line of the description.
fn tidy(schema: &mut Schema) {
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ");
    }
}
