//! One attempt, from Bind's call until the doubt about it has ended.

use std::mem;

use cluster::{BindOutcome, PodFacts};
use jiff::Timestamp;
use placement::gpu::{Claim, GpuRequest};

use super::{Action, Bindings, Event, Found, Known, key};
use crate::binder::{BindError, BindResult, Target};
use crate::view::{GpuPodId, Index};

/// One attempt to bind a pod to a node.
#[derive(Debug, Clone)]
pub(in crate::binder) struct Attempt {
    pub(in crate::binder) target: Target,
    number: u64,
    pub(in crate::binder) phase: Phase,
    /// Whether the pod had changed since it was looked at, so that it is looked at once more.
    pub(in crate::binder) is_second_look: bool,
}

#[derive(Debug, Clone)]
pub(in crate::binder) enum Phase {
    New,
    /// The pod is read for its request: the watch has not shown it yet.
    Finding,
    /// The pod is read before a new reservation: it is bound or in doubt already.
    Checking(Box<Asked>),
    Sending(Option<Claim>),
    /// The pod is read: the answer was lost, so that the request may still be carried out, or a conflict.
    Verifying {
        may_land: bool,
        why: String,
    },
    InDoubt,
    /// The pod is read while in doubt. `is_over`: before the read, the request's time was over.
    Settling {
        is_over: bool,
    },
    Ended,
}

/// What the pod asks for, and the version that this is of.
type Asked = (GpuRequest, Option<String>);

/// The next action, or why the attempt has failed.
type Next = Result<Action, BindError>;

impl Attempt {
    /// Begins an attempt; none is running for this pod and node.
    pub(in crate::binder) fn begin<J>(target: Target, join: J, bindings: &mut Bindings<J>) -> Self {
        bindings.begun += 1;
        bindings.running.insert(key(&target), join);
        Self { target, number: bindings.begun, phase: Phase::New, is_second_look: false }
    }

    pub(in crate::binder) fn step<J>(&mut self, event: Event, known: &mut Known<'_, J>) -> Action {
        let next = match (mem::replace(&mut self.phase, Phase::Ended), event) {
            (Phase::New, Event::Begun) => self.ask(known),
            (Phase::Finding, Event::Found(found)) => self.find(found, known),
            (Phase::Checking(asked), Event::Found(found)) => self.check(*asked, found, known),
            (Phase::Sending(claim), Event::Answered(answer)) => self.learn(claim, answer, known),
            (Phase::Sending(_), Event::NotSent(why)) => {
                self.release(known);
                Err(why)
            }
            (Phase::Verifying { may_land, why }, Event::Found(found)) => {
                self.verify(may_land, why, found, known)
            }
            (Phase::InDoubt, Event::Woken { is_over }) => return self.look_again(is_over, known),
            (Phase::Settling { is_over }, Event::Found(found)) => {
                return self.settle(is_over, found, known);
            }
            (Phase::Ended, _) => return self.end(known),
            // The binder sends no such event.
            (phase, _) => {
                self.phase = phase;
                return Action::Wait;
            }
        };
        next.unwrap_or_else(|error| self.finish(Err(error), known))
    }

    /// Begins with the request that the watch has shown, or else reads the pod.
    fn ask<J>(&mut self, known: &mut Known<'_, J>) -> Next {
        match known.index.request(&self.target.pod)? {
            Some(request) => {
                let version = known.index.version(&self.target.pod.uid);
                self.prepare((request, version), known)
            }
            None => Ok(self.read(Phase::Finding)),
        }
    }

    fn find<J>(&mut self, found: Found, known: &mut Known<'_, J>) -> Next {
        let facts = match found {
            Found::Bound(facts) | Found::Unbound(facts) => *facts,
            Found::Gone => return Err(BindError::Gone),
            Found::Failed(error) => return Err(BindError::Refused(error.to_string())),
        };
        let version = facts.version;
        let Some(gpu) = facts.gpu.map_err(|error| BindError::Refused(error.to_string()))? else {
            self.phase = Phase::Sending(None);
            return Ok(Action::Send { version: None, reserved: None });
        };
        match gpu.fault {
            Some(fault) => Err(BindError::Refused(fault.to_string())),
            None => self.prepare((gpu.request, version), known),
        }
    }

