//! The pods that were granted ids, for as long as they may have processes.
//!
//! The kubelet forgets a pod as soon as its object is deleted. After a deletion by force it counts the ids as free while the
//! pod's processes still run, for up to the whole grace period. Here such a pod lingers, and its ids stay in use.

use std::collections::{BTreeMap, HashMap};

use cluster::PodFacts;
use placement::units::{CardId, PodUid, Units};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::cards::ids::{DeviceId, Ids};
use crate::cards::{Cards, units_of};
use crate::pods::PodRef;

/// A pod that was granted ids.
#[derive(Debug, Clone)]
pub struct Holder {
    /// Its namespace and name.
    pub pod: PodRef,
    /// All ids that were granted to it.
    pub ids: Ids,
    /// The most units that it holds at one time.
    peak: Units,
    /// Whether no other pod may be on its cards.
    pub exclusive: bool,
    /// Whether this plugin chose ids for this pod. `false` if only the kubelet's records show that it holds ids.
    pub chosen: bool,
    /// When this process recorded the last grant.
    pub granted_at: Instant,
    /// Whether the watch of pods has shown it. The watch may be late.
    pub seen: bool,
    /// Whether the kubelet or the API server no longer has the pod, and it has processes or may have some.
    pub lingers: bool,
}

impl Holder {
    fn of(facts: &PodFacts) -> Self {
        Self {
            pod: PodRef::of(facts),
            ids: Ids::new(),
            peak: facts.gpu_pod().map(|gpu| gpu.request.peak()).unwrap_or_default(),
            exclusive: false,
            chosen: false,
            granted_at: Instant::now(),
            seen: false,
            lingers: false,
        }
    }

    /// The units that are counted for it on each card: all units of the card if it is exclusive.
    pub fn charge(&self, cards: &Cards) -> BTreeMap<CardId, Units> {
        let mut charge = at_peak(units_of(&self.ids, cards), self.peak);
        for (card, units) in charge.iter_mut().filter(|_| self.exclusive) {
            *units = cards.get(card).map_or(*units, |card| card.units.max(*units));
        }
        charge
    }
}

/// The units that are counted for a pod on each card, from the units of its listed ids. The kubelet reserves the ids of init containers
/// for the pod's whole life but does not list them, so on a single card the pod's peak is counted if it is larger. No pod on
/// several cards has an init container that requests units.
pub fn at_peak(mut units: BTreeMap<CardId, Units>, peak: Units) -> BTreeMap<CardId, Units> {
    if let (1, Some(held)) = (units.len(), units.values_mut().next()) {
        *held = peak.max(*held);
    }
    units
}

/// The pods that were granted ids.
#[derive(Debug, Default)]
pub struct Holders(HashMap<PodUid, Holder>);

impl Holders {
    /// Records a grant: this plugin chose the ids for this pod.
    pub fn add_grant(&mut self, facts: &PodFacts, ids: &Ids) {
        self.add_recorded(facts, ids).chosen = true;
    }

    /// Records ids that the kubelet holds for a pod.
    pub fn add_recorded(&mut self, facts: &PodFacts, ids: &Ids) -> &mut Holder {
        let holder = self.0.entry(facts.uid.clone()).or_insert_with(|| Holder::of(facts));
        holder.granted_at = Instant::now();
        holder.ids.extend(ids.iter().cloned());
        // The claim may have become exclusive since an earlier grant.
        holder.exclusive |=
            facts.claim().is_some_and(|claim| claim.cards().values().any(|share| share.exclusive));
        holder
    }

    /// Records ids that the kubelet holds for a pod that is not in the cache.
    pub fn add_unknown_pod(&mut self, uid: &PodUid, ids: &Ids) {
        let fresh = || Holder {
            pod: PodRef::new("", uid.as_str()),
            ids: Ids::new(),
            peak: Units::ZERO,
            exclusive: false,
            chosen: false,
            granted_at: Instant::now(),
            seen: true,
            lingers: false,
        };
        self.0.entry(uid.clone()).or_insert_with(fresh).ids.extend(ids.iter().cloned());
    }

    /// Adds the holders that an earlier process saved.
    pub fn merge(&mut self, earlier: Self) {
        for (uid, earlier) in earlier.0 {
            match self.0.get_mut(&uid) {
                Some(holder) => {
                    holder.ids.extend(earlier.ids);
                    holder.peak = holder.peak.max(earlier.peak);
                    holder.exclusive |= earlier.exclusive;
                    holder.chosen |= earlier.chosen;
                }
                None => drop(self.0.insert(uid, earlier)),
            }
        }
    }

    /// All holders, with their pods' UIDs.
    pub fn iter(&self) -> impl Iterator<Item = (&PodUid, &Holder)> {
        self.0.iter()
    }

    /// Whether a pod other than this one holds the id.
    pub fn is_held_by_other(&self, uid: &PodUid, id: &DeviceId) -> bool {
        self.0.iter().any(|(other, holder)| other != uid && holder.ids.contains(id))
    }

    /// The holder of that UID.
    pub fn get(&self, uid: &PodUid) -> Option<&Holder> {
        self.0.get(uid)
    }

    /// The pods that linger.
    pub fn lingering(&self) -> impl Iterator<Item = (&PodUid, &Holder)> {
        self.0.iter().filter(|(_, holder)| holder.lingers)
    }

