//! Compares claims, the kubelet's checkpoint, this program's own records and the processes on the cards. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cluster::PodFacts;
use placement::load::PodKind;
use placement::units::{CardId, MiB, PodUid, Units};

use super::{AffectedPod, Finding, Findings, Kind};
use crate::cards::ids::Ids;
use crate::cards::{Card, Cards, units_of};
use crate::isolation::limit::Limit;
use crate::pods::{NodePod, PodRef, container_requests};
use crate::processes::host::Membership;
use crate::processes::rows::{ProcessOwner, Usage, owner, rows};
use crate::processes::{CardProcess, Snapshot};
use crate::records::ClaimedCards;
use crate::records::checkpoint::{Checkpoint, HeldIds, OtherPluginCard, is_static, pod_exists};
use crate::report::is_on_other_card;

/// The inputs of one audit.
pub(crate) struct Facts<'f> {
    /// The node's cards.
    pub cards: &'f Cards,
    /// Card memory of one unit.
    pub unit: MiB,
    /// The node's pods by UID.
    pub pods: &'f HashMap<PodUid, NodePod>,
    /// The kubelet's checkpoint; `None` if it cannot be read.
    pub checkpoint: Option<&'f Checkpoint>,
    /// Returns the ids that a pod holds by this program's records.
    pub held_by: &'f dyn Fn(&PodFacts) -> Ids,
    /// What pods hold by resource claims.
    pub claimed: &'f BTreeMap<PodUid, ClaimedCards>,
    /// The processes on the cards.
    pub processes: &'f Snapshot,
}

/// The cards that a container holds, by the kubelet's checkpoint.
#[derive(Default)]
struct HeldCards {
    /// Units of our resource on each card.
    units: BTreeMap<CardId, Units>,
    /// Cards that it holds through another plugin's resource, or by resource claims.
    other_plugin: BTreeSet<CardId>,
}

/// What the processes of a container use of one card.
struct ContainerUsage<'u> {
    pod: &'u NodePod,
    container: &'u str,
    card: CardId,
    used: Usage,
}

type HeldByContainer<'c> = HashMap<(&'c PodUid, &'c str), HeldCards>;

/// Compares all inputs.
pub(crate) fn compare(facts: &Facts<'_>) -> Findings {
    let mut findings = Findings::default();
    if let Some(checkpoint) = facts.checkpoint {
        facts.compare_records(checkpoint, &mut findings);
        facts.find_cards_of_two_plugins(checkpoint, &mut findings);
    }
    if facts.processes.iter().any(|card| card.processes.is_ok()) {
        facts.find_processes_outside_pods(&mut findings);
        if let Some(checkpoint) = facts.checkpoint {
            facts.compare_processes(&facts.held_by_container(checkpoint), &mut findings);
            facts.find_processes_outside_mps(&checkpoint.container_limits, &mut findings);
        }
    }
    findings
}

impl Findings {
    fn checks<const N: usize>(&mut self, kinds: [Kind; N]) {
        self.checked.extend(kinds);
    }

