//! Tells of withheld units: a condition and an event of the Node, and metrics. The [`breaker`](super::breaker) decides.
//!
//! The condition's write also sets the Node's allocatable units to 0, as the kubelet does at its next report, up to
//! 10 s later by default. Until then kube-scheduler would bind a pod for each one that fails.
//!
//! Invariant: the condition is written when it changes, once after the start, and every five minutes in case another
//! program changed it.

use std::sync::Arc;
use std::time::Duration;

use cluster::{CallError, EventText, NodeCondition, PodFacts};
use jiff::Timestamp;
use placement::units::{NodeName, Units};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::Admission;
use super::breaker::{Breaker, Offer};
use super::refusal::Refusal;
use crate::node_events::NodeEvents;
use crate::pods::PodRef;
use crate::report::log_unwritten_status;

/// The condition's type, and the reason of the event.
const WITHHELD: &str = "GPUUnitsWithheld";
/// Age at which the condition is written again. An unchanged one costs the API server one read.
const REWRITE_AFTER: Duration = Duration::from_secs(300);
/// Pause after a failed write.
const RETRY_PAUSE: Duration = Duration::from_secs(30);
/// Time for one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// What is wrong, and what to do.
const REMEDY: &str = "GPU pods are bound without Plimsoll's scheduler-extender and refused. If kube-scheduler has lost \
                      its configuration, as after `kubeadm upgrade`, run `plimsoll scheduler enable` on each \
                      control-plane node. If the pods name another scheduler, take spec.schedulerName out";

/// Writes the condition and the events of this node.
pub(crate) struct StatusWriter {
    /// The API server's client.
    pub client: cluster::Client,
    /// This node.
    pub node: NodeName,
    /// The resource that is withheld.
    pub resource: String,
    /// Writes the events.
    pub events: NodeEvents,
}

/// Ends what is over, and tells of it, until the shutdown.
pub(crate) async fn run(
    admission: Arc<Admission>,
    writer: StatusWriter,
    shutdown: daemon::Shutdown,
) {
    tokio::select! {
        () = shutdown.cancelled() => {}
        ((), ()) = async { tokio::join!(follow(&admission), writer.write(admission.breaker())) } => {}
    }
}

/// Ends what is over, and all of it once a pod with a claim waits.
async fn follow(admission: &Admission) {
    let mut breaker = admission.breaker();
    let (_, mut pods) = admission.changes_of_holders();
    loop {
        let next = breaker.borrow_and_update().next_tick();
        tokio::select! {
            changed = breaker.changed() => if changed.is_err() { return },
            () = reached(next) => admission.change_breaker(|breaker| breaker.tick(Instant::now())),
            changed = pods.changed(), if next.is_some() => {
                if changed.is_err() {
                    return;
                }
                admission.offer_to_claimed_pods();
            }
        }
    }
}

