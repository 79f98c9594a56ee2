//! The parameters `ShareConfig` of a ResourceClaim or a DeviceClass: how a share of a GPU is to be limited.
//!
//! Any user who may create the claim can write them. A field that is not known is an error, so that no limit is left
//! out because its name is misspelt.

use std::borrow::Cow;
use std::fmt;

use placement::gpu::Isolation;
use placement::quantity::bytes;
use placement::units::MiB;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;

/// The version of the kind.
pub const API_VERSION: &str = "plimsoll.dev/v1";
/// The kind.
pub const KIND: &str = "ShareConfig";
/// The most bytes of a limit: more than Kubernetes' own whole quantities have.
const MAX_MEMORY: u64 = 1 << 63;
/// Characters of a value that an error repeats.
const MAX_FOUND: usize = 64;

/// How the containers of a claim are limited to their shares.
///
/// # Examples
///
/// ```
/// use api::share_config::ShareConfig;
/// use placement::units::MiB;
/// use serde_json::json;
///
/// let mut parameters = json!({
///     "apiVersion": "plimsoll.dev/v1", "kind": "ShareConfig", "memoryLimit": "6Gi",
/// });
/// let config = ShareConfig::from_value(&parameters)?;
/// assert_eq!((config.isolation, config.memory_limit), (None, Some(MiB(6144))));
/// parameters["memorylimit"] = json!("8Gi");
/// assert_eq!(
///     ShareConfig::from_value(&parameters).unwrap_err().to_string(),
///     "memorylimit: found \"8Gi\" in a field that there is not: use `isolation` or `memoryLimit`"
/// );
/// # Ok::<(), api::share_config::ShareConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShareConfig {
    /// How it is to be limited, at least; `None` for what the node does by itself.
    pub isolation: Option<Isolation>,
    /// The memory of each GPU that a container can use, at least 1 MiB; `None` for what the claim requests. It may be
    /// more than that.
    pub memory_limit: Option<MiB>,
}

/// Why parameters are no [`ShareConfig`]: the field, what was found there, and what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: found {found}: {fix}")]
pub struct ShareConfigError {
    /// The field, or `parameters` for all of them.
    pub field: String,
    /// What was found, cut to 64 characters.
    pub found: String,
    /// What to write instead.
    pub fix: String,
}

/// As it is written, and as the schema has it.
#[derive(Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
#[serde(rename_all = "camelCase")]
struct Written {
    /// `plimsoll.dev/v1`.
    api_version: &'static str,
    /// `ShareConfig`.
    kind: &'static str,
    /// How containers are to be limited to their shares, at least: `driver`, `mps` or `none`. Absent: as the node does
    /// by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("enum" = ["driver", "mps", "none"]))]
    isolation: Option<&'static str>,
    /// The memory of each GPU that a container can use, a Kubernetes quantity of bytes such as `6Gi`, rounded up to
    /// MiB; more than 0. Absent: what the claim requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    memory_limit: Option<String>,
}

impl From<&ShareConfig> for Written {
    fn from(config: &ShareConfig) -> Self {
        Self {
            api_version: API_VERSION,
            kind: KIND,
            isolation: config.isolation.map(Isolation::name),
            memory_limit: config.memory_limit.map(|limit| format!("{}Mi", limit.0)),
        }
    }
}

impl Serialize for ShareConfig {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Written::from(self).serialize(serializer)
    }
}

impl JsonSchema for ShareConfig {
    fn schema_name() -> Cow<'static, str> {
        KIND.into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = Written::json_schema(generator);
        schema.insert(
            "description".to_owned(),
            "How the containers of a claim are limited to their shares.".into(),
        );
        schema
    }
}

impl ShareConfig {
    /// Reads the parameters.
    ///
    /// # Errors
    ///
    /// Where they are of another kind or version, or a field is not known or cannot be read.
    pub fn from_value(parameters: &Value) -> Result<Self, ShareConfigError> {
        let Value::Object(fields) = parameters else {
            let fix = format!("write an object with apiVersion `{API_VERSION}` and kind `{KIND}`");
            return Err(error("parameters", parameters, fix));
        };
        for (field, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            let found = fields.get(field).unwrap_or(&Value::Null);
            if found != wanted {
                return Err(error(field, found, format!("write `{wanted}`")));
            }
        }
        let mut config = Self::default();
        for (field, value) in fields {
            match field.as_str() {
                "apiVersion" | "kind" => {}
                "isolation" => config.isolation = Some(isolation(field, value)?),
                "memoryLimit" => config.memory_limit = Some(memory(field, value)?),
                _ => {
                    let fix = "use `isolation` or `memoryLimit`".to_owned();
                    let mut unknown = error(field, value, fix);
                    unknown.found += " in a field that there is not";
                    return Err(unknown);
                }
            }
        }
        Ok(config)
    }
}

fn isolation(field: &str, value: &Value) -> Result<Isolation, ShareConfigError> {
    let isolation = value.as_str().and_then(|text| text.parse().ok());
    isolation.ok_or_else(|| error(field, value, "write `driver`, `mps` or `none`".to_owned()))
}

fn memory(field: &str, value: &Value) -> Result<MiB, ShareConfigError> {
    let read = match value {
        Value::String(text) => bytes(text).ok(),
        Value::Number(number) => bytes(&number.to_string()).ok(),
        _ => None,
    };
    let memory = read.filter(|bytes| (1..=MAX_MEMORY).contains(bytes)).map(MiB::holding);
    memory.ok_or_else(|| error(field, value, "write bytes above 0, such as `6Gi`".to_owned()))
}

fn error(field: &str, found: &Value, fix: String) -> ShareConfigError {
    let cut = |text: &dyn fmt::Display| text.to_string().chars().take(MAX_FOUND).collect();
    let found = if found.is_null() { "nothing".to_owned() } else { cut(found) };
    ShareConfigError { field: cut(&field), found, fix }
}
