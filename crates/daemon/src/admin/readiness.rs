//! The readiness of a process: named conditions, all of which must hold.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// By name: `None` if the condition holds, otherwise why it does not.
type Conditions = BTreeMap<&'static str, Option<String>>;

/// All conditions of a process. A process that has declared none is not ready: it has only just started.
///
/// # Examples
/// ```
/// let readiness = daemon::Readiness::default();
/// let listed = readiness.condition("nodes-listed");
/// assert_eq!(readiness.report(), "[-] nodes-listed: not yet\n");
/// listed.set_ready();
/// assert!(readiness.is_ready());
/// ```
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Mutex<Conditions>>);

impl Readiness {
    /// Declares a condition that does not hold yet.
    #[must_use = "a condition that is never set keeps the process unready"]
    pub fn condition(&self, name: &'static str) -> Condition {
        self.lock().insert(name, Some("not yet".to_owned()));
        Condition { name, readiness: self.clone() }
    }

    /// Whether every condition holds.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let conditions = self.lock();
        !conditions.is_empty() && conditions.values().all(Option::is_none)
    }

    /// Every condition that does not hold, and why.
    #[must_use]
    pub fn missing(&self) -> Vec<(&'static str, String)> {
        self.lock().iter().filter_map(|(name, why)| Some((*name, why.clone()?))).collect()
    }

    /// A line for each condition, in the manner of the API server's `/readyz?verbose`.
    #[must_use]
    pub fn report(&self) -> String {
        let conditions = self.lock();
        let mut report = String::new();
        for (name, why) in conditions.iter() {
            // Writing to a String cannot fail.
            let _ = match why {
                None => writeln!(report, "[+] {name}"),
                Some(why) => writeln!(report, "[-] {name}: {why}"),
            };
        }
        if conditions.is_empty() {
            report.push_str("[-] starting\n");
        }
        report
    }

    fn set(&self, name: &'static str, why: Option<String>) {
        let mut conditions = self.lock();
        let before = conditions.insert(name, why.clone());
        drop(conditions);
        match why {
            _ if before.as_ref() == Some(&why) => {}
            None => tracing::info!(condition = name, "ready"),
            Some(why) => tracing::warn!(condition = name, why, "not ready"),
        }
    }

    // A panic cannot leave a partial change: each is one insert.
    fn lock(&self) -> MutexGuard<'_, Conditions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One thing that must hold before the process is ready. It may stop holding later.
#[derive(Debug, Clone)]
pub struct Condition {
    name: &'static str,
    readiness: Readiness,
}

impl Condition {
    /// The condition holds.
    pub fn set_ready(&self) {
        self.readiness.set(self.name, None);
    }

    /// The condition does not hold; `why` is what `/readyz` says.
    pub fn set_not_ready(&self, why: impl Into<String>) {
        self.readiness.set(self.name, Some(why.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_declared_nothing_is_not_ready() {
        assert!(!Readiness::default().is_ready());
        assert_eq!(Readiness::default().report(), "[-] starting\n");
    }

    #[test]
    fn it_is_ready_when_every_condition_holds_and_only_then() {
        let readiness = Readiness::default();
        let nodes = readiness.condition("nodes");
        let policy = readiness.condition("policy");
        nodes.set_ready();
        assert!(!readiness.is_ready());
        assert_eq!(readiness.missing(), [("policy", "not yet".to_owned())]);
        policy.set_ready();
        assert!(readiness.is_ready());
    }

    #[test]
    fn a_condition_can_stop_holding_and_says_why() {
        let readiness = Readiness::default();
        let nodes = readiness.condition("nodes");
        nodes.set_ready();
        nodes.set_not_ready("the watch failed");
        assert!(!readiness.is_ready());
        assert_eq!(readiness.report(), "[-] nodes: the watch failed\n");
    }
}
