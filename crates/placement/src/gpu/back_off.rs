//! Which nodes take no GPU pods for a while, since several that Bind had sent there were refused by the kubelet, or
//! could not be started.
//!
//! Invariants: failures of one namespace's pods back the node off for that namespace alone; the node is backed off for
//! all namespaces only while those of several are, and no pod of any namespace has started since. A back-off always
//! ends. After it one more failure begins a longer one, and a pod that starts ends it all.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

/// Failures of one namespace's pods within [`WINDOW`] that begin a back-off.
const FAILURES: usize = 3;

/// Time within which they count together.
const WINDOW: SignedDuration = SignedDuration::from_mins(5);

/// The first back-off. Each one that follows is twice as long as the one before.
const FIRST: SignedDuration = SignedDuration::from_secs(30);

/// The longest back-off.
const LONGEST: SignedDuration = SignedDuration::from_mins(10);

/// Time without a failure after which the next back-off is a first one again.
const FORGET: SignedDuration = SignedDuration::from_hours(1);

/// Namespaces that back a node off for all, while each is backed off itself.
const NAMESPACES: usize = 2;

/// Namespaces that are kept of a node at most; of more the one with the oldest failure is dropped.
const MAX_NAMESPACES: usize = 64;

/// The pods of one node that did not start, by its fault.
///
/// # Examples
///
/// ```
/// use placement::gpu::NodeBackOff;
///
/// let (mut node, now) = (NodeBackOff::default(), jiff::Timestamp::UNIX_EPOCH);
/// assert_eq!(node.failed("shop", now), None);
/// assert_eq!(node.failed("shop", now), None);
/// let until = node.failed("shop", now);
/// assert!(until.is_some_and(|until| until > now));
/// assert!(node.rejects("shop", now) && !node.rejects("bank", now));
/// node.started("shop", now);
/// assert!(!node.rejects("shop", now));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeBackOff {
    namespaces: BTreeMap<String, Failures>,
    /// When a pod of any namespace last started.
    started_at: Option<Timestamp>,
}

/// The failures of one namespace's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failures {
    /// Those that no back-off was begun for, the oldest first.
    recent: Vec<Timestamp>,
    last: Timestamp,
    /// How many back-offs have begun.
    begun: u32,
    /// The last back-off.
    back_off: Option<Span>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    begin: Timestamp,
    end: Timestamp,
}

impl Span {
    /// Not before it began, either: the clock was set back then, and it would last until the clock is there again.
    fn has(&self, now: Timestamp) -> bool {
        self.begin <= now && now < self.end
    }
}

impl Failures {
    fn is_backed_off(&self, now: Timestamp) -> bool {
        self.back_off.is_some_and(|span| span.has(now))
    }
}

/// Whether less than `span` lies between the two times, whichever is earlier: the clock may have been set back.
fn is_within(at: Timestamp, now: Timestamp, span: SignedDuration) -> bool {
    now.duration_since(at).abs() < span
}

impl NodeBackOff {
    /// Counts a pod of that namespace that did not start. Returns the end of the back-off that it begins, if it
    /// does.
    pub fn failed(&mut self, namespace: &str, now: Timestamp) -> Option<Timestamp> {
        self.drop_old(now);
        let failures = self.namespaces.entry(namespace.to_owned()).or_insert_with(|| Failures {
            recent: Vec::new(),
            last: now,
            begun: 0,
            back_off: None,
        });
        failures.last = now;
        // Pods that were sent before the back-off began.
        if failures.is_backed_off(now) {
            return None;
        }
        failures.recent.retain(|at| is_within(*at, now, WINDOW));
        failures.recent.push(now);
        // After a back-off one pod is enough: the node was given another chance.
        if failures.begun == 0 && failures.recent.len() < FAILURES {
            return None;
        }
        let factor = 1_i32 << failures.begun.min(8);
        let length = FIRST.checked_mul(factor).map_or(LONGEST, |length| length.min(LONGEST));
        let end = now.checked_add(length).unwrap_or(now);
        failures.begun = failures.begun.saturating_add(1);
        failures.recent.clear();
        failures.back_off = Some(Span { begin: now, end });
        Some(end)
    }

    /// Records that a pod of that namespace has started.
    pub fn started(&mut self, namespace: &str, now: Timestamp) {
        self.namespaces.remove(namespace);
        self.started_at = Some(now);
    }

    /// Whether the node takes no pods of that namespace at `now`.
    pub fn rejects(&self, namespace: &str, now: Timestamp) -> bool {
        self.namespaces.get(namespace).is_some_and(|failures| failures.is_backed_off(now))
            || self.rejects_all(now)
    }