    fn prepare<J>(&mut self, asked: Asked, known: &mut Known<'_, J>) -> Next {
        if !known.is_complete {
            return Err(BindError::NotReady);
        }
        if !known.leads {
            return Err(BindError::NotLeading);
        }
        let Target { pod, node } = &self.target;
        let held = known.index.held_on(&pod.uid);
        if held.iter().all(|other| other == node && known.index.is_reserved(&pod.uid, node)) {
            return self.reserve(asked, known);
        }
        Ok(self.read(Phase::Checking(Box::new(asked))))
    }

    /// Of a pod that is not bound, all reservations stay until the API server has accepted one of them.
    fn check<J>(&mut self, asked: Asked, found: Found, known: &mut Known<'_, J>) -> Next {
        match found {
            Found::Bound(facts) => self.show(&facts, known),
            Found::Unbound(_) => self.reserve(asked, known),
            Found::Gone => Err(self.depart(known)),
            Found::Failed(error) => Err(BindError::Refused(error.to_string())),
        }
    }

    fn reserve<J>(&mut self, asked: Asked, known: &mut Known<'_, J>) -> Next {
        let Target { pod, node } = &self.target;
        let (request, version) = asked;
        let request = request.with_beyond_units(known.beyond_units);
        let reservation = known.index.reserve(pod, &request, node, &known.rule)?;
        self.phase = Phase::Sending(Some(reservation.claim.clone()));
        let reserved = Some(Box::new((request, reservation)));
        // At another version, its author may have added annotations, for which there is no room beside the claim.
        Ok(Action::Send { version, reserved })
    }

    fn learn<J>(
        &mut self,
        claim: Option<Claim>,
        answer: BindOutcome,
        known: &mut Known<'_, J>,
    ) -> Next {
        let Target { pod, node } = &self.target;
        match answer {
            BindOutcome::Bound => {
                if let Some(claim) = claim {
                    known.index.confirm(&pod.uid, node, &claim);
                }
                Ok(self.succeed(known))
            }
            // Without an earlier binding, it was never on a node.
            BindOutcome::NotFound
                if known.index.held_on(&pod.uid) == [node.clone()]
                    && known.index.is_reserved(&pod.uid, node)
                    && !self.is_in_doubt(known) =>
            {
                known.index.forget(&pod.uid);
                Err(BindError::Gone)
            }
            BindOutcome::NotFound => Err(self.depart(known)),
            BindOutcome::Refused(why) => {
                self.release(known);
                Err(BindError::Refused(why))
            }
            BindOutcome::Conflict(why) => Ok(self.read(Phase::Verifying { may_land: false, why })),
            BindOutcome::Unknown(why) => Ok(self.read(Phase::Verifying { may_land: true, why })),
        }
    }

    fn verify<J>(
        &mut self,
        may_land: bool,
        why: String,
        found: Found,
        known: &mut Known<'_, J>,
    ) -> Next {
        match found {
            // A conflict can mean that a former leader has bound it.
            Found::Bound(facts) => self.show(&facts, known),
            Found::Unbound(facts) if !may_land => {
                self.release(known);
                // The next attempt is about the pod as it is now.
                take_over(&facts, known.index);
                Err(BindError::Changed(why))
            }
            Found::Unbound(_) | Found::Failed(_) => Err(BindError::InDoubt(why)),
            Found::Gone => Err(self.depart(known)),
        }
    }

    /// The API server shows the pod bound to a node.
    fn show<J>(&mut self, facts: &PodFacts, known: &mut Known<'_, J>) -> Next {
        take_over(facts, known.index);
        if let Some(node) = facts.node.as_ref().filter(|node| **node != self.target.node) {
            return Err(BindError::Elsewhere(node.clone()));
        }
        if let Ok(Some(gpu)) = &facts.gpu
            && !matches!(gpu.claim, Ok(Some(_)))
        {
            return Err(BindError::NoClaim);
        }
        Ok(self.succeed(known))
    }

    /// Counts the binding in the hot value without waiting for the watch, which shows it some milliseconds later.
    fn succeed<J>(&mut self, known: &mut Known<'_, J>) -> Action {
        let Target { pod, node } = &self.target;
        known.index.record_binding(&pod.uid, node, known.now, None);
        self.finish(Ok(()), known)
    }

