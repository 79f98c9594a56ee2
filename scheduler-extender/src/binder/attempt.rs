//! One attempt to bind a pod: what is sent, and what is made of the answer.
//!
//! Invariant: every way out either leaves the ledger as the API server shows it, or leaves the
//! reservation and says [`BindError::InDoubt`].

use std::sync::Arc;
use std::time::Duration;

use cluster::{
    Annotations, BindOutcome, Binding, CallError, PodFacts, bind, claim_annotations, get_pod,
};
use placement::gpu::{Claim, GpuRequest, NoFit};
use placement::units::NodeName;
use tokio::time::{Instant, timeout_at};

use super::{BindError, Binder, Outcome, Target};
use crate::view::GpuPodId;

/// What the API server shows of a pod, where the answer to a binding leaves its outcome open.
pub(super) enum Found {
    Pod(Box<PodFacts>),
    Nothing,
    NoAnswer(CallError),
}

impl Binder {
    pub(super) async fn attempt(self: &Arc<Self>, target: &Target, deadline: Instant) -> Outcome {
        let Some(request) = self.request(target, deadline).await? else {
            return self.send(target, None, deadline).await;
        };
        if !self.view.is_complete() {
            return Err(BindError::NotReady);
        }
        if !self.replicas.leads() {
            return Err(BindError::NotLeading);
        }
        let uid = &target.pod.uid;
        let held = self.view.cards.held_on(uid);
        let only_reserved_here =
            |node: &NodeName| *node == target.node && self.view.cards.is_reserved(uid, node);
        // Bound or in doubt already: the API server's word goes before a new reservation.
        if !held.iter().all(only_reserved_here)
            && let Some(outcome) = self.known_outcome(target, deadline).await
        {
            return outcome;
        }
        if self.view.is_left_to_dra(&target.node) {
            return self.without_claim(target, deadline).await;
        }
        let (cards, rule) = (&self.view.cards, self.view.choice_rule());
        let reservation = cards.reserve(&target.pod, &request, &target.node, &rule)?;
        let annotations = claim_annotations(&self.names, &request, &reservation, (self.clock)());
        self.send(target, Some((reservation.claim, annotations)), deadline).await
    }

    /// Binds a pod whose units a DRA driver serves. The API server says whether it does: kube-scheduler has written that before.
    async fn without_claim(self: &Arc<Self>, target: &Target, deadline: Instant) -> Outcome {
        match self.find(target, deadline).await {
            Found::Pod(facts) if facts.uid != target.pod.uid => Err(self.gone(target)),
            Found::Pod(facts) if facts.node.is_some() => self.outcome_shown(target, &facts),
            Found::Pod(facts) if facts.by_dra => self.send(target, None, deadline).await,
            Found::Pod(_) => Err(BindError::NoFit(target.node.clone(), NoFit::NoCards)),
            Found::Nothing => Err(self.gone(target)),
            Found::NoAnswer(error) => Err(BindError::Refused(error.to_string())),
        }
    }

    /// What the pod asks for. Usually the watch has shown it; otherwise the API server is asked.
    async fn request(
        &self,
        target: &Target,
        deadline: Instant,
    ) -> Result<Option<GpuRequest>, BindError> {
        if let Some(request) = self.view.cards.request(&target.pod)? {
            return Ok(Some(request));
        }
        match self.find(target, deadline).await {
            Found::Pod(facts) if facts.uid == target.pod.uid => {
                let gpu = facts.gpu.map_err(|error| BindError::Refused(error.to_string()))?;
                if let Some(fault) = gpu.as_ref().and_then(|gpu| gpu.fault.as_ref()) {
                    return Err(BindError::Refused(fault.to_string()));
                }
                Ok(gpu.map(|gpu| gpu.request))
            }
            Found::Pod(_) | Found::Nothing => Err(BindError::Gone),
            Found::NoAnswer(error) => Err(BindError::Refused(error.to_string())),
        }
    }

    /// How the binding ended, where the API server shows the pod bound; `None` where it is not bound. Then
    /// every reservation of it stays until the API server has taken one of them.
    async fn known_outcome(&self, target: &Target, deadline: Instant) -> Option<Outcome> {
        match self.find(target, deadline).await {
            Found::Pod(facts) if facts.uid != target.pod.uid => Some(Err(self.gone(target))),
            Found::Pod(facts) if facts.node.is_some() => Some(self.outcome_shown(target, &facts)),
            Found::Pod(_) => None,
            Found::Nothing => Some(Err(self.gone(target))),
            Found::NoAnswer(error) => Some(Err(BindError::Refused(error.to_string()))),
        }
    }

    async fn send(
        self: &Arc<Self>,
        target: &Target,
        claim: Option<(Claim, Annotations)>,
        deadline: Instant,
    ) -> Outcome {
        let (claim, annotations) = claim.unzip();
        let binding = Binding {
            namespace: target.pod.namespace.clone(),
            name: target.pod.name.clone(),
            uid: target.pod.uid.clone(),
            node: target.node.clone(),
            annotations: annotations.unwrap_or_default(),
        };
        match self.post(&binding, deadline).await {
            Some(answer) => self.outcome_of(target, claim, answer, deadline).await,
            None => self.not_sent(target),
        }
    }