    /// Whether the node takes no pods of any namespace at `now`.
    pub fn rejects_all(&self, now: Timestamp) -> bool {
        // A pod that started before the clock was set back says nothing of the time since.
        let started_at = self.started_at.filter(|started| *started <= now);
        let counts = |span: Span| span.has(now) && started_at.is_none_or(|at| span.begin > at);
        let rejects = |failures: &&Failures| failures.back_off.is_some_and(counts);
        self.namespaces.values().filter(rejects).count() >= NAMESPACES
    }

    /// Whether a pod of some namespace is rejected at `now`.
    pub fn is_on(&self, now: Timestamp) -> bool {
        self.namespaces.values().any(|failures| failures.is_backed_off(now))
    }

    /// Whether nothing is left to remember.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.namespaces.values().all(|failures| !is_within(failures.last, now, FORGET))
    }

    fn drop_old(&mut self, now: Timestamp) {
        self.namespaces.retain(|_, failures| is_within(failures.last, now, FORGET));
        while self.namespaces.len() >= MAX_NAMESPACES {
            let oldest = self.namespaces.iter().min_by_key(|(_, failures)| failures.last);
            let Some(name) = oldest.map(|(name, _)| name.clone()) else { return };
            self.namespaces.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
    }

    fn fail(node: &mut NodeBackOff, namespace: &str, times: usize, now: Timestamp) {
        for _ in 0..times {
            node.failed(namespace, now);
        }
    }

    #[test]
    fn failures_of_one_namespace_reject_its_own_pods_and_no_others() {
        let mut node = NodeBackOff::default();
        fail(&mut node, "one", 100, at(0));
        assert!(node.rejects("one", at(29)) && !node.rejects("other", at(0)));
        assert!(!node.rejects("one", at(30)), "it ends");
    }

    #[test]
    fn failures_that_are_far_apart_reject_no_pod() {
        let mut node = NodeBackOff::default();
        for seconds in [0, 200, 400, 600, 900] {
            assert_eq!(node.failed("one", at(seconds)), None, "{seconds}");
        }
    }

    #[test]
    fn each_back_off_is_twice_as_long_up_to_ten_minutes_and_begins_with_one_failure() {
        let mut node = NodeBackOff::default();
        let mut now = at(0);
        fail(&mut node, "one", 2, now);
        for seconds in [30, 60, 120, 240, 480, 600, 600] {
            let end = node.failed("one", now).unwrap();
            assert_eq!(end.duration_since(now).as_secs(), seconds);
            now = end;
        }
        fail(&mut node, "one", 1, now + FORGET);
        assert!(!node.rejects("one", now + FORGET), "an hour without a failure");
    }

    #[test]
    fn two_namespaces_reject_all_pods_until_one_ends_or_any_pod_starts() {
        let mut node = NodeBackOff::default();
        fail(&mut node, "one", 3, at(0));
        fail(&mut node, "two", 3, at(10));
        assert!(node.rejects("other", at(29)) && !node.rejects("other", at(30)));
        node.started("other", at(20));
        assert!(!node.rejects("other", at(21)) && node.rejects("two", at(21)));
        fail(&mut node, "one", 1, at(31));
        assert!(!node.rejects("other", at(32)), "only one has failed since");
    }

    #[test]
    fn a_pod_that_starts_ends_the_back_off_of_its_namespace() {
        let mut node = NodeBackOff::default();
        fail(&mut node, "one", 3, at(0));
        node.started("one", at(1));
        assert!(!node.rejects("one", at(2)) && node.is_over(at(2)));
        fail(&mut node, "one", 2, at(3));
        assert!(!node.rejects("one", at(3)), "it counts anew");
    }

    #[test]
    fn a_clock_that_is_set_back_closes_no_node_and_failures_after_it_count() {
        const DAY: i64 = 24 * 60 * 60;
        let mut node = NodeBackOff::default();
        node.started("three", at(DAY));
        for namespace in ["one", "two"] {
            fail(&mut node, namespace, 3, at(DAY + 1));
        }
        assert!(node.rejects("other", at(DAY + 1)) && node.is_on(at(DAY + 1)));
        assert!(!node.rejects("one", at(1)) && !node.rejects("other", at(1)) && !node.is_on(at(1)));
        assert!(node.is_over(at(1)), "nothing is remembered");
        // Counted anew: one failure is not enough, and each back-off is as long as a first one.
        assert_eq!(node.failed("one", at(1)), None);
        fail(&mut node, "one", 2, at(1));
        fail(&mut node, "two", 3, at(2));
        assert!(node.rejects("other", at(30)) && !node.rejects("other", at(31)));
    }

    #[test]
    fn the_namespaces_of_a_node_are_bounded() {
        let mut node = NodeBackOff::default();
        for name in 0..1000 {
            node.failed(&name.to_string(), at(name));
        }
        assert!(node.namespaces.len() <= MAX_NAMESPACES);
    }
}
