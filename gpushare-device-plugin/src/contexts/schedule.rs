//! When each GPU is asked for a context, and what follows from the answers.
//!
//! Invariant: one failure closes nothing, and one context that opens ends it.

use std::collections::BTreeMap;
use std::time::Duration;

use nvml::cuda::Answer;
use placement::units::GpuId;
use tokio::time::Instant;

use crate::gpus::Gpus;
use crate::gpus::context::FailedContexts;

/// The time between two questions about a GPU that works.
const REGULAR: Duration = Duration::from_secs(900);
/// The time until a GPU is asked again that is closed, or about which nothing was learnt.
const SOON: Duration = Duration::from_secs(60);
/// The time until a server is tried again that did not answer, as while its container starts.
const UNREACHED: Duration = Duration::from_secs(5);
/// The time until a first failure is asked again, and the shortest between two questions about a GPU.
const AGAIN: Duration = Duration::from_secs(10);
/// Failures in a row that close a GPU.
const CLOSING: u32 = 2;

/// The plans of the node's GPUs.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    plans: BTreeMap<GpuId, Plan>,
}

#[derive(Debug)]
struct Plan {
    due: Instant,
    asked: Option<Instant>,
    healthy: bool,
    /// Failures in a row, and why the last one failed.
    failures: u32,
    why: String,
}

/// What an answer changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// The GPU is closed.
    Closed,
    /// It takes pods again.
    Opened,
}

impl Plan {
    fn is_closed(&self) -> bool {
        self.failures >= CLOSING
    }
}

impl Schedule {
    /// Takes the GPUs of the node. A new one, and one whose health has come back, is asked at once; an unhealthy one
    /// is not asked.
    pub(super) fn set_gpus(&mut self, gpus: &Gpus, now: Instant) {
        self.plans.retain(|uuid, _| gpus.get(uuid).is_some());
        for gpu in gpus.iter() {
            let plan = self.plans.entry(gpu.uuid.clone()).or_insert_with(|| Plan {
                due: now,
                asked: None,
                healthy: false,
                failures: 0,
                why: String::new(),
            });
            if gpu.is_healthy() && !plan.healthy {
                plan.due = now;
            }
            plan.healthy = gpu.is_healthy();
        }
    }

    /// Has a GPU asked as soon as it may be.
    pub(super) fn hasten(&mut self, uuid: &GpuId, now: Instant) {
        let Some(plan) = self.plans.get_mut(uuid) else { return };
        let earliest = plan.asked.map_or(now, |asked| now.max(asked + AGAIN));
        plan.due = plan.due.min(earliest);
    }

    /// The GPUs that are due, the longest waiting first.
    pub(super) fn due(&self, now: Instant) -> Vec<GpuId> {
        let mut due: Vec<(&GpuId, &Plan)> = self.plans.iter().collect();
        due.retain(|(_, plan)| plan.healthy && plan.due <= now);
        due.sort_by_key(|(_, plan)| plan.due);
        due.into_iter().map(|(uuid, _)| uuid.clone()).collect()
    }

