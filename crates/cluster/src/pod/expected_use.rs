//! What a pod will use, by its own annotation.
//!
//! Invariant: an amount is finite, not negative and at most [`MAX_USE`]; a text with any fault counts as absent.

use api::JsonError;
use api::expected_use::ExpectedUse;
use placement::names::Names;
use placement::quantity;
use placement::resources::{Amounts, PerResource};

use super::Pod;

/// The largest valid amounts, more than any machine has: a million cores, 1 EiB.
const MAX_USE: Amounts = PerResource { cpu: 1e6, memory: 1_152_921_504_606_846_976.0 };

/// Why the annotation of expected use is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpectedUseError {
    /// Too long, or not JSON of the schema.
    #[error("not of the form `{{\"cpu\":\"500m\",\"memory\":\"1Gi\"}}`: {0}")]
    Json(JsonError),
    /// A quantity that cannot be read, or is more than any machine has.
    #[error("{resource}: expected a quantity of 0 or more, such as `{example}`, found `{found}`")]
    Quantity {
        /// The resource.
        resource: &'static str,
        /// A quantity of it.
        example: &'static str,
        /// What was found, cut off after 64 characters.
        found: String,
    },
}

impl Pod {
    /// The use that its annotation names, in cores and bytes; `None` if there is none.
    ///
    /// # Errors
    ///
    /// If the annotation cannot be read. It then counts as absent.
    pub fn expected_use(
        &self,
        names: &Names,
    ) -> Result<PerResource<Option<f64>>, ExpectedUseError> {
        let Some(text) = self.metadata.annotation(&names.expected_use()) else {
            return Ok(PerResource::default());
        };
        let ExpectedUse { cpu, memory } =
            ExpectedUse::from_json(text).map_err(ExpectedUseError::Json)?;
        Ok(PerResource {
            cpu: amount(cpu, MAX_USE.cpu, "cpu", "500m")?,
            memory: amount(memory, MAX_USE.memory, "memory", "1Gi")?,
        })
    }
}

fn amount(
    text: Option<String>,
    most: f64,
    resource: &'static str,
    example: &'static str,
) -> Result<Option<f64>, ExpectedUseError> {
    let Some(text) = text else { return Ok(None) };
    match quantity::amount(&text).filter(|amount| *amount <= most) {
        Some(amount) => Ok(Some(amount)),
        None => Err(ExpectedUseError::Quantity {
            resource,
            example,
            found: text.chars().take(64).collect(),
        }),
    }
}