/// Returns at this time; never if there is none.
async fn reached(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

impl StatusWriter {
    async fn write(&self, mut breaker: watch::Receiver<Breaker>) {
        let mut condition = condition_now(false);
        let mut told = Offer::All;
        let mut logged = String::new();
        loop {
            let now = breaker.borrow_and_update().clone();
            let offer = now.offer();
            if (offer != Offer::All) != condition.holds {
                condition = condition_now(!condition.holds);
            }
            let written = self.write_condition(&condition, offer).await;
            if let (Some(pause), true) = (now.pause(), offer != told) {
                self.events.warn(&warning(&self.resource, pause)).await;
            }
            told = offer;
            let pause = match written {
                Ok(()) => {
                    logged.clear();
                    REWRITE_AFTER
                }
                Err(error) => {
                    log_unwritten_status("the condition GPUUnitsWithheld", &error, &mut logged);
                    RETRY_PAUSE
                }
            };
            tokio::select! {
                changed = breaker.changed() => if changed.is_err() { return },
                () = sleep(pause) => {}
            }
        }
    }

    async fn write_condition(
        &self,
        condition: &NodeCondition,
        offer: Offer,
    ) -> Result<(), CallError> {
        let resource = (offer == Offer::Nothing).then_some(self.resource.as_str());
        let Self { client, node, .. } = self;
        cluster::patch_node_condition(client, node, condition, resource, WRITE_TIMEOUT).await
    }
}

/// The condition from now on.
fn condition_now(holds: bool) -> NodeCondition {
    NodeCondition {
        kind: WITHHELD,
        holds,
        reason: if holds { "PodsWithoutClaim" } else { "UnitsOffered" },
        message: if holds { REMEDY.to_owned() } else { "free units are offered".to_owned() },
        since: Timestamp::now(),
    }
}

fn warning(resource: &str, pause: Duration) -> EventText {
    let seconds = pause.as_secs();
    let note = format!("no {resource} is offered for {seconds} s: {REMEDY}");
    EventText { reason: WITHHELD, action: "Allocate", note }
}

impl Admission {
    /// The breaker, as it changes what is offered.
    pub(crate) fn breaker(&self) -> watch::Receiver<Breaker> {
        self.breaker.subscribe()
    }

    /// Changes the breaker. Receivers are told only if that changes the offer.
    pub(super) fn change_breaker(&self, change: impl FnOnce(&mut Breaker)) {
        self.breaker.send_if_modified(|breaker| {
            let before = breaker.offer();
            change(breaker);
            let offer = breaker.offer();
            if offer == before {
                return false;
            }
            self.metrics.units_withheld.set((offer != Offer::All).into());
            match (offer, breaker.pause()) {
                (Offer::Nothing, pause) => {
                    self.metrics.withheld.inc();
                    tracing::warn!(?pause, "no unit is offered: {REMEDY}");
                }
                (Offer::Few(Units(units)), _) => {
                    tracing::info!(
                        units,
                        "a few units are offered, to see whether the next pod has a claim"
                    );
                }
                (Offer::All, _) => tracing::info!("all units are offered again"),
            }
            true
        });
    }

    /// A pod of these units, which a scheduler bound without the extender, was refused. While a pod with a claim waits
    /// the extender binds pods too, and that pod must be admitted.
    pub(super) fn count_bypass(&self, units: Units) {
        let claimed_waits = self.claimed_pod_waits();
        self.change_breaker(|breaker| {
            if claimed_waits {
                breaker.reset();
            } else {
                breaker.refused(units, Instant::now());
            }
        });
    }

    /// Offers all units if a pod with a claim waits for some.
    fn offer_to_claimed_pods(&self) {
        if self.claimed_pod_waits() {
            self.change_breaker(Breaker::reset);
        }
    }

    fn claimed_pod_waits(&self) -> bool {
        self.sources.pods.all().iter().any(|pod| waits_with_claim(pod))
    }

    /// The units of the pod in admission, if it is refused because a scheduler bound it without the extender. A pod
    /// that named its node itself has no time of its binding before its kubelet writes one. `pod` is the pod, if it is
    /// known, and `size` what its container asks for.
    pub(super) fn units_of_bypass(
        &self,
        refusal: &Refusal,
        pod: Option<&PodFacts>,
        size: usize,
    ) -> Option<Units> {
        match refusal {
            Refusal::Unclaimed(_) => {
                let gpu = pod.filter(|pod| pod.bound_at.is_some())?.gpu_pod()?;
                Some(gpu.request.peak())
            }
            Refusal::NoneClaimed { pods, .. }
                if pods.iter().all(|pod| self.has_been_bound(pod)) =>
            {
                Some(Units(u32::try_from(size).unwrap_or(u32::MAX)))
            }
            _ => None,
        }
    }

    fn has_been_bound(&self, pod: &PodRef) -> bool {
        self.sources.pods.get(pod).is_some_and(|facts| facts.bound_at.is_some())
    }
}

/// Whether the pod has a claim and its kubelet has not come to it.
fn waits_with_claim(pod: &PodFacts) -> bool {
    pod.claim().is_some() && !pod.admitted && !pod.finished && !pod.deleting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_condition_and_the_event_say_fits_and_names_the_command() {
        for text in [condition_now(true).message, warning("aliyun.com/gpu-mem", WRITE_TIMEOUT).note]
        {
            assert!(text.contains("plimsoll scheduler enable"), "{text}");
            assert!(text.len() < 1000, "{text}");
        }
    }
}
