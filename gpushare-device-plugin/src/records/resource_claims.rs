//! The shares of GPUs that ResourceClaims hold on this node, in the same records as device ids. Pure.
//!
//! Invariants: a claim holds its memory from its preparation until it is unprepared and no process of its pods is left.
//! Its entry is replaced as a whole, by its UID. On one GPU there are either claims or device ids, and no GPU holds
//! more memory or compute than it offers.

use std::collections::{BTreeMap, BTreeSet};

use placement::units::{Cores, GpuId, MiB, PodUid, ResourceClaimUid, Units};
use serde::{Deserialize, Serialize};

use crate::gpus::{Gpu, Gpus};
use crate::isolation::limit::Limit;

/// Holders that an error names.
const NAMED: usize = 3;

/// What a claim holds of one GPU: one result of its allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimedShare {
    /// The request of the claim, `REQUEST` or `REQUEST/SUBREQUEST`.
    pub request: String,
    /// The device's name.
    pub device: String,
    /// kube-scheduler's id of this share of the device.
    pub share_id: Option<String>,
    /// The GPU.
    pub gpu: GpuId,
    /// Memory of it.
    pub memory: MiB,
    /// Percent of its compute.
    pub cores: Cores,
}

/// A claim that holds memory on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BookedClaim {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What it holds.
    pub shares: Vec<ClaimedShare>,
    /// How its containers are held to that; `None` if they are not.
    pub limit: Option<Limit>,
    /// The pods that use it, or did.
    pub pods: BTreeSet<PodUid>,
    /// Whether the kubelet may start containers with it. Without, it holds its memory until its processes have ended.
    pub prepared: bool,
}

impl BookedClaim {
    /// Its namespace and name.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Whether its containers are clients of MPS.
    fn is_client(&self) -> bool {
        self.limit.is_some_and(|limit| limit.by_mps().is_some())
    }

    fn on(&self, gpu: &GpuId) -> impl Iterator<Item = &ClaimedShare> {
        self.shares.iter().filter(move |share| share.gpu == *gpu)
    }
}

/// Why a claim cannot be booked. The texts say who holds what.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// The node has no such GPU now.
    #[error("the node has no GPU {0} now")]
    NoSuchGpu(GpuId),
    /// Other claims hold too much memory.
    #[error("GPU {gpu} has {free} free of {offered}, and the claim holds {asked}: {holders}")]
    Memory {
        /// The GPU.
        gpu: GpuId,
        /// What it has free.
        free: MiB,
        /// What it offers.
        offered: MiB,
        /// What the claim needs.
        asked: MiB,
        /// Who holds the rest.
        holders: String,
    },
    /// Other claims hold too much compute.
    #[error("GPU {gpu} has {free}% of its compute free, and the claim holds {asked}%: {holders}")]
    Cores {
        /// The GPU.
        gpu: GpuId,
        /// What it has free.
        free: Cores,
        /// What the claim needs.
        asked: Cores,
        /// Who holds the rest.
        holders: String,
    },
    /// Other claims' containers are all the clients of MPS that the GPU serves.
    #[error("GPU {gpu} serves {clients} clients of MPS, and so many claims have it")]
    Clients {
        /// The GPU.
        gpu: GpuId,
        /// How many it serves.
        clients: u16,
    },
    /// Its own processes of an earlier allocation run.
    #[error("processes that had it by an earlier allocation have not ended")]
    Ending,
    /// Pods hold device ids of it.
    #[error("pods hold {units} units of GPU {gpu}: it takes claims once they have ended")]
    Units {
        /// The GPU.
        gpu: GpuId,
        /// What they hold.
        units: Units,
    },
    /// A pod has it through another plugin or driver.
    #[error("pod {pod} has GPU {gpu} by {resource}")]
    Elsewhere {
        /// The GPU.
        gpu: GpuId,
        /// The pod's UID.
        pod: PodUid,
        /// The other plugin's resource, or the driver.
        resource: String,
    },
}

impl NoRoom {
    /// Whether the claim needs more than the whole GPU.
    pub fn is_more_than_a_gpu(&self) -> bool {
        match self {
            Self::Memory { offered, asked, .. } => asked > offered,
            Self::Cores { asked, .. } => *asked > Cores::ALL,
            _ => false,
        }
    }
}