    fn add(&mut self, finding: Finding, note: String) {
        self.found.insert(finding, note);
    }
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
                findings.add(of_pod(Kind::ClaimWithoutRecord, facts), note.to_owned());
            } else if !has_claim && !ids.is_empty() {
                let note = "the pod holds GPU memory by the kubelet's record, and has no claim";
                findings.add(of_pod(Kind::RecordWithoutClaim, facts), note.to_owned());
            } else if is_on_other_card(facts, &units_of(&ids, self.cards)) {
                let note = "the pod is on another card by the kubelet's record than by its claim";
                findings.add(of_pod(Kind::ClaimElsewhere, facts), note.to_owned());
            }
            if !ids.is_subset(&(self.held_by)(facts)) {
                let note =
                    "the kubelet records units of the pod that the device plugin did not know of";
                findings.add(of_pod(Kind::RecordUnknown, facts), note.to_owned());
            }
        }
    }

    /// Finds cards that another device plugin offers, and cards that pods hold through its resource, or by resource
    /// claims, and through ours.
    fn find_cards_of_two_plugins(&self, checkpoint: &Checkpoint, findings: &mut Findings) {
        findings.checks([Kind::CardHeldTwice, Kind::CardOfferedTwice]);
        for Card { uuid, .. } in self.cards.iter() {
            let offers = &checkpoint.other_plugin_offers;
            if let Some((resource, _)) = offers.iter().find(|(_, cards)| cards.contains(uuid)) {
                let note = format!(
                    "the resource {resource} offers card {uuid} as well: let one device plugin alone serve a node's \
                     cards"
                );
                findings.add(of_card(Kind::CardOfferedTwice, uuid), note);
            }
            let is_known =
                |held: &&OtherPluginCard| self.knows_claims_of(&held.pod, &held.container);
            let by_claims = self.claimed_cards().filter(is_known);
            for whole in checkpoint.cards_held_elsewhere(|uid| self.facts(uid)).chain(by_claims) {
                if whole.card != *uuid {
                    continue;
                }
                let shares = checkpoint.held.iter().find(|held| {
                    held.pod != whole.pod
                        && pod_exists(&held.pod, self.facts(&held.pod).as_deref())
                        && units_of(&held.ids, self.cards).contains_key(uuid)
                });
                if let Some(share) = shares {
                    let note = format!(
                        "pod {} holds card {uuid} through {}, and pod {} holds units of it: delete one of them",
                        self.name(&whole.pod),
                        whole.resource,
                        self.name(&share.pod)
                    );
                    findings.add(of_card(Kind::CardHeldTwice, uuid), note);
                }
            }
        }
    }

    fn claimed_cards(&self) -> impl Iterator<Item = &OtherPluginCard> {
        self.claimed.values().flat_map(|claimed| &claimed.cards)
    }

    /// Whether it is known which cards the container holds by resource claims.
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

    /// Finds processes outside of pods, and processes of deleted pods.
    fn find_processes_outside_pods(&self, findings: &mut Findings) {
        findings.checks([Kind::UnmanagedProcess, Kind::ProcessOfGonePod]);
        for card in self.processes {
            for process in card.processes.as_ref().into_iter().flatten() {
                let (kind, pod, note) = match &process.of {
                    Membership::NoPod => {
                        let note = "processes outside of all pods use the card";
                        (Kind::UnmanagedProcess, None, note)
                    }
                    Membership::Pod(group) if self.is_gone(&group.pod) => {
                        let pod = AffectedPod { uid: group.pod.clone(), name: None };
                        let note = "processes of a pod that no longer exists use the card";
                        (Kind::ProcessOfGonePod, Some(pod), note)
                    }
                    _ => continue,
                };
                let finding = Finding { kind, pod, container: None, card: Some(card.id()) };
                findings.add(finding, format!("{note} {}", card.card.uuid));
            }
        }
    }

    /// Whether no pod has this UID.
    fn is_gone(&self, uid: &PodUid) -> bool {
        !is_static(uid) && !self.pods.contains_key(uid)
    }

    fn held_by_container<'c>(&'c self, checkpoint: &'c Checkpoint) -> HeldByContainer<'c> {
        let mut held_cards = HeldByContainer::new();
        for held in &checkpoint.held {
            let to: &mut HeldCards = held_cards.entry((&held.pod, &held.container)).or_default();
            to.units = units_of(&held.ids, self.cards);
        }
        for whole in checkpoint.other_plugin_cards.iter().chain(self.claimed_cards()) {
            let to = held_cards.entry((&whole.pod, &whole.container)).or_default();
            to.other_plugin.insert(whole.card.clone());
        }
        held_cards
    }

    /// Finds processes on cards that their container does not hold, and memory beyond its share.
    fn compare_processes(&self, held_cards: &HeldByContainer<'_>, findings: &mut Findings) {
        findings.checks([Kind::ProcessElsewhere, Kind::MemoryOverShare]);
        let none = HeldCards::default();
        for (card, rows) in rows(self.processes, Some(self.pods)) {
            for (owner, used) in rows {
                let ProcessOwner::Container { uid, container, .. } = owner else { continue };
                let Some(pod) = self.pods.get(&uid) else { continue };
                // The kubelet has not reported the container yet.
                if container.is_empty() {
                    continue;
                }
                let held = held_cards.get(&(&uid, &container)).unwrap_or(&none);
                let usage = ContainerUsage { pod, container: &container, card: card.id(), used };
                self.compare_container(&usage, held, findings);
            }
        }
    }

    /// Finds processes with memory of a card that are no clients of MPS, in containers that MPS limits: begun while no
    /// control daemon answered, or without its pipes.
    fn find_processes_outside_mps(
        &self,
        limits: &BTreeMap<(PodUid, String), Limit>,
        findings: &mut Findings,
    ) {
        // Else the driver does not tell which are clients.
        let mut is_told = true;
        for card in self.processes {
            for CardProcess { process, of } in card.processes.iter().flatten() {
                is_told &= process.mps.is_some();
                let ProcessOwner::Container { container, uid, .. } = owner(of, Some(self.pods))
                else {
                    continue;
                };
                let Some(pod) = self.pods.get(&uid) else { continue };
                let limit = limits.get(&(uid, container.clone()));
                let is_limited = limit.is_some_and(|limit| limit.by_mps().is_some());
                let has_memory = process.used_bytes.is_some_and(|bytes| bytes > 0);
                if is_limited && has_memory && process.mps == Some(false) {
                    let note = format!(
                        "a process of container {container} is no client of MPS, which is to limit it on card {}: it \
                         takes what memory it wants for as long as it runs. It began while no control daemon answered, \
                         or without CUDA_MPS_PIPE_DIRECTORY; delete the pod",
                        card.card.uuid
                    );
                    let finding =
                        of_container(Kind::ProcessOutsideMps, &pod.facts, &container, &card.id());
                    findings.add(finding, note);
                }
            }
        }
        if is_told {
            findings.checks([Kind::ProcessOutsideMps]);
        }
    }

    /// Compares the processes of one container on one card with the cards that it holds.
    fn compare_container(
        &self,
        usage: &ContainerUsage<'_>,
        held_cards: &HeldCards,
        findings: &mut Findings,
    ) {
        let ContainerUsage { pod, container, card: id, used } = usage;
        let facts = &pod.facts;
        let has_none = held_cards.units.is_empty() && held_cards.other_plugin.is_empty();
        // Agents of the node, such as MPS, use cards without a request. Some devices of resource claims are not known,
        // as those of init containers.
        let has_unknown = pod.has_resource_claims && !self.knows_claims_of(&facts.uid, container);
        let may_have_none = facts.kind == PodKind::Daemon || has_unknown;
        if !held_cards.units.contains_key(id) && !held_cards.other_plugin.contains(id) {
            if !(has_none && may_have_none) {
                let note =
                    format!("container {container} runs on card {id}, which it was not given");
                findings.add(of_container(Kind::ProcessElsewhere, facts, container, id), note);
            }
            return;
        }
        let Some(share) = self.share(facts, container, held_cards, id) else { return };
        if let Some(bytes) = used.bytes.filter(|bytes| *bytes > share.0.saturating_mul(1 << 20)) {
            let (mib, processes) = (bytes >> 20, used.processes);
            let note = format!(
                "container {container} uses {mib} MiB of card {id}, {} are its own; it has {processes} processes there, and \
                 the CUDA context of each, mostly some 500 MiB, counts",
                share.0
            );
            findings.add(of_container(Kind::MemoryOverShare, facts, container, id), note);
        }
    }

    /// The memory of a card that a container may use; `None` if it holds the whole card.
    fn share(
        &self,
        facts: &PodFacts,
        container: &str,
        held_cards: &HeldCards,
        card: &CardId,
    ) -> Option<MiB> {
        if held_cards.other_plugin.contains(card) {
            return None;
        }
        let units = held_cards.units.get(card)?;
        let card_use =
            container_requests(facts).find(|ask| ask.name == container).map(|ask| ask.card_use);
        if card_use.is_some_and(|card_use| card_use.exclusive) {
            return None;
        }
        let cards = u32::try_from(held_cards.units.len()).unwrap_or(u32::MAX);
        let burst =
            card_use.and_then(|card_use| card_use.limit).map(|limit| limit.0.div_ceil(cards));
        let units = burst.unwrap_or_default().max(units.0);
        Some(MiB(self.unit.0.saturating_mul(units.into())))
    }
}

