//! The answer of `GET /v1/health` on every program's admin port: what is well, and what is not.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The health of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// The program's name, `annotator` for example.
    pub program: String,
    /// Its version.
    pub version: String,
    /// Its conditions, sorted by their ids; at most some dozens.
    pub conditions: Vec<Condition>,
}

/// One thing that a program knows of itself, or of what it watches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Condition {
    /// Which it is. A release may add ids, and keeps the meaning of those there are.
    pub id: String,
    /// How it is.
    pub state: ConditionState,
    /// What is so, for people; at most 1,000 bytes.
    pub text: String,
    /// What to do; absent where nothing is to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Since when it is in this state, RFC 3339.
    #[schemars(with = "String")]
    pub since: Timestamp,
}

/// How a condition is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ConditionState {
    /// Nothing is wrong.
    Ok,
    /// It is to be looked at.
    Warning,
    /// Something does not work.
    Failed,
    /// The program does not know it, or not yet.
    Unknown,
}
