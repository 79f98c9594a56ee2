//! One pod's scheduling cycle (`schedulingCycle` in `pkg/scheduler/schedule_one.go`).

use std::collections::HashMap;
use std::sync::Arc;

use placement::node_rules::NodeRules;
use placement::resources::Requests;
use serde_json::Value;

use super::binding;
use super::config::Extender;
use super::core::Core;
use super::decision::{Candidate, Decision, Verdict};
use super::filters::{NodeResources, check_node, node_rules, requests};
use super::pod::Key;
use super::preemption::preempt;
use super::queue::{Attempt, WaitingFor};
use super::report::{FailureReason, fit_message, report};
use crate::json::{name, text, uid};
use crate::objects::kind::PODS;

/// Why an attempt found no node.
enum Unplaced {
    /// No node fits. The pod waits for this.
    NoNode(WaitingFor),
    /// An extender that is not ignorable failed, with this message.
    Error(String),
}

impl Core {
    /// Places one pod after another.
    pub(super) async fn schedule_forever(self: Arc<Self>) {
        loop {
            let (key, attempt) = self.queue.next().await;
            let pod = self.api.store.get(PODS, &key.0, &key.1);
            match pod.filter(|pod| self.is_pending(pod)) {
                Some(pod) => self.clone().schedule_one(pod, key, attempt).await,
                None => self.queue.remove(&key),
            }
        }
    }

    async fn schedule_one(self: Arc<Self>, pod: Arc<Value>, key: Key, attempt: Attempt) {
        let mut asked = requests(&pod);
        asked.retain(|resource, _| !self.config.is_ignored(resource));
        let nodes = self.cache.nodes(&self.api.store);
        let mut candidates = candidates(&pod, &asked, &nodes);
        let outcome = match self.place(&pod, &mut candidates).await {
            Ok(node) => {
                self.cache.assume(&pod, &node);
                tokio::spawn(binding::bind(self.clone(), pod.clone(), node.clone(), attempt));
                Ok(node)
            }
            Err(Unplaced::NoNode(waiting_for)) => {
                let preemption = preempt(&self, &pod, &asked, &candidates, &nodes).await;
                let message = fit_message(&candidates) + &preemption.message;
                self.queue.failed(key, waiting_for, attempt);
                report(&self, &pod, FailureReason::Unschedulable, &message, &preemption.node);
                preemption.evict(&self.api.store);
                Err(message)
            }
            Err(Unplaced::Error(message)) => {
                self.queue.failed(key, WaitingFor::Backoff, attempt);
                report(&self, &pod, FailureReason::SchedulerError, &message, "");
                Err(message)
            }
        };
        let uid = uid(&pod).to_owned();
        let pod = name(&pod).to_owned();
        // The receiver may be dropped.
        let _ = self.decisions.send(Decision { uid, pod, outcome, candidates });
    }

    /// Asks the extenders about the nodes that fit, and chooses one.
    async fn place(&self, pod: &Value, candidates: &mut [Candidate]) -> Result<String, Unplaced> {
        if fitting(candidates).is_empty() {
            return Err(Unplaced::NoNode(WaitingFor::Room));
        }
        // A nominated node that still fits is chosen without a look at the others.
        let nominated = text(&pod["status"]["nominatedNodeName"]);
        let nominated = candidates.iter().find(|c| c.node == nominated && c.fits()).cloned();
        if let Some(nominated) = nominated {
            let mut only = [nominated];
            self.filter(pod, &mut only).await?;
            if only[0].fits() {
                return Ok(only[0].node.clone());
            }
        }
        self.filter(pod, candidates).await?;
        // kube-scheduler asks for no scores where there is no choice.
        if fitting(candidates).len() > 1 {
            self.prioritize(pod, candidates).await;
        }
        let chosen = best(
            candidates,
            |candidate: &Candidate| candidate.score + candidate.extender_score,
            |ties| self.draw(ties),
        );
        chosen.ok_or(Unplaced::NoNode(WaitingFor::AnyChange))
    }

    /// Asks each extender's Filter about the nodes that fit so far.
    async fn filter(&self, pod: &Value, candidates: &mut [Candidate]) -> Result<(), Unplaced> {
        let extenders = self.config.extenders.iter();
        for extender in extenders.filter(|e| !e.filter_verb.is_empty() && e.wants(pod)) {
            self.filter_by(extender, pod, candidates).await?;
        }
        Ok(())
    }

    async fn filter_by(
        &self,
        extender: &Extender,
        pod: &Value,
        candidates: &mut [Candidate],
    ) -> Result<(), Unplaced> {
        let nodes = fitting(candidates);
        if nodes.is_empty() {
            return Ok(());
        }
        let result = match extender.filter(&self.http, pod, &nodes).await {
            Ok(result) => result,
            Err(_) if extender.ignorable => return Ok(()),
            Err(error) => return Err(Unplaced::Error(error.to_string())),
        };
        for candidate in candidates.iter_mut().filter(|candidate| candidate.fits()) {
            candidate.verdict = result.verdict(&candidate.node);
        }
        Ok(())
    }

    /// Asks all extenders for scores. Errors count as no scores, as in kube-scheduler.
    async fn prioritize(&self, pod: &Value, candidates: &mut [Candidate]) {
        let nodes = fitting(candidates);
        let extenders = self.config.extenders.iter();
        let asked = extenders.filter(|e| !e.prioritize_verb.is_empty() && e.wants(pod));
        let calls = asked.map(|extender| extender.prioritize(&self.http, pod, &nodes));
        let answers = futures::future::join_all(calls).await;
        let answers: Vec<HashMap<String, i64>> = answers.into_iter().flatten().collect();
        for candidate in candidates {
            let scores = answers.iter().filter_map(|scores| scores.get(&candidate.node));
            candidate.extender_score = scores.sum();
        }
    }
}

/// The verdict and score of each node by kube-scheduler's own plugins.
fn candidates(pod: &Value, asked: &Requests, nodes: &[NodeResources]) -> Vec<Candidate> {
    let rules = node_rules(pod);
    nodes
        .iter()
        .map(|node| Candidate {
            node: node.name.clone(),
            verdict: own_verdict(&rules, asked, node),
            score: node.score(asked),
            extender_score: 0,
        })
        .collect()
}

/// Whether kube-scheduler's own filters let the node take the pod.
fn own_verdict(rules: &NodeRules, asked: &Requests, node: &NodeResources) -> Verdict {
    if let Err(reason) = check_node(rules, &node.traits) {
        return Verdict::Unfit { reasons: vec![reason.to_owned()], unresolvable: true };
    }
    match node.check(asked) {
        Ok(()) => Verdict::Fits,
        Err(reasons) => {
            Verdict::Unfit { reasons, unresolvable: node.emptied().check(asked).is_err() }
        }
    }
}

fn fitting(candidates: &[Candidate]) -> Vec<&str> {
    let fitting = candidates.iter().filter(|candidate| candidate.fits());
    fitting.map(|candidate| candidate.node.as_str()).collect()
}

/// The fitting node with the highest score; among equals the one whose position `draw` returns.
fn best(
    candidates: &[Candidate],
    score: impl Fn(&Candidate) -> i64,
    draw: impl Fn(usize) -> usize,
) -> Option<String> {
    let fitting: Vec<&Candidate> = candidates.iter().filter(|candidate| candidate.fits()).collect();
    let highest = fitting.iter().map(|candidate| score(candidate)).max()?;
    let mut ties = fitting;
    ties.retain(|candidate| score(candidate) == highest);
    ties.get(draw(ties.len())).map(|candidate| candidate.node.clone())
}