/// The claims that hold memory, by their UIDs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClaimLedger(BTreeMap<ResourceClaimUid, BookedClaim>);

impl ClaimLedger {
    /// All claims.
    pub fn iter(&self) -> impl Iterator<Item = (&ResourceClaimUid, &BookedClaim)> {
        self.0.iter()
    }

    /// The claim of that UID.
    pub fn get(&self, uid: &ResourceClaimUid) -> Option<&BookedClaim> {
        self.0.get(uid)
    }

    /// The claim of that UID, if the kubelet may start containers with it.
    pub fn prepared(&self, uid: &ResourceClaimUid) -> Option<&BookedClaim> {
        self.get(uid).filter(|claim| claim.prepared)
    }

    /// Whether a claim holds a part of that GPU.
    pub fn is_on(&self, gpu: &GpuId) -> bool {
        self.0.values().any(|claim| claim.on(gpu).next().is_some())
    }

    /// The GPUs of which claims hold a part.
    pub fn gpus(&self) -> BTreeSet<GpuId> {
        self.0.values().flat_map(|claim| &claim.shares).map(|share| share.gpu.clone()).collect()
    }

    /// The memory that claims hold of a GPU.
    pub fn memory_on(&self, gpu: &GpuId) -> MiB {
        total(self.0.values().flat_map(|claim| claim.on(gpu))).0
    }

    /// How many claims with a limit by MPS hold a part of a GPU.
    pub fn clients_on(&self, gpu: &GpuId) -> usize {
        let is_there = |claim: &&BookedClaim| claim.is_client() && claim.on(gpu).next().is_some();
        self.0.values().filter(is_there).count()
    }

    /// Whether a claim waits for the end of its processes.
    pub fn has_unprepared(&self) -> bool {
        self.0.values().any(|claim| !claim.prepared)
    }

    /// What each claim holds until its processes have ended, in units, by its UID: Kubernetes may have deallocated it.
    pub fn unprepared(&self, gpus: &Gpus) -> Vec<(PodUid, BTreeMap<GpuId, Units>)> {
        let mut unprepared = Vec::new();
        for (uid, claim) in self.0.iter().filter(|(_, claim)| !claim.prepared) {
            let mut held: BTreeMap<GpuId, Units> = BTreeMap::new();
            for gpu in gpus.iter().filter(|gpu| claim.on(&gpu.uuid).next().is_some()) {
                let memory = u128::from(total(claim.on(&gpu.uuid)).0.0);
                let part = memory * u128::from(gpu.units.0);
                let units = part.div_ceil(u128::from(gpu.memory.0.max(1)));
                let units = u32::try_from(units).map_or(gpu.units, Units);
                held.insert(gpu.uuid.clone(), units.min(gpu.units));
            }
            unprepared.push((PodUid::from(uid.as_str()), held));
        }
        unprepared
    }

    /// Adds a claim in place of its earlier entry, whose pods it keeps. Does not look at room.
    pub fn insert(&mut self, uid: ResourceClaimUid, mut claim: BookedClaim) {
        if let Some(earlier) = self.0.remove(&uid) {
            claim.pods.extend(earlier.pods);
        }
        self.0.insert(uid, claim);
    }

    /// The kubelet starts no more containers with the claim. Returns whether that is new.
    pub fn unprepare(&mut self, uid: &ResourceClaimUid) -> bool {
        let claim = self.0.get_mut(uid).filter(|claim| claim.prepared);
        claim.is_some_and(|claim| std::mem::replace(&mut claim.prepared, false))
    }

    /// The kubelet starts no more containers with other claims of this name, which were deleted: a claim is made again
    /// under the same name. Returns whether there were any.
    pub fn unprepare_namesakes(
        &mut self,
        uid: &ResourceClaimUid,
        namespace: &str,
        name: &str,
    ) -> bool {
        let mut were_any = false;
        for (other, claim) in &mut self.0 {
            if other != uid && claim.namespace == namespace && claim.name == name {
                were_any |= std::mem::replace(&mut claim.prepared, false);
            }
        }
        were_any
    }