    /// Handles a deleted pod. An earlier binding may have been carried out, and the kubelet may have admitted the pod.
    fn depart<J>(&self, known: &mut Known<'_, J>) -> BindError {
        known.index.depart(&self.target.pod.uid, known.now);
        BindError::Gone
    }

    /// Handles a binding that certainly failed. An earlier one of the same pod and node may still be in doubt.
    fn release<J>(&self, known: &mut Known<'_, J>) {
        if !self.is_in_doubt(known) {
            known.index.cancel(&self.target.pod.uid, &self.target.node);
        }
    }

    /// Whether an attempt for this pod and node is in doubt.
    fn is_in_doubt<J>(&self, known: &Known<'_, J>) -> bool {
        known.bindings.doubtful.contains_key(&key(&self.target))
    }

    /// Whether this attempt is in doubt, and no later one for this pod and node has ended so.
    pub(in crate::binder) fn is_last_in_doubt<J>(&self, bindings: &Bindings<J>) -> bool {
        bindings.doubtful.get(&key(&self.target)) == Some(&self.number)
    }

    /// Ends the attempt for its callers. A pod that has changed since it was looked at is looked at once more:
    /// kube-scheduler tells of each try in the pod's status, and the watch may not have shown that yet.
    fn finish<J>(&mut self, outcome: BindResult, known: &mut Known<'_, J>) -> Action {
        let has_changed = matches!(outcome, Err(BindError::Changed(_)));
        if has_changed && !mem::replace(&mut self.is_second_look, true) {
            let next = self.ask(known);
            return next.unwrap_or_else(|error| self.finish(Err(error), known));
        }
        known.bindings.running.remove(&key(&self.target));
        if matches!(outcome, Err(BindError::InDoubt(_))) {
            known.bindings.doubtful.insert(key(&self.target), self.number);
            self.phase = Phase::InDoubt;
        }
        Action::Finish(outcome)
    }

    /// Reads the pod, unless the watch or another attempt has settled the doubt.
    fn look_again<J>(&mut self, is_over: bool, known: &mut Known<'_, J>) -> Action {
        let Target { pod, node } = &self.target;
        if self.is_last_in_doubt(known.bindings) && known.index.is_reserved(&pod.uid, node) {
            return self.read(Phase::Settling { is_over });
        }
        self.end(known)
    }

    fn settle<J>(&mut self, is_over: bool, found: Found, known: &mut Known<'_, J>) -> Action {
        // During the read, another attempt may have begun, or have ended in doubt itself.
        let is_alone =
            known.bindings.running(&self.target).is_none() && self.is_last_in_doubt(known.bindings);
        match found {
            Found::Bound(facts) => take_over(&facts, known.index),
            Found::Gone => known.index.depart(&self.target.pod.uid, known.now),
            Found::Unbound(_) if is_over && is_alone => {
                known.index.cancel(&self.target.pod.uid, &self.target.node);
            }
            Found::Unbound(_) | Found::Failed(_) => {
                self.phase = Phase::InDoubt;
                return Action::Wait;
            }
        }
        self.end(known)
    }

    fn end<J>(&mut self, known: &mut Known<'_, J>) -> Action {
        if self.is_last_in_doubt(known.bindings) {
            known.bindings.doubtful.remove(&key(&self.target));
        }
        if known.index.is_doubtful(&self.target.pod.uid) { Action::LookUp } else { Action::End }
    }

    fn read(&mut self, phase: Phase) -> Action {
        self.phase = phase;
        Action::Read
    }
}

/// Applies the result of looking up a pod whose end no event may show. Returns whether it says how the pod is.
pub(in crate::binder) fn apply_look_up(
    pod: &GpuPodId,
    found: Found,
    index: &mut Index,
    now: Timestamp,
) -> bool {
    match found {
        Found::Bound(facts) | Found::Unbound(facts) => take_over(&facts, index),
        Found::Gone => index.depart(&pod.uid, now),
        Found::Failed(_) => return false,
    }
    true
}

fn take_over(facts: &PodFacts, index: &mut Index) {
    if let Ok(Some(gpu)) = &facts.gpu {
        index.apply_known(facts, gpu);
    }
}
