//! Preemption (PostFilter), as far as extenders can tell: `pkg/scheduler/framework/preemption/preemption.go` of v1.36.
//!
//! Where no node fits, a dry run removes pods of lower priority from each node that an eviction may free, and puts back
//! those that still fit. The dry run knows kube-scheduler's own filters only. Extenders with a preempt verb may then
//! leave out nodes and change victims. The victims of one node are deleted, and the pod is nominated for it.
//!
//! Left out: disruption budgets, grace periods, and nominated pods in the sums of other pods.

use std::cmp::Reverse;
use std::sync::Arc;

use placement::resources::Requests;
use serde_json::Value;

use super::core::Core;
use super::decision::Candidate;
use super::extender::Victims;
use super::filters::{NodeResources, requests};
use super::pod::{has_ended, priority};
use super::report::unavailable;
use crate::json::{name, namespace, uid};
use crate::objects::kind::PODS;
use crate::objects::store::Store;

/// The outcome of a preemption.
#[derive(Debug, Default)]
pub(super) struct Preemption {
    /// Appended to the message of the pod's condition; empty where a node was found.
    pub(super) message: String,
    /// The nominated node, or empty.
    pub(super) node: String,
    victims: Vec<Arc<Value>>,
}

/// What the dry run says of one node.
enum DryRun {
    Victims(Vec<Arc<Value>>),
    /// An eviction does not help, for these reasons.
    NotHelpful(Vec<String>),
    /// The pod fits without an eviction, so an extender must have rejected the node. kube-scheduler takes this for an
    /// error.
    NoVictims,
}

/// Looks for a node that an eviction frees for the pod.
pub(super) async fn preempt(
    core: &Core,
    pod: &Value,
    asked: &Requests,
    candidates: &[Candidate],
    nodes: &[NodeResources],
) -> Preemption {
    if pod["spec"]["preemptionPolicy"] == "Never" {
        return without_node("not eligible due to preemptionPolicy=Never.");
    }
    let pods: Vec<Arc<Value>> = core.api.store.list(PODS).0;
    let mut victims = Victims::new();
    let mut errors = Vec::new();
    let mut reasons = Vec::new();
    for (candidate, node) in candidates.iter().zip(nodes) {
        if !candidate.may_be_freed() {
            reasons.push("Preemption is not helpful for scheduling".to_owned());
            continue;
        }
        match dry_run(pod, asked, node, &pods) {
            DryRun::Victims(pods) => drop(victims.insert(node.name.clone(), pods)),
            DryRun::NotHelpful(why) => reasons.extend(why),
            DryRun::NoVictims => errors.push(no_victims(&node.name)),
        }
    }
    if victims.is_empty() && !errors.is_empty() {
        // The nodes are tried in parallel, so their errors come in any order.
        for index in 1..errors.len() {
            errors.swap(index, core.draw(index + 1));
        }
        return without_node(&match errors.as_slice() {
            [error] => error.clone(),
            errors => format!("[{}]", errors.join(", ")),
        });
    }
    if victims.is_empty() {
        return without_node(&unavailable(nodes.len(), &reasons));
    }
    match ask_extenders(core, pod, &pods, victims).await {
        Err(error) => without_node(&error),
        Ok(victims) => match cheapest(victims) {
            None => without_node("no candidate node for preemption"),
            Some((node, victims)) => Preemption { message: String::new(), node, victims },
        },
    }
}

fn without_node(message: &str) -> Preemption {
    // The first part is of the plugin DynamicResources, which comes before.
    let message = format!(" no new claims to deallocate, preemption: {message}");
    Preemption { message, ..Preemption::default() }
}

fn no_victims(node: &str) -> String {
    format!("expected at least one victim pod on node {node:?}")
}

/// Removes all pods of lower priority, then puts back one after another, those of the highest priority first, as long
/// as the pod still fits.
fn dry_run(pod: &Value, asked: &Requests, node: &NodeResources, pods: &[Arc<Value>]) -> DryRun {
    let mut lower: Vec<&Arc<Value>> = pods
        .iter()
        .filter(|other| {
            other["spec"]["nodeName"] == node.name.as_str()
                && !has_ended(other)
                && priority(other) < priority(pod)
        })
        .collect();
    if lower.is_empty() {
        let reason = "No preemption victims found for incoming pod";
        return DryRun::NotHelpful(vec![reason.to_owned()]);
    }
    lower.sort_by_key(|pod| Reverse(priority(pod)));
    let mut node = node.clone();
    lower.iter().for_each(|pod| node.remove(&requests(pod)));
    if let Err(reasons) = node.check(asked) {
        return DryRun::NotHelpful(reasons);
    }
    let mut victims = Vec::new();
    for other in lower {
        node.add(&requests(other));
        if node.check(asked).is_err() {
            node.remove(&requests(other));
            victims.push(other.clone());
        }
    }
    if victims.is_empty() { DryRun::NoVictims } else { DryRun::Victims(victims) }
}

/// What the extenders with a preempt verb leave of the victims, one after another.
async fn ask_extenders(
    core: &Core,
    pod: &Value,
    pods: &[Arc<Value>],
    mut victims: Victims,
) -> Result<Victims, String> {
    let extenders = core.config.extenders.iter();
    for extender in extenders.filter(|e| !e.preempt_verb.is_empty() && e.wants(pod)) {
        let mut left = match extender.preempt(&core.http, pod, &victims, pods).await {
            Ok(left) => left,
            Err(_) if extender.ignorable => continue,
            Err(error) => return Err(error.to_string()),
        };
        if extender.ignorable {
            left.retain(|_, pods| !pods.is_empty());
        }
        if let Some((node, _)) = left.iter().find(|(_, pods)| pods.is_empty()) {
            return Err(no_victims(node));
        }
        victims = left;
        if victims.is_empty() {
            break;
        }
    }
    Ok(victims)
}

/// The node whose victims cost least: by the highest priority among them, the sum of their priorities, their number,
/// and the node's name.
fn cheapest(victims: Victims) -> Option<(String, Vec<Arc<Value>>)> {
    victims.into_iter().min_by_key(|(_, pods)| cost(pods))
}

fn cost(pods: &[Arc<Value>]) -> (Option<i64>, i64, usize) {
    let priorities: Vec<i64> = pods.iter().map(|pod| priority(pod)).collect();
    // As in kube-scheduler, each pod adds to the sum, whatever its priority.
    let sum: i64 = priorities.iter().map(|priority| priority + i64::from(i32::MAX) + 1).sum();
    (priorities.into_iter().max(), sum, pods.len())
}

impl Preemption {
    /// Deletes the victims.
    pub(super) fn evict(&self, store: &Store) {
        for victim in &self.victims {
            // A pod of the same name with another UID is no victim. The closure cannot fail.
            let _ = store.change(PODS, namespace(victim), name(victim), |now| {
                Ok(now.filter(|now| uid(now) != uid(victim)).cloned())
            });
        }
    }
}
