//! What a check finds.

use serde::Serialize;

use crate::cluster_access::Failure;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// Nothing is wrong.
    Ok,
    /// Not known, since something cannot be read, or nothing looks.
    Unknown,
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

/// What one check has found so far.
pub(crate) struct Findings {
    check: &'static str,
    found: Vec<Finding>,
    /// Of which programs not all pods were asked.
    asked: Vec<String>,
}

impl Findings {
    /// Nothing yet.
    pub(crate) fn of(check: &'static str) -> Self {
        Self { check, found: Vec::new(), asked: Vec::new() }
    }

    /// The check's name.
    pub(crate) fn check(&self) -> &'static str {
        self.check
    }

    pub(crate) fn push(&mut self, level: Level, what: String, todo: Option<String>) {
        self.found.push(Finding { level, check: self.check, what, todo });
    }

    /// That nothing is wrong.
    pub(crate) fn ok(&mut self, what: impl Into<String>) {
        self.push(Level::Ok, what.into(), None);
    }

    /// That nothing is wrong, unless something was found already.
    pub(crate) fn ok_if_nothing(&mut self, what: impl Into<String>) {
        if self.found.is_empty() {
            self.ok(what);
        }
    }

    /// That there is nothing to look at, and why.
    pub(crate) fn does_not_apply(&mut self, why: &str) {
        self.ok_if_nothing(format!("does not apply: {why}"));
    }

    /// Something that is not known.
    pub(crate) fn unknown(&mut self, what: impl Into<String>, todo: impl Into<String>) {
        self.push(Level::Unknown, what.into(), Some(todo.into()));
    }

    /// Something to look at.
    pub(crate) fn warn(&mut self, what: impl Into<String>, todo: impl Into<String>) {
        self.push(Level::Warn, what.into(), Some(todo.into()));
    }

    /// A fault.
    pub(crate) fn fail(&mut self, what: impl Into<String>, todo: impl Into<String>) {
        self.push(Level::Fail, what.into(), Some(todo.into()));
    }

    /// Something to look at in these, if there are any.
    pub(crate) fn warn_of(&mut self, what: &str, names: &[String], todo: &str) {
        if !names.is_empty() {
            self.warn(format!("{what}: {}", few(names)), todo);
        }
    }

    /// A fault of these, if there are any.
    pub(crate) fn fail_of(&mut self, what: &str, names: &[String], todo: &str) {
        if !names.is_empty() {
            self.fail(format!("{what}: {}", few(names)), todo);
        }
    }

    /// That some pods alone were asked, which every text of what is well says.
    pub(crate) fn asked_some(&mut self, what: String) {
        if !self.asked.contains(&what) {
            self.asked.push(what);
        }
    }

    /// A fact that could not be read.
    pub(crate) fn unread(&mut self, fact: &str, failure: &Failure) {
        let text = failure.to_string();
        let todo = match text.split_once("\nTo allow it:\n") {
            Some((_, grant)) => grant.lines().map(str::trim).collect::<Vec<_>>().join(" && "),
            None => "read it with kubectl".to_owned(),
        };
        let message = text.lines().next().unwrap_or_default();
        self.unknown(format!("not checked: {fact}: {message}"), todo);
    }

    /// A fact; if it could not be read that is found, and the answer is `None`.
    pub(crate) fn read<T>(&mut self, fact: &str, read: Result<T, &Failure>) -> Option<T> {
        read.map_err(|failure| self.unread(fact, failure)).ok()
    }

    /// Everything that was found; a check that has found nothing is not known to be well.
    pub(crate) fn done(mut self) -> Vec<Finding> {
        if self.found.is_empty() {
            self.unknown("not checked: nothing was found to look at", "report this as a fault");
        }
        for finding in &mut self.found {
            if finding.level == Level::Ok {
                for asked in &self.asked {
                    finding.what += &format!("; {asked}");
                }
            }
        }
        self.found
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
