//! The health of a process: named conditions, of which each part of the program sets its own.
//!
//! Invariant: a condition's text is bounded, and there are as many conditions as the program's code names.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::health::ConditionState;
use jiff::Timestamp;

/// How long a text is at most, in bytes.
const MAX_TEXT: usize = 1_000;

/// How a condition is, what is so, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// How it is.
    pub state: ConditionState,
    /// What is so, for people.
    pub text: String,
    /// What to do.
    pub remedy: Option<Cow<'static, str>>,
}

impl Status {
    /// Nothing is wrong.
    pub fn ok(text: impl Into<String>) -> Self {
        Self { state: ConditionState::Ok, text: text.into(), remedy: None }
    }

    /// Something to look at.
    pub fn warning(text: impl Into<String>, remedy: impl Into<Cow<'static, str>>) -> Self {
        Self { state: ConditionState::Warning, text: text.into(), remedy: Some(remedy.into()) }
    }

    /// Something does not work.
    pub fn failed(text: impl Into<String>, remedy: impl Into<Cow<'static, str>>) -> Self {
        Self { state: ConditionState::Failed, text: text.into(), remedy: Some(remedy.into()) }
    }

    /// It is not known.
    pub fn unknown(text: impl Into<String>, remedy: impl Into<Cow<'static, str>>) -> Self {
        Self { state: ConditionState::Unknown, text: text.into(), remedy: Some(remedy.into()) }
    }
}

type Entries = Arc<Mutex<BTreeMap<&'static str, Entry>>>;
type Looks = Vec<(Condition, Box<dyn Fn() -> Status + Send>)>;

struct Entry {
    /// Whether the process is unready until this is ok.
    is_gate: bool,
    status: Status,
    since: Timestamp,
}

/// All conditions of a process. One without a gate is not ready: it has only just started.
///
/// # Examples
/// ```
/// let health = daemon::Health::default();
/// let listed = health.gate("nodes-listed");
/// assert_eq!(health.report(), "[-] nodes-listed: not yet\n");
/// listed.set_ready();
/// assert!(health.is_ready());
/// ```
#[derive(Clone, Default)]
pub struct Health {
    entries: Entries,
    looks: Arc<Mutex<Looks>>,
}

impl fmt::Debug for Health {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.report())
    }
}

impl Health {
    /// Declares a condition without which the process is not ready. It does not hold yet.
    #[must_use = "a condition that is never set keeps the process unready"]
    pub fn gate(&self, id: &'static str) -> Condition {
        self.declare(id, true)
    }

    /// Declares a condition of which nothing is known yet.
    #[must_use = "a condition that is never set stays unknown"]
    pub fn condition(&self, id: &'static str) -> Condition {
        self.declare(id, false)
    }

    /// Declares a condition that is looked at before each answer and each scrape.
    pub fn look(&self, id: &'static str, status: impl Fn() -> Status + Send + 'static) {
        let condition = self.condition(id);
        locked(&self.looks).push((condition, Box::new(status)));
    }

    fn declare(&self, id: &'static str, is_gate: bool) -> Condition {
        let status =
            Status { state: ConditionState::Unknown, text: "not yet".to_owned(), remedy: None };
        let entry = Entry { is_gate, status, since: Timestamp::now() };
        locked(&self.entries).insert(id, entry);
        Condition { id, entries: Arc::clone(&self.entries) }
    }

    /// Looks at the conditions that are looked at.
    pub(crate) fn refresh(&self) {
        for (condition, look) in locked(&self.looks).iter() {
            condition.set(look());
        }
    }