    /// Marks the pods that the watch has shown.
    pub fn mark_seen(&mut self, shown: impl Fn(&PodUid) -> bool) {
        self.0.iter_mut().for_each(|(uid, holder)| holder.seen |= shown(uid));
    }

    /// Sets for each pod whether it lingers; `None` removes the pod. Returns whether anything has changed.
    pub fn set_lingering(&mut self, decided: impl Fn(&PodUid) -> Option<bool>) -> bool {
        let mut changed = false;
        self.0.retain(|uid, holder| {
            let decided = decided(uid);
            let lingers = decided.unwrap_or(false);
            if lingers != holder.lingers {
                let pod = &holder.pod;
                match lingers {
                    true => tracing::warn!(%pod, %uid, "the pod is gone, its processes may run: its units stay taken until they have ended"),
                    false => tracing::info!(%pod, %uid, "the processes of a pod that was gone have ended"),
                }
            }
            changed |= lingers != holder.lingers || decided.is_none();
            holder.lingers = lingers;
            decided.is_some()
        });
        changed
    }

    /// The text that a later process of this node reads.
    pub fn to_json(&self) -> String {
        let saved = |(uid, holder): (&PodUid, &Holder)| SavedPod {
            uid: uid.clone(),
            namespace: holder.pod.namespace.clone(),
            name: holder.pod.name.clone(),
            ids: holder.ids.iter().map(ToString::to_string).collect(),
            peak: holder.peak,
            exclusive: holder.exclusive,
            chosen: holder.chosen,
        };
        let mut pods: Vec<SavedPod> = self.0.iter().map(saved).collect();
        pods.sort_by(|one, other| one.uid.cmp(&other.uid));
        // Strings, numbers and booleans only: serialisation cannot fail.
        serde_json::to_string(&Saved { pods }).unwrap_or_default()
    }

    /// Parses a text of [`Holders::to_json`]. Ids of an unknown form, from another version, are left out.
    ///
    /// # Errors
    /// If it is no such text.
    pub fn from_json(text: &[u8]) -> Result<Self, serde_json::Error> {
        let holder = |saved: SavedPod| {
            let holder = Holder {
                pod: PodRef::new(&saved.namespace, &saved.name),
                ids: saved.ids.iter().filter_map(|id| id.parse().ok()).collect(),
                peak: saved.peak,
                exclusive: saved.exclusive,
                chosen: saved.chosen,
                granted_at: Instant::now(),
                seen: true,
                lingers: false,
            };
            (saved.uid, holder)
        };
        let saved: Saved = serde_json::from_slice(text)?;
        Ok(Self(saved.pods.into_iter().map(holder).collect()))
    }
}

#[derive(Serialize, Deserialize)]
struct Saved {
    pods: Vec<SavedPod>,
}

#[derive(Serialize, Deserialize)]
struct SavedPod {
    uid: PodUid,
    namespace: String,
    name: String,
    ids: Vec<String>,
    peak: Units,
    exclusive: bool,
    /// Files of earlier versions do not have it.
    #[serde(default = "yes")]
    chosen: bool,
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use placement::gpu::{CardUse, ContainerKind, ContainerRequest, GpuRequest};

    use super::*;
    use crate::fixtures::{A, B, cards, ids, simple, with_init};

    fn charged(holders: &Holders, pod: &str) -> Vec<(String, u32)> {
        let cards = cards(&[(A, 4), (B, 4)]);
        let (_, holder) = holders.iter().find(|(uid, _)| uid.as_str() == pod).unwrap();
        let charge = holder.charge(&cards).into_iter();
        charge.map(|(card, units)| (card.to_string(), units.0)).collect()
    }

    #[test]
    fn what_is_written_is_read_back_and_charged_alike() {
        let mut holders = Holders::default();
        holders.add_grant(&simple("p", A, 2), &ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        holders.add_grant(&with_init("init", B, 3, 1), &ids(["bbbbbbbb-0"]));
        let read = Holders::from_json(holders.to_json().as_bytes()).unwrap();
        assert_eq!(read.to_json(), holders.to_json());
        assert_eq!(charged(&read, "p"), [(A.to_owned(), 2)]);
        assert_eq!(charged(&read, "init"), [(B.to_owned(), 3)], "its peak");
    }

    #[test]
    fn a_pod_that_has_its_card_for_itself_counts_as_all_of_it() {
        let card_use = CardUse { exclusive: true, ..CardUse::default() };
        let ask = ContainerRequest {
            name: "main".to_owned(),
            kind: ContainerKind::App,
            position: 0,
            units: Units(1),
            card_use,
        };
        let request = GpuRequest::new([ask]).unwrap().unwrap();
        let mut holders = Holders::default();
        holders.add_grant(&crate::fixtures::claimed("p", request, &[A]), &ids(["aaaaaaaa-0"]));
        assert_eq!(charged(&holders, "p"), [(A.to_owned(), 4)]);
    }

    #[test]
    fn a_text_that_is_none_of_ours_is_an_error() {
        for text in ["", "[]", "{}", r#"{"pods":[{}]}"#] {
            assert!(Holders::from_json(text.as_bytes()).is_err(), "{text}");
        }
    }
}