    /// When the next GPU becomes due after `now`.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let is_later = |plan: &&Plan| plan.healthy && plan.due > now;
        self.plans.values().filter(is_later).map(|plan| plan.due).min()
    }

    /// Records the answer about a GPU; `None` without one.
    pub(super) fn record(
        &mut self,
        uuid: &GpuId,
        answer: Option<&Answer>,
        now: Instant,
    ) -> Option<Change> {
        let plan = self.plans.get_mut(uuid)?;
        plan.asked = Some(now);
        let was_closed = plan.is_closed();
        match answer {
            Some(Answer::Passed) => plan.failures = 0,
            Some(Answer::Failed(why)) => {
                plan.failures = plan.failures.saturating_add(1);
                plan.why.clone_from(why);
            }
            Some(Answer::Unknown(_)) | None => {}
        }
        let after = match answer {
            Some(Answer::Passed) => REGULAR,
            Some(Answer::Failed(_)) if !plan.is_closed() => AGAIN,
            None => UNREACHED,
            _ => SOON,
        };
        plan.due = now + after;
        match (was_closed, plan.is_closed()) {
            (false, true) => Some(Change::Closed),
            (true, false) => Some(Change::Opened),
            _ => None,
        }
    }

    /// The GPUs that are closed.
    pub(super) fn failed(&self) -> FailedContexts {
        let closed = self.plans.iter().filter(|(_, plan)| plan.is_closed());
        closed.map(|(uuid, plan)| (uuid.clone(), plan.why.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{A, B, gpus, with_unhealthy};
    use crate::gpus::Unhealthy;

    fn failed() -> Answer {
        Answer::Failed("CUDA error 802".to_owned())
    }

    /// A schedule of one GPU at its start, and how many seconds after `now` it is due.
    fn one() -> (Schedule, GpuId, Instant) {
        let mut schedule = Schedule::default();
        let now = Instant::now();
        schedule.set_gpus(&gpus(&[(A, 4)]), now);
        (schedule, A.into(), now)
    }

    fn wait(schedule: &Schedule, now: Instant) -> u64 {
        schedule.next(now).unwrap().duration_since(now).as_secs()
    }

    #[test]
    fn two_failures_in_a_row_close_and_one_pass_opens() {
        let (mut schedule, a, now) = one();
        assert_eq!(schedule.due(now), [GpuId::from(A)]);
        for (answer, change, again, closed) in [
            (Some(Answer::Passed), None, 900, false),
            (Some(failed()), None, 10, false),
            (Some(Answer::Passed), None, 900, false),
            (Some(failed()), None, 10, false),
            (Some(failed()), Some(Change::Closed), 60, true),
            (Some(failed()), None, 60, true),
            (None, None, 5, true),
            (Some(Answer::Unknown("full".to_owned())), None, 60, true),
            (Some(Answer::Passed), Some(Change::Opened), 900, false),
        ] {
            let text = format!("{answer:?}");
            assert_eq!(schedule.record(&a, answer.as_ref(), now), change, "{text}");
            assert_eq!(wait(&schedule, now), again, "{text}");
            assert_eq!(schedule.failed().contains_key(&a), closed, "{text}");
        }
    }

    #[test]
    fn what_is_no_answer_neither_closes_nor_counts_between_two_failures() {
        let (mut schedule, a, now) = one();
        let unknown = Some(Answer::Unknown("no library".to_owned()));
        for (answer, again) in [(None, 5), (unknown, 60), (None, 5), (None, 5)] {
            assert_eq!(schedule.record(&a, answer.as_ref(), now), None);
            assert_eq!(wait(&schedule, now), again);
        }
        schedule.record(&a, Some(&failed()), now);
        schedule.record(&a, None, now);
        assert!(schedule.failed().is_empty());
        assert_eq!(schedule.record(&a, Some(&failed()), now), Some(Change::Closed));
        assert_eq!(schedule.failed(), [(a, "CUDA error 802".to_owned())].into());
    }

    #[test]
    fn an_unhealthy_gpu_is_not_asked_and_is_asked_once_its_health_comes_back() {
        let (mut schedule, a, now) = one();
        schedule.record(&a, Some(&Answer::Passed), now);
        let both = gpus(&[(A, 4), (B, 4)]);
        let lost = with_unhealthy(&both, A, Unhealthy::Lost);
        schedule.set_gpus(&lost, now);
        assert_eq!(schedule.due(now + REGULAR), [GpuId::from(B)]);
        schedule.set_gpus(&both, now);
        assert_eq!(schedule.due(now).len(), 2);
        schedule.set_gpus(&gpus(&[(B, 4)]), now);
        assert_eq!(schedule.due(now), [GpuId::from(B)]);
    }

    #[test]
    fn a_gpu_is_asked_sooner_where_pods_fail_but_not_within_ten_seconds() {
        let (mut schedule, a, now) = one();
        schedule.record(&a, Some(&Answer::Passed), now);
        schedule.hasten(&a, now + Duration::from_secs(3));
        assert_eq!(wait(&schedule, now), 10);
        schedule.record(&a, Some(&Answer::Passed), now);
        let later = now + Duration::from_secs(100);
        schedule.hasten(&a, later);
        assert_eq!(schedule.due(later), [GpuId::from(A)]);
        schedule.hasten(&B.into(), later);
        assert_eq!(schedule.due(later), [a], "not of this node");
    }
}