    /// Whether the process is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let entries = locked(&self.entries);
        let mut gates = entries.values().filter(|entry| entry.is_gate).peekable();
        gates.peek().is_some() && gates.all(|entry| entry.status.state == ConditionState::Ok)
    }

    /// All conditions, by their ids.
    #[must_use]
    pub fn conditions(&self) -> Vec<api::health::Condition> {
        let mut all = Vec::new();
        for (id, Entry { status, since, .. }) in locked(&self.entries).iter() {
            all.push(api::health::Condition {
                id: (*id).to_owned(),
                state: status.state,
                text: status.text.clone(),
                remedy: status.remedy.as_deref().map(str::to_owned),
                since: *since,
            });
        }
        all
    }

    /// A line for each condition of readiness, in the manner of the API server's `/readyz?verbose`.
    #[must_use]
    pub fn report(&self) -> String {
        let mut report = String::new();
        for (id, Entry { status, .. }) in
            locked(&self.entries).iter().filter(|(_, entry)| entry.is_gate)
        {
            // Writing to a String cannot fail.
            let _ = match status.state {
                ConditionState::Ok => writeln!(report, "[+] {id}"),
                _ => writeln!(report, "[-] {id}: {}", status.text),
            };
        }
        if report.is_empty() {
            report.push_str("[-] starting\n");
        }
        report
    }
}

/// Some names, and how many more there are.
#[must_use]
pub fn few(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

// A panic cannot leave a partial change: each is one insert or one assignment.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One condition, for the part of the program that knows it.
#[derive(Clone)]
pub struct Condition {
    id: &'static str,
    entries: Entries,
}

impl fmt::Debug for Condition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.id)
    }
}

impl Condition {
    /// Which it is.
    #[must_use]
    pub fn id(&self) -> &'static str {
        self.id
    }

    /// Sets how it is now. What is new is logged: another state, and of a gate another text too.
    pub fn set(&self, mut status: Status) {
        status.text.truncate(status.text.floor_char_boundary(MAX_TEXT));
        let mut entries = locked(&self.entries);
        let Some(entry) = entries.get_mut(self.id) else { return };
        let is_other = entry.status.state != status.state;
        let is_news = is_other || entry.is_gate && entry.status.text != status.text;
        if is_other {
            entry.since = Timestamp::now();
        }
        entry.status = status.clone();
        drop(entries);
        match status.state {
            _ if !is_news => {}
            ConditionState::Ok => tracing::info!(condition = self.id, "{}", status.text),
            _ => tracing::warn!(condition = self.id, "{}", status.text),
        }
    }

    /// It holds.
    pub fn set_ready(&self) {
        self.set(Status::ok("ready"));
    }

    /// It does not hold; `why` is what `/readyz` says.
    pub fn set_not_ready(&self, why: impl Into<String>) {
        self.set(Status { state: ConditionState::Failed, text: why.into(), remedy: None });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_declared_nothing_is_not_ready() {
        let health = Health::default();
        health.condition("policy").set(Status::ok("read"));
        assert!(!health.is_ready());
        assert_eq!(health.report(), "[-] starting\n");
    }

    #[test]
    fn it_is_ready_when_every_gate_holds_and_only_then() {
        let health = Health::default();
        let (nodes, policy) = (health.gate("nodes"), health.gate("policy"));
        health.condition("leader").set(Status::failed("no replica leads", "wait"));
        nodes.set_ready();
        assert!(!health.is_ready());
        policy.set_ready();
        assert!(health.is_ready());
        assert_eq!(health.report(), "[+] nodes\n[+] policy\n");
    }

    #[test]
    fn a_gate_can_stop_holding_and_says_why() {
        let health = Health::default();
        let nodes = health.gate("nodes");
        nodes.set_ready();
        nodes.set_not_ready("the watch failed");
        assert!(!health.is_ready());
        assert_eq!(health.report(), "[-] nodes: the watch failed\n");
    }

    #[test]
    fn a_condition_that_is_looked_at_is_as_of_the_answer_and_its_text_is_bounded() {
        let health = Health::default();
        health.look("readings", || Status::warning("é".repeat(MAX_TEXT), "wait"));
        assert_eq!(health.conditions()[0].text, "not yet");
        health.refresh();
        let condition = health.conditions().remove(0);
        assert_eq!((condition.state, condition.text.len()), (ConditionState::Warning, MAX_TEXT));
    }

    #[test]
    fn the_time_is_that_of_the_last_change_of_the_state() {
        let health = Health::default();
        let leader = health.condition("leader");
        leader.set(Status::failed("none", "wait"));
        let since = health.conditions()[0].since;
        leader.set(Status::failed("none for 3 s", "wait"));
        assert_eq!(health.conditions()[0].since, since);
    }
}