    /// The kubelet starts no more containers with any claim. Returns whether that is new.
    pub fn unprepare_all(&mut self) -> bool {
        let mut is_new = false;
        for claim in self.0.values_mut() {
            is_new |= std::mem::replace(&mut claim.prepared, false);
        }
        is_new
    }

    /// Adds a pod that uses the prepared claims of these names. Returns whether one of them is new to it.
    pub fn add_pod(&mut self, pod: &PodUid, namespace: &str, claims: &[String]) -> bool {
        let mut is_new = false;
        for claim in self.0.values_mut() {
            if claim.prepared && claim.namespace == namespace && claims.contains(&claim.name) {
                is_new |= claim.pods.insert(pod.clone());
            }
        }
        is_new
    }

    /// Removes the unprepared claims whose pods have no process any more. Returns whether there were any.
    pub fn remove_ended(&mut self, may_have_processes: impl Fn(&PodUid) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|uid, claim| {
            let stays = claim.prepared || claim.pods.iter().any(&may_have_processes);
            if !stays {
                let BookedClaim { namespace, name, .. } = claim;
                tracing::info!(%uid, namespace, claim = name, "the claim's GPU memory is free");
            }
            stays
        });
        self.0.len() != before
    }

    /// Checks that there is room for a claim, beside all other claims. `clients` are the clients of MPS that a GPU
    /// serves.
    ///
    /// # Errors
    /// Which GPU has too little, and who holds it.
    pub fn check_room(
        &self,
        uid: &ResourceClaimUid,
        claim: &BookedClaim,
        gpus: &Gpus,
        clients: Option<u16>,
    ) -> Result<(), NoRoom> {
        let shares = &claim.shares;
        let earlier = self.0.get(uid).filter(|earlier| !earlier.prepared);
        if earlier.is_some_and(|earlier| earlier.shares != *shares) {
            return Err(NoRoom::Ending);
        }
        let on: BTreeSet<&GpuId> = shares.iter().map(|share| &share.gpu).collect();
        for id in on {
            let gpu = gpus.get(id).ok_or_else(|| NoRoom::NoSuchGpu(id.clone()))?;
            self.check_gpu(uid, shares.iter().filter(|share| share.gpu == *id), gpu)?;
            let others = self.clients_on(id)
                - usize::from(self.get(uid).is_some_and(BookedClaim::is_client));
            if let Some(clients) = clients.filter(|clients| others >= usize::from(*clients))
                && claim.is_client()
            {
                return Err(NoRoom::Clients { gpu: id.clone(), clients });
            }
        }
        Ok(())
    }

    fn check_gpu<'s>(
        &self,
        uid: &ResourceClaimUid,
        shares: impl Iterator<Item = &'s ClaimedShare>,
        gpu: &Gpu,
    ) -> Result<(), NoRoom> {
        let of_other = |(other, claim): (&ResourceClaimUid, _)| (other != uid).then_some(claim);
        let (memory, cores) = total(
            self.0.iter().filter_map(of_other).flat_map(|claim: &BookedClaim| claim.on(&gpu.uuid)),
        );
        let asked = total(shares);
        let free = MiB(gpu.offered.0.saturating_sub(memory.0));
        let cores_free = Cores::ALL.saturating_sub(cores);
        let holders = || self.holders(uid, &gpu.uuid);
        if asked.0 > free {
            let (offered, asked) = (gpu.offered, asked.0);
            return Err(NoRoom::Memory {
                gpu: gpu.uuid.clone(),
                free,
                offered,
                asked,
                holders: holders(),
            });
        }
        if asked.1 > cores_free {
            let (free, asked) = (cores_free, asked.1);
            return Err(NoRoom::Cores { gpu: gpu.uuid.clone(), free, asked, holders: holders() });
        }
        Ok(())
    }

    /// Who holds parts of a GPU beside this claim: first those whose processes are still to end.
    fn holders(&self, uid: &ResourceClaimUid, gpu: &GpuId) -> String {
        let mut holders: Vec<(bool, String)> = Vec::new();
        for (other, claim) in &self.0 {
            let (memory, _) = total(claim.on(gpu));
            if other == uid || claim.on(gpu).next().is_none() {
                continue;
            }
            let ends = if claim.prepared { "" } else { ", whose processes have not ended" };
            holders.push((claim.prepared, format!("claim {} {memory}{ends}", claim.full_name())));
        }
        if holders.is_empty() {
            return "it is more than the GPU has".to_owned();
        }
        holders.sort();
        let more = holders.len().saturating_sub(NAMED);
        let named: Vec<&str> = holders.iter().take(NAMED).map(|(_, text)| text.as_str()).collect();
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{rest}", named.join(", "))
    }
}

