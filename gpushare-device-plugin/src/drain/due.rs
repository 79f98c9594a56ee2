//! When the clients of which pod are to be terminated. Pure.
//!
//! A deletion's time is when the kubelet may kill: the time of the request plus the grace period, in whole seconds. The
//! kubelet waits that grace period from when it sees the deletion, and 2 s at least, for a deletion by force too
//! (`minimumGracePeriodInSeconds` in pkg/kubelet/kuberuntime). So a second before that time the clients of a program
//! that uses its grace period are terminated, and those of a pod that is gone at once.

use std::collections::HashMap;
use std::time::Duration;

use cluster::Deletion;
use jiff::Timestamp;
use placement::units::PodUid;
use tokio::time::Instant;

use crate::pods::NodePod;

/// Time from the request to terminate until the kubelet may kill.
const LEAD: Duration = Duration::from_secs(1);
/// The longest time that is waited; a longer grace period counts as this one.
const MAX_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);
/// Pause between two requests for one pod: it may start another client until its processes are killed.
const PAUSE: Duration = Duration::from_secs(1);
/// Requests for one pod.
const REQUESTS: u32 = 10;

/// The pods of this node that may have clients.
#[derive(Debug, Default)]
pub(super) struct DrainSchedule {
    pods: HashMap<PodUid, Tracked>,
}

#[derive(Debug, Default)]
struct Tracked {
    /// Whether its kubelet has reported all of its containers as ended.
    stopped: bool,
    /// Whether it no longer exists.
    gone: bool,
    /// When its deletion was seen first.
    deleting_since: Option<Instant>,
    /// Requests so far, and when the next is due.
    requests: u32,
    next: Option<Instant>,
}

/// What is to be done.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// Pods to ask for now, each with whether it is the first time.
    pub(super) now: Vec<(PodUid, bool)>,
    /// When the next request is due; `None` if only a change can bring one.
    pub(super) next: Option<Instant>,
}

impl DrainSchedule {
    /// Pods that may have processes and do not exist: deleted by force while no plugin ran.
    pub(super) fn add_gone(&mut self, pods: impl IntoIterator<Item = PodUid>) {
        for uid in pods {
            self.pods.entry(uid).or_default();
        }
    }

    /// To be called when the pods of the node have changed, and when the next request is due. `clock` is the time of
    /// day at `now`.
    pub(super) fn step(
        &mut self,
        pods: &HashMap<PodUid, NodePod>,
        now: Instant,
        clock: Timestamp,
    ) -> Due {
        for (uid, pod) in pods {
            // One whose request cannot be read may have been given a GPU before.
            if !matches!(pod.facts.gpu, Ok(None)) {
                self.pods.entry(uid.clone()).or_default();
            }
        }
        let mut due = Due::default();
        self.pods.retain(|uid, tracked| {
            tracked.see(pods.get(uid), now, clock);
            if tracked.next.is_some_and(|next| next <= now) {
                due.now.push((uid.clone(), tracked.requests == 0));
                tracked.requests += 1;
                tracked.next = (tracked.requests < REQUESTS).then(|| now + PAUSE);
            }
            due.next = [due.next, tracked.next].into_iter().flatten().min();
            !tracked.gone || tracked.next.is_some()
        });
        due
    }
}

impl Tracked {
    /// Sets when the next request is due.
    fn see(&mut self, pod: Option<&NodePod>, now: Instant, clock: Timestamp) {
        let Some(pod) = pod else {
            if !self.gone {
                self.gone = true;
                self.requests = 0;
                self.next = Some(now);
            }
            // A kubelet removes a pod once it has reported the end of its containers. Without that, the deletion was
            // by force.
            if self.stopped {
                self.next = None;
            }
            return;
        };
        self.stopped = pod.facts.stopped;
        if pod.deletion.is_some() {
            self.deleting_since.get_or_insert(now);
        }
        if self.stopped {
            self.next = None;
        } else if self.requests == 0 {
            let since = self.deleting_since.unwrap_or(now);
            self.next = if pod.is_killed {
                Some(now)
            } else {
                pod.deletion.map(|deletion| due_at(deletion, since, now, clock))
            };
        }
    }
}