fn of_card(kind: Kind, card: &CardId) -> Finding {
    Finding { kind, pod: None, container: None, card: Some(card.clone()) }
}

fn of_container(kind: Kind, facts: &PodFacts, container: &str, card: &CardId) -> Finding {
    Finding {
        container: Some(container.to_owned()),
        card: Some(card.clone()),
        ..of_pod(kind, facts)
    }
}

fn of_pod(kind: Kind, facts: &PodFacts) -> Finding {
    let pod = AffectedPod { uid: facts.uid.clone(), name: Some(PodRef::of(facts)) };
    Finding { kind, pod: Some(pod), container: None, card: None }
}

#[cfg(test)]
mod tests {
    use placement::gpu::CardUse;

    use super::*;
    use crate::fixtures::{A, B, cards, ids, simple};
    use crate::isolation::limit::MpsLimit;
    use crate::pods::ContainerId;
    use crate::processes::group::PodGroup;
    use crate::processes::{CardProcesses, Unknown};
    use crate::records::checkpoint::HeldIds;

    const GIB: u64 = 1 << 30;
    /// A UID of the form that pods have, unlike those of the fixtures.
    const GONE: &str = "8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55";

    /// A node with two cards of four units, each of 1 GiB, and one pod `p` with a container `main`.
    struct AuditBench {
        pod: NodePod,
        checkpoint: Option<Checkpoint>,
        own: Ids,
        claimed: BTreeMap<PodUid, ClaimedCards>,
        processes: Snapshot,
    }