    /// One binding, within three quarters of the time left: the rest is for reading the pod. `None` where this replica does
    /// not lead any more, so that nothing was sent.
    async fn post(&self, binding: &Binding, deadline: Instant) -> Option<BindOutcome> {
        // Never closed, so this waits until there is room or the caller is out of time.
        let Ok(Ok(_permit)) = timeout_at(deadline, self.permits.acquire()).await else {
            return Some(BindOutcome::Refused("too many bindings under way".to_owned()));
        };
        let left = deadline.saturating_duration_since(Instant::now()) * 3 / 4;
        // Nothing may come between this and the call.
        let limit = self.replicas.longest_call()?.min(left);
        Some(bind(&self.client, binding, limit).await)
    }

    async fn outcome_of(
        self: &Arc<Self>,
        target: &Target,
        claim: Option<Claim>,
        answer: BindOutcome,
        deadline: Instant,
    ) -> Outcome {
        let (may_still_succeed, why) = match answer {
            BindOutcome::Bound => return self.bound(target, claim),
            BindOutcome::NotFound => return Err(self.never_bound(target)),
            BindOutcome::Refused(why) => return self.refused(target, why),
            BindOutcome::Conflict(why) => (false, why),
            BindOutcome::Unknown(why) => (true, why),
        };
        match self.find(target, deadline).await {
            // A conflict may have been that a former leader has bound it.
            Found::Pod(facts) if facts.uid != target.pod.uid => Err(self.gone(target)),
            Found::Pod(facts) if facts.node.is_some() => self.outcome_shown(target, &facts),
            Found::Pod(_) if !may_still_succeed => self.refused(target, why),
            Found::Pod(_) | Found::NoAnswer(_) => Err(BindError::InDoubt(why)),
            Found::Nothing => Err(self.gone(target)),
        }
    }

    /// The outcome for a pod that the API server shows bound to some node, which the ledgers take over.
    fn outcome_shown(&self, target: &Target, facts: &PodFacts) -> Outcome {
        self.take_over(facts);
        if let Some(node) = facts.node.as_ref().filter(|node| **node != target.node) {
            return Err(BindError::Elsewhere(node.clone()));
        }
        if let Ok(Some(gpu)) = &facts.gpu
            && !matches!(gpu.claim, Ok(Some(_)))
            && !(facts.by_dra && self.view.is_left_to_dra(&target.node))
        {
            return Err(BindError::NoClaim);
        }
        self.record(target);
        Ok(())
    }

    pub(super) fn take_over(&self, facts: &PodFacts) {
        if let Ok(Some(gpu)) = &facts.gpu {
            self.view.cards.apply_known(facts, gpu);
        }
    }

    fn bound(&self, target: &Target, claim: Option<Claim>) -> Outcome {
        if let Some(claim) = claim {
            self.view.cards.confirm(&target.pod.uid, &target.node, &claim);
        }
        self.record(target);
        Ok(())
    }

    /// Counts the binding in the hot value at once: the watch shows it some milliseconds later.
    fn record(&self, target: &Target) {
        let now = (self.clock)();
        self.view.load.record_binding(&target.pod.uid, &target.node, now, None);
    }

    /// The pod is gone. An earlier binding of it may have been carried out, and its kubelet may have let it in.
    fn gone(&self, target: &Target) -> BindError {
        self.view.cards.depart(&target.pod.uid, (self.clock)());
        BindError::Gone
    }

    /// The API server has found no such pod to bind: unless there was an earlier binding, it has never been on a node.
    fn never_bound(&self, target: &Target) -> BindError {
        let (pod, node) = (&target.pod.uid, &target.node);
        let only_here = self.view.cards.held_on(pod) == [node.clone()];
        if only_here
            && self.view.cards.is_reserved(pod, node)
            && self.doubt(&target.key()).is_none()
        {
            self.view.cards.forget(pod);
            return BindError::Gone;
        }
        self.gone(target)
    }

    fn not_sent(&self, target: &Target) -> Outcome {
        // Where an earlier one is in doubt, its reservation stays.
        let _ = self.refused(target, String::new());
        Err(BindError::NotLeading)
    }

    /// This binding surely failed. An earlier one of the same pod and node may still be in doubt.
    fn refused(&self, target: &Target, why: String) -> Outcome {
        if self.doubt(&target.key()).is_none() {
            self.view.cards.cancel(&target.pod.uid, &target.node);
        }
        Err(BindError::Refused(why))
    }

    async fn find(&self, target: &Target, deadline: Instant) -> Found {
        let left = deadline.saturating_duration_since(Instant::now());
        self.read(&target.pod, left).await
    }

    pub(super) async fn read(&self, pod: &GpuPodId, limit: Duration) -> Found {
        match get_pod(&self.client, &pod.namespace, &pod.name, limit).await {
            Ok(Some(pod)) => Found::Pod(Box::new(pod.facts(&self.names))),
            Ok(None) => Found::Nothing,
            Err(error) => Found::NoAnswer(error),
        }
    }
}
