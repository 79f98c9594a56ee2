//! Identifies the pod and container that the kubelet is admitting.
//!
//! GetPreferredAllocation carries device ids only. But the kubelet lists a pod from just before its
//! admission on, and admits one pod at a time, so at that moment exactly one listed pod has a
//! container that requests units and holds none (kubelet.go:2852 in v1.36.2). Pods that were admitted
//! before the resource was registered look the same, but have a start time in their status. Init
//! containers are never listed; the records hold their grants.
//!
//! [`table`] decides by what is known of the listed pods, and says which of them must be read. Here they are read from
//! the API server: pods that the watch does not show, and those that it shows as possible. A pod that requests no units
//! is never read.

pub(crate) mod table;

use std::sync::Arc;
use std::time::Duration;

use cluster::PodFacts;
use futures::{StreamExt, stream};
use placement::gpu::ContainerRequest;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::refusal::Refusal;
use super::refused::RefusedPods;
use super::sources::{READ_BUDGET, Sources};
use crate::gpus::ids::Ids;
use crate::pods::PodRef;
use crate::records::Records;
use crate::records::pod_resources::ListedPod;
use table::{Answer, Answers, Evidence, FactsOf, NO_TIME, Step, decide, is_open};

/// Pause before pods are read again; it doubles each time.
const REREAD_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause before pods are read again.
const MAX_PAUSE: Duration = Duration::from_millis(400);
/// The largest number of reads in progress.
const MAX_READS: usize = 8;

/// The ids that the kubelet requests in one GetPreferredAllocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IdRequest {
    /// How many ids, those of `must_include` among them.
    pub size: usize,
    /// Ids of the same pod's init containers that must be among them.
    pub must_include: Ids,
}

/// The pod and container being admitted. `places_unclaimed`: whether a pod without a claim is put on a GPU.
///
/// While several pods are possible or reads fail, those pods are read again, with longer and longer pauses, and the
/// kubelet's list with them, until one pod is left or [`READ_BUDGET`] is spent.
///
/// # Errors
/// If no pod fits, several still fit, or a pod that may fit could not be read in time.
pub(crate) async fn identify(
    sources: &Sources,
    refused: &RefusedPods,
    id_request: &IdRequest,
    places_unclaimed: bool,
) -> Result<(Arc<PodFacts>, ContainerRequest), Refusal> {
    let until = Instant::now() + READ_BUDGET;
    let mut answers = Answers::new();
    let mut pause = REREAD_PAUSE;
    loop {
        let step = {
            let records = sources.records();
            let evidence = Evidence {
                records: &records,
                cached: &cached(sources, &records),
                answers: &answers,
                refused,
                id_request,
                places_unclaimed,
            };
            decide(&evidence, Instant::now() >= until)
        };
        let pods = match step {
            Step::One(facts, ask) => return Ok((facts, ask)),
            Step::Refuse(refusal) => return Err(refusal),
            Step::Read(pods) => pods,
        };
        if pods.iter().any(|pod| answers.contains_key(pod)) {
            sleep_until(until.min(Instant::now() + pause)).await;
            pause = MAX_PAUSE.min(pause * 2);
            if let Ok(Err(status)) = timeout_at(until, sources.relist()).await {
                tracing::debug!("PodResources List: {}", status.message());
            }
        }
        read(sources, &pods, until, &mut answers).await;
    }
}

/// The facts of the open pods that the watch shows.
fn cached(sources: &Sources, records: &Records) -> FactsOf {
    let shown = |listed: &ListedPod| Some((listed.pod.clone(), sources.pods.get(&listed.pod)?));
    records.listed().filter(|listed| is_open(listed)).filter_map(shown).collect()
}

/// Reads pods from the API server, until that time.
async fn read(sources: &Sources, pods: &[PodRef], until: Instant, answers: &mut Answers) {
    let ask = |pod: PodRef| async move { (sources.api.read(&pod).await, pod) };
    let mut reads = stream::iter(pods.to_vec()).map(ask).buffer_unordered(MAX_READS);
    while let Ok(Some((read, pod))) = timeout_at(until, reads.next()).await {
        let answer = match read {
            Ok(Some(facts)) => Answer::Found(Arc::new(facts)),
            Ok(None) => Answer::Gone,
            Err(error) => Answer::Failed(error),
        };
        // A pod that was found may be deleted by force while the kubelet admits it.
        match answers.get(&pod) {
            Some(Answer::Found(_)) if !matches!(answer, Answer::Found(_)) => {}
            _ => drop(answers.insert(pod, answer)),
        }
    }
    for pod in pods {
        answers.entry(pod.clone()).or_insert_with(|| Answer::Failed(NO_TIME.to_owned()));
    }
}

#[cfg(test)]
mod tests;