    fn id() -> ContainerId {
        ContainerId::of_status(&format!("containerd://{}", "a".repeat(64))).unwrap()
    }

    fn running(facts: &PodFacts) -> NodePod {
        let containers = Arc::new([(id(), "main".to_owned())].into());
        NodePod { containers, ..PodFacts { admitted: true, ..facts.clone() }.into() }
    }

    fn held(ids: Ids) -> Checkpoint {
        let held = HeldIds { pod: "p".into(), container: "main".to_owned(), ids, unit: None };
        Checkpoint { held: vec![held], ..Checkpoint::default() }
    }

    fn whole(pod: &str, card: &str) -> OtherPluginCard {
        OtherPluginCard {
            pod: pod.into(),
            container: "main".to_owned(),
            resource: "nvidia.com/gpu".to_owned(),
            card: card.into(),
        }
    }

    fn on(uuid: &str, processes: Result<Vec<CardProcess>, Unknown>) -> CardProcesses {
        let card = nvml::Card { uuid: uuid.to_owned(), ..nvml::Card::default() };
        CardProcesses { card, processes }
    }

    fn process(of: Membership, bytes: Option<u64>) -> CardProcess {
        let mps = Some(true);
        let process = nvml::Process { pid: 1, used_bytes: bytes, sm_percent: None, mps };
        CardProcess { process, of }
    }

    fn in_pod(pod: &str) -> Membership {
        Membership::Pod(PodGroup { pod: pod.into(), container: Some(id()) })
    }

    impl AuditBench {
        /// The pod holds two units of card A, as it claims.
        fn new() -> Self {
            let own = ids(["aaaaaaaa-0", "aaaaaaaa-1"]);
            Self {
                pod: running(&simple("p", A, 2)),
                checkpoint: Some(held(own.clone())),
                own,
                claimed: BTreeMap::new(),
                processes: vec![
                    on(A, Ok(vec![process(in_pod("p"), Some(2 * GIB))])),
                    on(B, Ok(vec![])),
                ],
            }
        }

