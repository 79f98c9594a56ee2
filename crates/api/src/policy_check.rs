//! The answer of `plimsoll policy check --json` and of `GET /v1/policy`: a load policy as the programs read it, or why
//! they refuse it.

use placement::policy::{Exported, LoadPolicy, PolicyKind, ReadingSource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A checked policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyCheck {
    /// Whether the programs accept it.
    pub valid: bool,
    /// Why they refuse it; absent if they accept it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
    /// Why the newest version of an extender's policy file is refused, with line and field: this policy, the one
    /// before, stays in force. Absent if it is not refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The kind of its text, as in `DynamicSchedulerPolicy`; absent if it is refused, and for the policy in force of an
    /// extender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// It as a SchedulingPolicy with all fields, defaults included; absent if it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Value>,
    /// Its metrics that node-exporter-plus serves only where `--config.file` names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when_configured: Vec<String>,
    /// Warnings about what is valid and probably not meant.
    pub warnings: Vec<String>,
}

/// The first fault of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    /// The line, from 1; 0 for the text as a whole.
    pub line: u64,
    /// The field, as in `spec.predicate[1].maxLimitPecent`.
    pub field: String,
    /// What is wrong, and what is expected.
    pub problem: String,
}

/// The answer for a policy that is accepted, of the kind `kind` where that is known. `source` gives the readings.
#[must_use]
pub fn effective(
    policy: &LoadPolicy,
    kind: Option<PolicyKind>,
    source: &ReadingSource,
) -> PolicyCheck {
    let mut when_configured = Vec::new();
    if *source == ReadingSource::Exporters {
        for rule in &policy.sync {
            if Exported::of(&rule.metric) == Exported::WhenConfigured {
                when_configured.push(rule.metric.to_string());
            }
        }
    }
    PolicyCheck {
        valid: true,
        kind: kind.map(|kind| kind.name().to_owned()),
        policy: Some(policy.to_json()),
        when_configured,
        warnings: policy.warnings_with(source).iter().map(ToString::to_string).collect(),
        ..PolicyCheck::default()
    }
}