/// Memory and compute of these shares.
fn total<'s>(shares: impl Iterator<Item = &'s ClaimedShare>) -> (MiB, Cores) {
    shares.fold((MiB(0), Cores::ZERO), |(memory, cores), share| {
        let memory = MiB(memory.0.saturating_add(share.memory.0));
        (memory, Cores(cores.0.saturating_add(share.cores.0)))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixtures::{A, B, booked as claim, gpus, share};
    use crate::isolation::limit::MpsLimit;

    fn with(claims: &[(&str, &[ClaimedShare])]) -> ClaimLedger {
        let mut ledger = ClaimLedger::default();
        for (name, shares) in claims {
            ledger.insert((*name).into(), claim(name, shares));
        }
        ledger
    }

    #[test]
    fn a_claim_that_would_be_over_is_refused_with_who_holds_the_rest() {
        let mut ledger = with(&[("a", &[share(A, 3000, 60)]), ("b", &[share(B, 4096, 0)])]);
        let two = gpus(&[(A, 4), (B, 4)]);
        let new = ResourceClaimUid::from("new");
        assert_eq!(
            ledger.check_room(&new, &claim("new", &[share(A, 1096, 40)]), &two, None),
            Ok(())
        );
        let over = ledger
            .check_room(&new, &claim("new", &[share(A, 1097, 0)]), &two, None)
            .unwrap_err()
            .to_string();
        for part in [A, "1096 MiB free of 4096 MiB", "holds 1097 MiB", "claim ml/a 3000 MiB"] {
            assert!(over.contains(part), "{over}");
        }
        let cores =
            ledger.check_room(&new, &claim("new", &[share(A, 1, 41)]), &two, None).unwrap_err();
        assert!(matches!(cores, NoRoom::Cores { .. }), "{cores}");
        assert!(ledger.unprepare(&"a".into()));
        let over = ledger
            .check_room(&new, &claim("new", &[share(A, 4096, 0)]), &two, None)
            .unwrap_err()
            .to_string();
        assert!(over.contains("whose processes have not ended"), "{over}");
        let gone = ledger
            .check_room(&new, &claim("new", &[share("GPU-c", 1, 0)]), &two, None)
            .unwrap_err();
        assert_eq!(gone, NoRoom::NoSuchGpu("GPU-c".into()));
    }

    #[test]
    fn a_claim_replaces_its_own_entry_and_never_stands_in_its_own_way() {
        let mut ledger = with(&[("a", &[share(A, 4096, 100)])]);
        let one = gpus(&[(A, 4)]);
        assert_eq!(
            ledger.check_room(&"a".into(), &claim("a", &[share(A, 4096, 100)]), &one, None),
            Ok(())
        );
        let both = [share(A, 2048, 0), share(A, 2049, 0)];
        assert!(
            ledger.check_room(&"a".into(), &claim("a", &both), &one, None).is_err(),
            "two results on one GPU"
        );
        let mut again = claim("a", &[share(A, 1024, 0)]);
        again.pods = ["other".into()].into();
        ledger.insert("a".into(), again);
        assert_eq!(ledger.memory_on(&A.into()), MiB(1024));
        assert_eq!(
            ledger.get(&"a".into()).unwrap().pods.len(),
            2,
            "earlier pods may have processes"
        );
    }

    #[test]
    fn an_unprepared_claim_holds_its_memory_until_its_pods_processes_have_ended() {
        let mut ledger = with(&[("a", &[share(A, 1024, 0)])]);
        assert!(!ledger.remove_ended(|_| false), "it is prepared");
        assert!(ledger.add_pod(&"second".into(), "ml", &["a".to_owned()]));
        assert!(!ledger.add_pod(&"elsewhere".into(), "default", &["a".to_owned()]));
        assert!(ledger.unprepare(&"a".into()) && !ledger.unprepare(&"a".into()));
        assert!(!ledger.remove_ended(|pod| pod.as_str() == "second"));
        let elsewhere = [share(B, 1024, 0)];
        let two = gpus(&[(A, 4), (B, 4)]);
        ledger.insert("b".into(), claim("b", &[share(B, 1024, 0)]));
        let held = BTreeMap::from([(A.into(), Units(1))]);
        assert_eq!(ledger.unprepared(&two), [("a".into(), held)]);
        ledger.0.remove("b");
        assert_eq!(
            ledger.check_room(&"a".into(), &claim("a", &elsewhere), &two, None),
            Err(NoRoom::Ending)
        );
        assert_eq!(
            ledger.check_room(&"a".into(), &claim("a", &[share(A, 1024, 0)]), &two, None),
            Ok(()),
            "the same one"
        );
        assert!(ledger.remove_ended(|_| false));
        assert!(!ledger.is_on(&A.into()));
    }

    #[test]
    fn no_more_claims_are_clients_of_mps_than_a_gpu_serves() {
        let one = gpus(&[(A, 4)]);
        let client = |name: &str| {
            let mps = MpsLimit { gpus: 1, limit: MiB(1), threads: 100 };
            BookedClaim { limit: Some(Limit::Mps(mps)), ..claim(name, &[share(A, 1, 0)]) }
        };
        let mut ledger = ClaimLedger::default();
        for name in ["a", "b"] {
            assert_eq!(ledger.check_room(&name.into(), &client(name), &one, Some(2)), Ok(()));
            ledger.insert(name.into(), client(name));
        }
        let third = ledger.check_room(&"c".into(), &client("c"), &one, Some(2));
        assert_eq!(third, Err(NoRoom::Clients { gpu: A.into(), clients: 2 }));
        assert_eq!(ledger.check_room(&"a".into(), &client("a"), &one, Some(2)), Ok(()), "itself");
        let unlimited = claim("c", &[share(A, 1, 0)]);
        assert_eq!(ledger.check_room(&"c".into(), &unlimited, &one, Some(2)), Ok(()));
    }

    #[test]
    fn a_claim_that_is_made_again_under_its_name_ends_the_earlier_one() {
        let mut ledger = with(&[("first", &[share(A, 1024, 0)])]);
        assert!(!ledger.unprepare_namesakes(&"first".into(), "ml", "first"));
        assert!(!ledger.unprepare_namesakes(&"second".into(), "default", "first"));
        assert!(ledger.unprepare_namesakes(&"second".into(), "ml", "first"));
        assert!(!ledger.add_pod(&"pod".into(), "ml", &["first".to_owned()]), "it is another one's");
        assert!(ledger.remove_ended(|_| false));
    }

    proptest! {
        #[test]
        fn claims_that_passed_the_check_never_hold_more_than_a_gpu_offers(
            asks in prop::collection::vec((0..12_u8, 0..2_usize, 1..5000_u64, 0..120_u32, any::<bool>()), 1..60),
        ) {
            let two = gpus(&[(A, 4), (B, 4)]);
            let mut ledger = ClaimLedger::default();
            for (name, on, memory, cores, ends) in asks {
                let name = name.to_string();
                let uid = ResourceClaimUid::from(name.as_str());
                let shares = [share([A, B][on], memory, cores)];
                if ends {
                    ledger.unprepare(&uid);
                    ledger.remove_ended(|_| false);
                } else if ledger.check_room(&uid, &claim(&name, &shares), &two, None).is_ok() {
                    ledger.insert(uid, claim(&name, &shares));
                }
                for gpu in two.iter() {
                    prop_assert!(ledger.memory_on(&gpu.uuid) <= gpu.offered);
                    let all = ledger.iter().flat_map(|(_, claim)| claim.on(&gpu.uuid));
                    prop_assert!(total(all).1 <= Cores::ALL);
                }
            }
            let text = serde_json::to_string(&ledger).unwrap();
            prop_assert_eq!(serde_json::from_str::<ClaimLedger>(&text).unwrap(), ledger);
        }
    }
}