        fn findings(&self) -> Findings {
            compare(&Facts {
                cards: &cards(&[(A, 4), (B, 4)]),
                unit: MiB(1024),
                pods: &[(self.pod.facts.uid.clone(), self.pod.clone())].into(),
                checkpoint: self.checkpoint.as_ref(),
                held_by: &|_| self.own.clone(),
                claimed: &self.claimed,
                processes: &self.processes,
            })
        }

        fn kinds(&self) -> Vec<Kind> {
            self.findings().found.into_keys().map(|finding| finding.kind).collect()
        }

        /// The findings while this pod holds this card through another plugin's resource.
        fn kinds_with_whole(&mut self, pod: &str, card: &str) -> Vec<Kind> {
            self.checkpoint.as_mut().unwrap().other_plugin_cards = vec![whole(pod, card)];
            self.kinds()
        }

        /// The findings while processes of the pod use 1 GiB of card A, and others these bytes.
        fn kinds_with_use(&mut self, bytes: Option<u64>) -> Vec<Kind> {
            let processes = vec![process(in_pod("p"), Some(GIB)), process(in_pod("p"), bytes)];
            self.processes = vec![on(A, Ok(processes))];
            self.kinds()
        }

        /// The findings where the pod uses 3 GiB of a card of which it holds two units in this way.
        fn kinds_with_card_use(card_use: CardUse) -> Vec<Kind> {
            let mut bench = Self::new();
            bench.processes = vec![on(A, Ok(vec![process(in_pod("p"), Some(3 * GIB))]))];
            bench.edit(|facts| *facts = crate::fixtures::with_use("p", A, 2, card_use));
            bench.edit(|facts| facts.admitted = true);
            bench.kinds()
        }

        fn edit(&mut self, edit: impl FnOnce(&mut PodFacts)) {
            edit(Arc::make_mut(&mut self.pod.facts));
        }
    }

    #[test]
    fn what_agrees_is_no_finding_and_everything_was_compared() {
        let findings = AuditBench::new().findings();
        assert_eq!(findings.found, BTreeMap::new());
        let mut compared = BTreeSet::from(Kind::ALL);
        // The driver's limits are read in a task of its own.
        compared.remove(&Kind::LimitNotHeld);
        assert_eq!(findings.checked, compared);
    }

    #[test]
    fn a_claim_and_a_record_each_without_the_other_are_found() {
        let mut bench = AuditBench::new();
        bench.processes = vec![];
        bench.checkpoint = Some(Checkpoint::default());
        assert_eq!(bench.kinds(), [Kind::ClaimWithoutRecord]);
        let ends: [fn(&mut PodFacts); 3] = [
            |facts| facts.deleting = true,
            |facts| facts.finished = true,
            |facts| facts.admitted = false,
        ];
        for end in ends {
            bench.pod = running(&simple("p", A, 2));
            bench.edit(end);
            assert_eq!(bench.kinds(), [], "the kubelet does not hold it yet, or no longer");
        }
        let mut bench = AuditBench::new();
        bench.edit(|facts| {
            if let Ok(Some(gpu)) = &mut facts.gpu {
                gpu.claim = Ok(None);
            }
        });
        assert_eq!(bench.kinds(), [Kind::RecordWithoutClaim]);
    }

    #[test]
    fn a_pod_on_another_card_and_a_record_that_is_not_known_are_found() {
        let mut bench = AuditBench::new();
        let elsewhere = ids(["bbbbbbbb-0", "bbbbbbbb-1"]);
        bench.checkpoint = Some(held(elsewhere.clone()));
        bench.processes = vec![];
        assert_eq!(bench.kinds(), [Kind::ClaimElsewhere, Kind::RecordUnknown]);
        bench.own = elsewhere;
        assert_eq!(bench.kinds(), [Kind::ClaimElsewhere]);
    }

