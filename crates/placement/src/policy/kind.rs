//! Which kind of policy a text is.

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::fields::{Checked, fault};
use super::{scheduling_policy, schema};

/// The kinds of policies that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyKind {
    /// crane-scheduler's `DynamicSchedulerPolicy`.
    Crane,
    /// Our own `SchedulingPolicy`.
    Plimsoll,
}

/// The only field that is read before the kind is known.
#[derive(Deserialize)]
struct Header {
    kind: Spanned<String>,
}

impl PolicyKind {
    /// The kind that a text names.
    ///
    /// # Errors
    ///
    /// If it names another kind. A text without a readable `kind` counts as crane's, whose parser then reports the
    /// error.
    pub fn of(text: &str) -> Result<Self, super::PolicyError> {
        match serde_saphyr::from_str::<Header>(text) {
            Ok(header) => named(&header.kind),
            Err(_) if has_our_line(text) => Ok(Self::Plimsoll),
            Err(_) => Ok(Self::Crane),
        }
    }

    /// Its name in the field `kind`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Crane => schema::KIND,
            Self::Plimsoll => scheduling_policy::KIND,
        }
    }
}

fn named(kind: &Spanned<String>) -> Checked<PolicyKind> {
    let kinds = [PolicyKind::Plimsoll, PolicyKind::Crane];
    let known = kinds.into_iter().find(|known| known.name() == kind.value);
    known.ok_or_else(|| {
        let found = kind.value.chars().take(64).flat_map(char::escape_debug).collect::<String>();
        let problem = format!(
            "expected `{}` (of {}) or `{}` (of {}), found `{found}`",
            scheduling_policy::KIND,
            scheduling_policy::API_VERSION,
            schema::KIND,
            schema::API_VERSION,
        );
        fault(kind, "kind", problem)
    })
}

/// Whether a text that is not YAML was meant as a policy of our kind.
fn has_our_line(text: &str) -> bool {
    text.lines()
        .any(|line| line.strip_prefix("kind:").map(str::trim) == Some(scheduling_policy::KIND))
}