/// When the clients of a pod are to be terminated whose deletion was seen `since`. The clocks of the API server and of
/// this node may differ, and this process may have begun after the deletion: the earlier of both times counts. Without
/// either, at once.
fn due_at(deletion: Deletion, since: Instant, now: Instant, clock: Timestamp) -> Instant {
    let by_grace = deletion.grace.map(|grace| since + grace.min(MAX_WAIT));
    let by_clock = deletion.at.map(|at| {
        let left = Duration::try_from(at.duration_since(clock)).unwrap_or_default();
        now + left.min(MAX_WAIT)
    });
    let kill = [by_grace, by_clock].into_iter().flatten().min().unwrap_or(now);
    kill.checked_sub(LEAD).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cluster::PodFacts;
    use proptest::prelude::*;

    use super::*;
    use crate::fixtures::{A, simple};

    const SECOND: Duration = Duration::from_secs(1);

    /// One pod `p`, as the watch shows it; `None` once it is gone. Time begins at 0.
    struct Bench {
        schedule: DrainSchedule,
        begin: Instant,
        clock: Timestamp,
        pod: Option<NodePod>,
    }

    fn running() -> NodePod {
        NodePod::from(PodFacts::clone(&simple("p", A, 2)))
    }

    impl Bench {
        fn new() -> Self {
            let clock = "2026-11-20T09:00:00Z".parse().unwrap();
            let schedule = DrainSchedule::default();
            Self { schedule, begin: Instant::now(), clock, pod: Some(running()) }
        }

        /// A deletion whose request was at `at` seconds by the API server's clock, which is `ahead` of this node's.
        fn delete(&mut self, at: i64, grace: u64, ahead: i64) {
            let at = self.clock.as_second() + at + ahead + i64::try_from(grace).unwrap();
            let at = Timestamp::from_second(at).ok();
            let deletion = Deletion { at, grace: Some(Duration::from_secs(grace)) };
            self.pod.as_mut().unwrap().deletion = Some(deletion);
        }

        fn set(&mut self, set: impl FnOnce(&mut PodFacts)) {
            set(Arc::make_mut(&mut self.pod.as_mut().unwrap().facts));
        }

        fn step(&mut self, after: Duration) -> Due {
            let pods = self.pod.iter().map(|pod| (pod.facts.uid.clone(), pod.clone())).collect();
            self.schedule.step(&pods, self.begin + after, self.clock + after)
        }

        /// Whether it is asked for then.
        fn asks(&mut self, after: u64) -> bool {
            !self.step(SECOND * u32::try_from(after).unwrap()).now.is_empty()
        }

        /// The seconds until the next request.
        fn next(&mut self, after: u64) -> Option<u64> {
            let due = self.step(SECOND * u32::try_from(after).unwrap());
            assert_eq!(due.now, []);
            Some(due.next?.duration_since(self.begin).as_secs())
        }
    }

    #[test]
    fn clients_of_a_deleted_pod_are_terminated_a_second_before_the_kubelet_may_kill() {
        let mut bench = Bench::new();
        assert_eq!(bench.next(0), None, "it runs");
        bench.delete(5, 30, 0);
        assert_eq!(bench.next(5), Some(34));
        assert_eq!(bench.next(20), Some(34));
        let due = bench.step(34 * SECOND);
        assert_eq!(due.now, [("p".into(), true)]);
        assert_eq!(due.next, Some(bench.begin + 35 * SECOND), "it may start another client");
        assert_eq!(bench.step(35 * SECOND).now, [("p".into(), false)]);
    }

    #[test]
    fn requests_have_an_end() {
        let mut bench = Bench::new();
        bench.delete(0, 1, 0);
        let asked = (0..60).filter(|second| bench.asks(*second)).count();
        assert_eq!(asked, 10);
        bench.pod = None;
        assert_eq!((60..120).filter(|second| bench.asks(*second)).count(), 10, "by force now");
        assert!(bench.schedule.pods.is_empty(), "nothing is kept of it");
    }

    #[test]
    fn a_grace_period_of_a_second_or_none_and_a_deletion_by_force_are_due_at_once() {
        for grace in [0, 1] {
            let mut bench = Bench::new();
            assert!(!bench.asks(0));
            bench.delete(7, grace, 0);
            assert!(bench.asks(7), "{grace}");
        }
        let mut bench = Bench::new();
        assert!(!bench.asks(0));
        bench.delete(1, 600, 0);
        assert!(!bench.asks(1));
        bench.pod = None;
        assert!(bench.asks(2), "its object is gone while its containers run");
    }

    #[test]
    fn a_shorter_grace_period_counts_from_the_first_deletion_on() {
        let mut bench = Bench::new();
        bench.delete(0, 600, 0);
        assert_eq!(bench.next(0), Some(599));
        bench.delete(0, 20, 0);
        assert_eq!(bench.next(10), Some(19));
    }

    #[test]
    fn clocks_that_differ_make_it_no_later() {
        for (ahead, expected) in [(0, 29), (100, 29), (-10, 19)] {
            let mut bench = Bench::new();
            bench.delete(0, 30, ahead);
            assert_eq!(bench.next(0), Some(expected), "{ahead}");
        }
        let mut bench = Bench::new();
        bench.delete(0, 30, -100);
        assert!(bench.asks(0));
    }

    #[test]
    fn what_was_due_while_no_plugin_ran_is_done_at_its_start() {
        let mut bench = Bench::new();
        bench.delete(-100, 30, 0);
        assert!(bench.asks(0), "its time has passed");
        let mut bench = Bench::new();
        bench.delete(-20, 30, 0);
        assert_eq!(bench.next(0), Some(9));
        let mut bench = Bench::new();
        bench.pod = None;
        bench.schedule.add_gone(["p".into()]);
        assert!(bench.asks(0), "it was deleted by force");
        let mut bench = Bench::new();
        bench.schedule.add_gone(["p".into()]);
        assert!(!bench.asks(0), "it exists");
    }

    #[test]
    fn a_pod_whose_containers_have_ended_needs_nothing() {
        let mut bench = Bench::new();
        bench.delete(0, 30, 0);
        assert_eq!(bench.next(0), Some(29));
        bench.set(|facts| facts.stopped = true);
        assert_eq!(bench.next(10), None);
        assert_eq!(bench.next(40), None);
        bench.pod = None;
        assert_eq!(bench.next(41), None);
    }

    #[test]
    fn a_pod_that_its_kubelet_ends_is_due_at_once_and_one_without_a_gpu_never() {
        let mut bench = Bench::new();
        assert!(!bench.asks(0));
        bench.pod.as_mut().unwrap().is_killed = true;
        assert!(bench.asks(1));
        let mut bench = Bench::new();
        bench.set(|facts| facts.gpu = Ok(None));
        bench.delete(0, 0, 0);
        assert!(!bench.asks(0));
    }

    #[test]
    fn a_deletion_whose_times_cannot_be_read_is_due_at_once() {
        let mut bench = Bench::new();
        bench.pod.as_mut().unwrap().deletion = Some(Deletion { at: None, grace: None });
        assert!(bench.asks(0));
    }

    proptest! {
        #[test]
        fn a_request_comes_before_the_earlier_time_and_no_more_than_a_second(
            seconds in proptest::option::of(-1_000_000_000_000_i64..1_000_000_000_000),
            grace in proptest::option::of(0..=u64::MAX),
            seen_before in 0_u64..100_000,
        ) {
            let clock = Timestamp::UNIX_EPOCH;
            let now = Instant::now() + Duration::from_secs(1_000_000);
            let since = now - Duration::from_secs(seen_before);
            let at = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
            let deletion = Deletion { at, grace: grace.map(Duration::from_secs) };
            let due = due_at(deletion, since, now, clock);
            prop_assert!(due <= now + MAX_WAIT);
            if let Some(grace) = deletion.grace {
                prop_assert!(due <= since + grace.min(MAX_WAIT) - LEAD.min(grace) || grace < LEAD);
            }
            if let Some(left) = at.map(Timestamp::as_second) {
                let left = Duration::from_secs(u64::try_from(left).unwrap_or(0)).min(MAX_WAIT);
                prop_assert!(due <= now + left);
            }
        }
    }
}
