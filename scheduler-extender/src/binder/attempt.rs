//! One attempt to bind a pod: the binding's POST, and the handling of its answer.
//!
//! Invariant: an attempt ends with the ledger as the API server shows the pod, or keeps the
//! reservation and returns [`BindError::InDoubt`].

use std::sync::Arc;
use std::time::Duration;

use cluster::{
    Annotations, BindOutcome, Binding, CallError, PodFacts, bind, claim_annotations, get_pod,
    no_claim,
};
use placement::gpu::{Claim, GpuRequest};
use tokio::time::{Instant, timeout_at};

use super::{BindError, BindResult, Binder, Target};
use crate::view::{GpuPodId, OtherPod};

/// The result of reading a pod from the API server.
pub(super) enum PodLookup {
    Pod(Box<PodFacts>),
    NotFound,
    Failed(CallError),
}

impl Binder {
    /// Binds the pod. One that has changed since it was looked at is looked at once more: kube-scheduler tells of each
    /// try in the pod's status, and the watch may not have shown that yet.
    pub(super) async fn attempt(
        self: &Arc<Self>,
        target: &Target,
        deadline: Instant,
    ) -> BindResult {
        match self.attempt_once(target, deadline).await {
            Err(BindError::Changed(_)) => self.attempt_once(target, deadline).await,
            outcome => outcome,
        }
    }

    async fn attempt_once(self: &Arc<Self>, target: &Target, deadline: Instant) -> BindResult {
        let Some((found, version)) = self.find_request(target, deadline).await? else {
            return self.send(target, None, None, deadline).await;
        };
        if !self.view.is_complete() {
            return Err(BindError::NotReady);
        }
        if !self.replicas.leads() {
            return Err(BindError::NotLeading);
        }
        // Bound or in doubt already: read the pod before a new reservation.
        if !self.is_only_reserved_here(target)
            && let Some(outcome) = self.outcome_if_bound(target, deadline).await
        {
            return outcome;
        }
        // The policy may have changed since Filter.
        let request = found.with_beyond_units(self.view.beyond_units_of(&target.pod.namespace));
        let rule = self.view.choice_rule();
        let reservation =
            self.view.change(|index| index.reserve(&target.pod, &request, &target.node, &rule))?;
        let annotations = claim_annotations(&self.names, &request, &reservation, (self.clock)());
        self.send(target, version, Some((reservation.claim, annotations)), deadline).await
    }

    /// Whether the pod holds cards of no node, or of the target's alone, by a reservation that is not confirmed.
    fn is_only_reserved_here(&self, target: &Target) -> bool {
        self.view.ask(|index| {
            let held = index.held_on(&target.pod.uid);
            held.iter().all(|node| *node == target.node && index.is_reserved(&target.pod.uid, node))
        })
    }

    /// The pod's GPU request and the version that it is of: from the watch or, if that has not shown the pod yet, from
    /// the API server.
    async fn find_request(
        &self,
        target: &Target,
        deadline: Instant,
    ) -> Result<Option<(GpuRequest, Option<String>)>, BindError> {
        let known = self.view.ask(|index| {
            let request = index.request(&target.pod)?;
            Ok::<_, OtherPod>(request.map(|request| (request, index.version(&target.pod.uid))))
        })?;
        if known.is_some() {
            return Ok(known);
        }
        match self.find(target, deadline).await {
            PodLookup::Pod(facts) if facts.uid == target.pod.uid => {
                let PodFacts { gpu, version, .. } = *facts;
                let asked = gpu.map_err(|error| BindError::Refused(error.to_string()))?;
                if let Some(fault) = asked.as_ref().and_then(|gpu| gpu.fault.as_ref()) {
                    return Err(BindError::Refused(fault.to_string()));
                }
                Ok(asked.map(|gpu| (gpu.request, version)))
            }
            PodLookup::Pod(_) | PodLookup::NotFound => Err(BindError::Gone),
            PodLookup::Failed(error) => Err(BindError::Refused(error.to_string())),
        }
    }

    /// The outcome if the API server shows the pod bound; `None` if it is not bound. Then
    /// all its reservations stay until the API server has accepted one of them.
    async fn outcome_if_bound(&self, target: &Target, deadline: Instant) -> Option<BindResult> {
        match self.find(target, deadline).await {
            PodLookup::Pod(facts) if facts.uid != target.pod.uid => {
                Some(Err(self.handle_gone(target)))
            }
            PodLookup::Pod(facts) if facts.node.is_some() => {
                Some(self.handle_shown(target, &facts))
            }
            PodLookup::Pod(_) => None,
            PodLookup::NotFound => Some(Err(self.handle_gone(target))),
            PodLookup::Failed(error) => Some(Err(BindError::Refused(error.to_string()))),
        }
    }

    async fn send(
        self: &Arc<Self>,
        target: &Target,
        version: Option<String>,
        claim: Option<(Claim, Annotations)>,
        deadline: Instant,
    ) -> BindResult {
        let (claim, annotations) = claim.unzip();
        let binding = Binding {
            namespace: target.pod.namespace.clone(),
            name: target.pod.name.clone(),
            uid: target.pod.uid.clone(),
            // Its author may have added annotations since, for which there is no room beside the claim.
            version,
            node: target.node.clone(),
            annotations: annotations.unwrap_or_else(|| no_claim(&self.names)),
        };
        match self.post(&binding, deadline).await {
            Some(answer) => self.handle_answer(target, claim, answer, deadline).await,
            None => self.handle_not_sent(target),
        }
    }

