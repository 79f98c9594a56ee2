//! Compares claims, the kubelet's checkpoint, this program's own records and the processes on the GPUs. Pure.

mod processes;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cluster::PodFacts;
use placement::units::{MiB, PodUid};

use super::{Finding, Findings, Kind};
use crate::gpus::ids::Ids;
use crate::gpus::{Gpu, Gpus, units_of};
use crate::pods::{NodePod, PodRef};
use crate::processes::Snapshot;
use crate::records::ClaimedGpus;
use crate::records::checkpoint::{Checkpoint, HeldIds, OtherPluginGpu, pod_exists};
use crate::report::is_on_other_gpu;

/// The inputs of one audit.
pub(crate) struct Facts<'f> {
    /// The node's GPUs.
    pub gpus: &'f Gpus,
    /// GPU memory of one unit.
    pub unit: MiB,
    /// The node's pods by UID.
    pub pods: &'f HashMap<PodUid, NodePod>,
    /// The kubelet's checkpoint; `None` if it cannot be read.
    pub checkpoint: Option<&'f Checkpoint>,
    /// Returns the ids that a pod holds by this program's records.
    pub held_by: &'f dyn Fn(&PodFacts) -> Ids,
    /// What pods hold by resource claims.
    pub claimed: &'f BTreeMap<PodUid, ClaimedGpus>,
    /// The processes on the GPUs.
    pub processes: &'f Snapshot,
}

/// Compares all inputs.
pub(crate) fn compare(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::default();
    if let Some(checkpoint) = facts.checkpoint {
        facts.compare_records(checkpoint, &mut findings);
        facts.find_gpus_of_two_plugins(checkpoint, &mut findings);
    }
    facts.compare_processes(&mut findings);
    findings
}

impl Facts<'_> {
    /// Compares claims with the kubelet's records, and the kubelet's records with ours.
    fn compare_records(&self, checkpoint: &Checkpoint, findings: &mut Findings) {
        findings.checks([
            Kind::ClaimWithoutRecord,
            Kind::RecordWithoutClaim,
            Kind::ClaimElsewhere,
            Kind::RecordUnknown,
        ]);
        // A pod without a status may still be in admission, and the kubelet forgets a pod when it ends.
        for NodePod { facts, .. } in self.pods.values() {
            if !facts.admitted || facts.finished || facts.deleting {
                continue;
            }
            let own = |held: &&HeldIds| held.pod == facts.uid;
            let ids: Ids =
                checkpoint.held.iter().filter(own).flat_map(|held| &held.ids).cloned().collect();
            let has_claim = facts.claim().is_some();
            if has_claim && ids.is_empty() {
                let note = "the pod runs with a claim of GPU memory, and the kubelet has no record of it: none of its \
                            containers starts again. Its units stay its own until it is deleted and its processes \
                            have ended; delete it and create it again";
                findings.add(Finding::of_pod(Kind::ClaimWithoutRecord, facts), note.to_owned());
            } else if !has_claim && !ids.is_empty() {
                let note = "the pod holds GPU memory by the kubelet's record, and has no claim";
                findings.add(Finding::of_pod(Kind::RecordWithoutClaim, facts), note.to_owned());
            } else if is_on_other_gpu(facts, &units_of(&ids, self.gpus)) {
                let note = "the pod is on another GPU by the kubelet's record than by its claim";
                findings.add(Finding::of_pod(Kind::ClaimElsewhere, facts), note.to_owned());
            }
            if !ids.is_subset(&(self.held_by)(facts)) {
                let note =
                    "the kubelet records units of the pod that the device plugin did not know of";
                findings.add(Finding::of_pod(Kind::RecordUnknown, facts), note.to_owned());
            }
        }
    }

    /// Finds GPUs that another device plugin offers, and GPUs that pods hold through its resource, or by resource
    /// claims, and through ours.
    fn find_gpus_of_two_plugins(&self, checkpoint: &Checkpoint, findings: &mut Findings) {
        findings.checks([Kind::GpuHeldTwice, Kind::GpuOfferedTwice]);
        for Gpu { uuid, .. } in self.gpus.iter() {
            let offers = &checkpoint.other_plugin_offers;
            if let Some((resource, _)) = offers.iter().find(|(_, gpus)| gpus.contains(uuid)) {
                let note = format!(
                    "the resource {resource} offers GPU {uuid} as well: let one device plugin alone serve a node's \
                     GPUs"
                );
                findings.add(Finding::of_gpu(Kind::GpuOfferedTwice, uuid), note);
            }
            let is_known =
                |held: &&OtherPluginGpu| self.knows_claims_of(&held.pod, &held.container);
            let by_claims = self.claimed_gpus().filter(is_known);
            for whole in checkpoint.gpus_held_elsewhere(|uid| self.facts(uid)).chain(by_claims) {
                if whole.gpu != *uuid {
                    continue;
                }
                let shares = checkpoint.held.iter().find(|held| {
                    held.pod != whole.pod
                        && pod_exists(&held.pod, self.facts(&held.pod).as_deref())
                        && units_of(&held.ids, self.gpus).contains_key(uuid)
                });
                if let Some(share) = shares {
                    let note = format!(
                        "pod {} holds GPU {uuid} through {}, and pod {} holds units of it: delete one of them",
                        self.name(&whole.pod),
                        whole.resource,
                        self.name(&share.pod)
                    );
                    findings.add(Finding::of_gpu(Kind::GpuHeldTwice, uuid), note);
                }
            }
        }
    }

    fn claimed_gpus(&self) -> impl Iterator<Item = &OtherPluginGpu> {
        self.claimed.values().flat_map(|claimed| claimed.gpus.iter().chain(&claimed.own))
    }

    /// Whether it is known which GPUs the container holds by resource claims.
    fn knows_claims_of(&self, pod: &PodUid, container: &str) -> bool {
        self.claimed.get(pod).is_some_and(|claimed| claimed.known.contains(container))
    }

    fn facts(&self, uid: &PodUid) -> Option<Arc<PodFacts>> {
        self.pods.get(uid).map(|pod| pod.facts.clone())
    }

    fn name(&self, uid: &PodUid) -> String {
        match self.pods.get(uid) {
            Some(pod) => PodRef::of(&pod.facts).to_string(),
            None => format!("with UID {uid}"),
        }
    }
}

#[cfg(test)]
mod tests;