    #[test]
    fn a_card_that_pods_hold_through_two_resources_is_found() {
        let mut bench = AuditBench::new();
        let static_pod = "04dbdd5b3b5b2a3a8c3fd1f3ad5f4a4e";
        assert_eq!(bench.kinds_with_whole(static_pod, A), [Kind::CardHeldTwice]);
        let (_, note) = bench.findings().found.pop_first().unwrap();
        assert_eq!(
            note,
            format!(
                "pod with UID {static_pod} holds card {A} through nvidia.com/gpu, and pod default/p holds units of \
                 it: delete one of them"
            )
        );
        assert_eq!(bench.kinds_with_whole(static_pod, B), [], "a card without units in use");
        assert_eq!(bench.kinds_with_whole("p", A), [], "the pod itself");
        assert_eq!(bench.kinds_with_whole(GONE, A), [], "the kubelet has not dropped it yet");
    }

    #[test]
    fn a_card_that_another_resource_offers_is_found() {
        let mut bench = AuditBench::new();
        let offered = [CardId::from(B), CardId::from("GPU-other")];
        bench.checkpoint.as_mut().unwrap().other_plugin_offers =
            [("nvidia.com/gpu".to_owned(), offered.into())].into();
        let findings = bench.findings().found;
        let (finding, note) = findings.first_key_value().unwrap();
        assert_eq!(finding.to_string(), format!("card_offered_twice, card {B}"));
        assert!(note.starts_with("the resource nvidia.com/gpu offers card"), "{note}");
        assert_eq!(findings.len(), 1);
    }

    #[test]
    fn a_process_on_a_card_that_its_container_was_not_given_is_found() {
        let mut bench = AuditBench::new();
        bench.processes[1] = on(B, Ok(vec![process(in_pod("p"), None)]));
        let findings = bench.findings().found;
        let (finding, note) = findings.first_key_value().unwrap();
        assert_eq!((findings.len(), finding.kind), (1, Kind::ProcessElsewhere));
        assert_eq!(
            finding.to_string(),
            format!("process_elsewhere, pod default/p, container main, card {B}")
        );
        assert_eq!(note, &format!("container main runs on card {B}, which it was not given"));
        bench.checkpoint.as_mut().unwrap().other_plugin_cards = vec![whole("p", B)];
        assert_eq!(bench.kinds(), [], "it has the card by another resource");
    }

    #[test]
    fn a_container_without_any_card_is_found_but_for_agents_of_the_node_and_resource_claims() {
        let mut bench = AuditBench::new();
        bench.checkpoint = Some(Checkpoint::default());
        bench.edit(|facts| facts.gpu = Ok(None));
        bench.own = Ids::default();
        assert_eq!(bench.kinds(), [Kind::ProcessElsewhere]);
        bench.pod.has_resource_claims = true;
        assert_eq!(bench.kinds(), []);
        bench.pod.has_resource_claims = false;
        bench.edit(|facts| facts.kind = PodKind::Daemon);
        assert_eq!(bench.kinds(), []);
    }

    #[test]
    fn a_container_with_resource_claims_is_found_on_a_card_that_is_known_to_be_none_of_them() {
        let mut bench = AuditBench::new();
        bench.checkpoint = Some(Checkpoint::default());
        bench.edit(|facts| facts.gpu = Ok(None));
        bench.own = Ids::default();
        bench.pod.has_resource_claims = true;
        for (card, known, expected) in
            [(A, "main", &[][..]), (B, "main", &[Kind::ProcessElsewhere]), (A, "other", &[])]
        {
            let claimed =
                ClaimedCards { cards: vec![whole("p", card)], known: [known.to_owned()].into() };
            bench.claimed = [("p".into(), claimed)].into();
            assert_eq!(bench.kinds(), expected, "{card} {known}");
        }
        bench.claimed = [("p".into(), ClaimedCards::default())].into();
        assert_eq!(bench.kinds(), [], "an init container's");
    }