    /// Sends one binding, within three quarters of the time left; the rest is for reading the pod. `None` if this
    /// replica no longer leads: then nothing was sent.
    async fn post(&self, binding: &Binding, deadline: Instant) -> Option<BindOutcome> {
        // Never closed, so this waits until there is room or the caller is out of time.
        let Ok(Ok(_permit)) = timeout_at(deadline, self.permits.acquire()).await else {
            return Some(BindOutcome::Refused("too many bindings under way".to_owned()));
        };
        let left = deadline.saturating_duration_since(Instant::now()) * 3 / 4;
        // This check must directly precede the call.
        let limit = self.replicas.longest_call()?.min(left);
        Some(bind(&self.client, binding, limit).await)
    }

    async fn handle_answer(
        self: &Arc<Self>,
        target: &Target,
        claim: Option<Claim>,
        answer: BindOutcome,
        deadline: Instant,
    ) -> BindResult {
        let (may_still_succeed, why) = match answer {
            BindOutcome::Bound => return self.handle_bound(target, claim),
            BindOutcome::NotFound => return Err(self.handle_not_found(target)),
            BindOutcome::Refused(why) => return self.handle_refused(target, why),
            BindOutcome::Conflict(why) => (false, why),
            BindOutcome::Unknown(why) => (true, why),
        };
        match self.find(target, deadline).await {
            // A conflict can mean that a former leader has bound it.
            PodLookup::Pod(facts) if facts.uid != target.pod.uid => Err(self.handle_gone(target)),
            PodLookup::Pod(facts) if facts.node.is_some() => self.handle_shown(target, &facts),
            PodLookup::Pod(facts) if !may_still_succeed => {
                let _ = self.handle_refused(target, String::new());
                // The next attempt is about the pod as it is now.
                self.take_over(&facts);
                Err(BindError::Changed(why))
            }
            PodLookup::Pod(_) | PodLookup::Failed(_) => Err(BindError::InDoubt(why)),
            PodLookup::NotFound => Err(self.handle_gone(target)),
        }
    }

    /// The outcome for a pod that the API server shows bound to a node. Updates the ledgers.
    fn handle_shown(&self, target: &Target, facts: &PodFacts) -> BindResult {
        self.take_over(facts);
        if let Some(node) = facts.node.as_ref().filter(|node| **node != target.node) {
            return Err(BindError::Elsewhere(node.clone()));
        }
        if let Ok(Some(gpu)) = &facts.gpu
            && !matches!(gpu.claim, Ok(Some(_)))
        {
            return Err(BindError::NoClaim);
        }
        self.record(target);
        Ok(())
    }

    pub(super) fn take_over(&self, facts: &PodFacts) {
        if let Ok(Some(gpu)) = &facts.gpu {
            self.view.apply_known(facts, gpu);
        }
    }

    fn handle_bound(&self, target: &Target, claim: Option<Claim>) -> BindResult {
        if let Some(claim) = claim {
            self.view.change(|index| index.confirm(&target.pod.uid, &target.node, &claim));
        }
        self.record(target);
        Ok(())
    }

    /// Counts the binding in the hot value without waiting for the watch, which shows it some milliseconds later.
    fn record(&self, target: &Target) {
        let now = (self.clock)();
        self.view.change(|index| index.record_binding(&target.pod.uid, &target.node, now, None));
    }

    /// Handles a deleted pod. An earlier binding may have been carried out, and the kubelet may have admitted the pod.
    fn handle_gone(&self, target: &Target) -> BindError {
        self.view.change(|index| index.depart(&target.pod.uid, (self.clock)()));
        BindError::Gone
    }

    /// Handles a binding of a pod that does not exist: without an earlier binding, it was never on a node.
    fn handle_not_found(&self, target: &Target) -> BindError {
        let Target { pod: GpuPodId { uid: pod, .. }, node } = target;
        let only_here = self.view.ask(|index| index.held_on(pod)) == [node.clone()];
        if only_here
            && self.view.ask(|index| index.is_reserved(pod, node))
            && self.in_doubt_since(&target.key()).is_none()
        {
            self.view.change(|index| index.forget(pod));
            return BindError::Gone;
        }
        self.handle_gone(target)
    }

    fn handle_not_sent(&self, target: &Target) -> BindResult {
        // The reservation of an earlier binding in doubt stays.
        let _ = self.handle_refused(target, String::new());
        Err(BindError::NotLeading)
    }

    /// Handles a binding that certainly failed. An earlier one of the same pod and node may still be in doubt.
    fn handle_refused(&self, target: &Target, why: String) -> BindResult {
        if self.in_doubt_since(&target.key()).is_none() {
            self.view.change(|index| index.cancel(&target.pod.uid, &target.node));
        }
        Err(BindError::Refused(why))
    }

    async fn find(&self, target: &Target, deadline: Instant) -> PodLookup {
        let left = deadline.saturating_duration_since(Instant::now());
        self.read(&target.pod, left).await
    }

    pub(super) async fn read(&self, pod: &GpuPodId, limit: Duration) -> PodLookup {
        match get_pod(&self.client, &pod.namespace, &pod.name, limit).await {
            Ok(Some(pod)) => PodLookup::Pod(Box::new(pod.facts(&self.names))),
            Ok(None) => PodLookup::NotFound,
            Err(error) => PodLookup::Failed(error),
        }
    }
}
