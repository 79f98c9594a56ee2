//! What a check finds.

use serde::Serialize;

use crate::cluster_access::Failure;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// Nothing is wrong.
    Ok,
    /// To be looked at.
    Warn,
    /// Something does not work, or protects nothing.
    Fail,
}

/// One line of doctor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    pub(crate) check: &'static str,
    pub(crate) what: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) todo: Option<String>,
}

impl Finding {
    /// That nothing is wrong.
    pub(crate) fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Self { level: Level::Ok, check, what: what.into(), todo: None }
    }

    /// Something to look at.
    pub(crate) fn warn(
        check: &'static str,
        what: impl Into<String>,
        todo: impl Into<String>,
    ) -> Self {
        Self { level: Level::Warn, check, what: what.into(), todo: Some(todo.into()) }
    }

    /// A fault.
    pub(crate) fn fail(
        check: &'static str,
        what: impl Into<String>,
        todo: impl Into<String>,
    ) -> Self {
        Self { level: Level::Fail, check, what: what.into(), todo: Some(todo.into()) }
    }

    /// A fact that could not be read, so that the check says nothing.
    pub(crate) fn unread(check: &'static str, fact: &str, failure: &Failure) -> Self {
        let text = failure.to_string();
        let (message, todo) = match text.split_once("\nTo allow it:\n") {
            Some((message, grant)) => {
                let commands: Vec<&str> = grant.lines().map(str::trim).collect();
                (message.to_owned(), commands.join(" && "))
            }
            None => (text, "read it with kubectl".to_owned()),
        };
        let message = message.lines().next().unwrap_or_default().to_owned();
        Self::warn(check, format!("not checked: {fact}: {message}"), todo)
    }
}

/// Some names, and how many more there are.
pub(crate) fn few(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// As `1 node` or `3 nodes`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}