    #[test]
    fn a_card_that_is_held_by_a_resource_claim_and_by_units_is_found_where_it_is_known() {
        let mut bench = AuditBench::new();
        for (known, expected) in [("main", &[Kind::CardHeldTwice][..]), ("other", &[])] {
            let claimed =
                ClaimedCards { cards: vec![whole("q", A)], known: [known.to_owned()].into() };
            bench.claimed = [("q".into(), claimed)].into();
            assert_eq!(bench.kinds(), expected, "{known}");
        }
    }

    #[test]
    fn memory_beyond_the_share_is_found_and_unknown_memory_is_not() {
        let mut bench = AuditBench::new();
        assert_eq!(bench.kinds_with_use(Some(GIB)), [], "all of it");
        assert_eq!(bench.kinds_with_use(Some(GIB + 1)), [Kind::MemoryOverShare]);
        assert_eq!(bench.kinds_with_use(None), []);
    }

    #[test]
    fn a_process_that_left_mps_is_found_in_containers_that_mps_limits() {
        for (mps, bytes, by_mps, is_found) in [
            (Some(false), Some(1), "main", true),
            (Some(true), Some(1), "main", false),
            (Some(false), Some(1), "other", false),
            (Some(false), Some(0), "main", false),
            (Some(false), None, "main", false),
            (None, Some(1), "main", false),
        ] {
            let mut bench = AuditBench::new();
            let limit = Limit::Mps(MpsLimit { cards: 1, limit: MiB(2), threads: 100 });
            let limits = [(("p".into(), by_mps.to_owned()), limit)].into();
            bench.checkpoint.as_mut().unwrap().container_limits = limits;
            let mut process = process(in_pod("p"), bytes);
            process.process.mps = mps;
            bench.processes = vec![on(A, Ok(vec![process]))];
            let Findings { found, checked } = bench.findings();
            let kinds: Vec<Kind> = found.keys().map(|finding| finding.kind).collect();
            let expected = if is_found { vec![Kind::ProcessOutsideMps] } else { vec![] };
            assert_eq!(kinds, expected, "{mps:?} {bytes:?}");
            assert_eq!(checked.contains(&Kind::ProcessOutsideMps), mps.is_some());
        }
    }

    #[test]
    fn a_container_may_use_what_it_may_grow_to_and_all_of_a_card_of_its_own() {
        let plain = CardUse::default();
        for (card_use, expected) in [
            (plain, &[Kind::MemoryOverShare][..]),
            (CardUse { limit: Some(Units(2)), ..plain }, &[Kind::MemoryOverShare]),
            (CardUse { limit: Some(Units(3)), ..plain }, &[]),
            (CardUse { exclusive: true, ..plain }, &[]),
        ] {
            assert_eq!(AuditBench::kinds_with_card_use(card_use), expected, "{card_use:?}");
        }
    }

    #[test]
    fn processes_of_no_pod_and_of_gone_pods_are_found_and_those_of_static_pods_are_not() {
        let mut bench = AuditBench::new();
        let gone = process(in_pod(GONE), None);
        let of_static = process(in_pod("04dbdd5b3b5b2a3a8c3fd1f3ad5f4a4e"), None);
        let unknown = process(Membership::Unknown, None);
        let outside = process(Membership::NoPod, None);
        bench.processes = vec![
            on(A, Ok(vec![gone, of_static, unknown, outside.clone()])),
            on(B, Ok(vec![outside.clone(), outside])),
        ];
        let expected = [Kind::UnmanagedProcess, Kind::UnmanagedProcess, Kind::ProcessOfGonePod];
        assert_eq!(bench.kinds(), expected, "one a card");
    }

    #[test]
    fn what_cannot_be_read_is_not_compared() {
        let mut bench = AuditBench::new();
        bench.checkpoint = None;
        let checked = bench.findings().checked;
        assert_eq!(checked, [Kind::UnmanagedProcess, Kind::ProcessOfGonePod].into());
        bench.processes = vec![on(A, Err(Unknown::PidNamespace))];
        assert_eq!(bench.findings(), Findings::default());
        assert_eq!(bench.kinds(), []);
    }
}
