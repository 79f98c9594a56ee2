//! Who holds how much of which card, over the whole cluster: one ledger a node.
//!
//! Invariants: the entry of a pod in `homes` is held while its entries in ledgers change, so that
//! what happens to one pod happens in order; locks are taken pod first, then node, never the other
//! way round. A pod holds units on one node once it is known to be bound; before that, on every
//! node on which a binding of it was tried and may have been carried out.

use std::collections::HashSet;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use placement::gpu::{
    Card, Choice, Claim, FreeCard, GpuRequest, NoCard, NodeLedger, Placed, Stage,
};
use placement::units::{NodeName, PodUid, Units};

use cluster::{GpuPod, PodFacts};

/// How a pod is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuPodId {
    /// Its UID.
    pub uid: PodUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What is known of a GPU pod, wherever it is.
struct Home {
    namespace: String,
    name: String,
    request: GpuRequest,
    nodes: Vec<NodeName>,
}

/// The ledgers of all nodes.
#[derive(Default)]
pub struct CardBook {
    ledgers: DashMap<NodeName, NodeLedger>,
    homes: DashMap<PodUid, Home>,
}

/// Why nothing was set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreserved {
    /// No card of the node fits.
    NoCard(NodeName, NoCard),
    /// The pod is bound to the node already.
    Bound(NodeName),
}

/// One card's account, with names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The card's index.
    pub index: u32,
    /// All its units.
    pub units: Units,
    /// Units held.
    pub used: Units,
    /// By whom.
    pub pods: Vec<PodOnCard>,
}

/// A pod's part of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodOnCard {
    /// Its namespace; empty where only the node's records know the pod.
    pub namespace: String,
    /// Its name, or its UID where only the node's records know the pod.
    pub name: String,
    /// Units it holds.
    pub units: Units,
}

/// Sums over the whole cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Nodes with cards.
    pub nodes: u64,
    /// Cards.
    pub cards: u64,
    /// Cards that are not healthy.
    pub unhealthy: u64,
    /// Units of all cards.
    pub units: u64,
    /// Units held.
    pub used: u64,
    /// Units held beyond what cards have: should be 0 for ever.
    pub overbooked: u64,
    /// Reservations that the API server has not confirmed.
    pub reserved: u64,
}

impl CardBook {
    /// Takes over a node's report of its cards.
    pub fn set_cards(&self, node: &NodeName, cards: Vec<Card>) {
        if cards.is_empty() && !self.ledgers.contains_key(node) {
            return;
        }
        self.change(node, |ledger| {
            if ledger.cards() != cards {
                ledger.set_cards(cards);
            }
        });
    }

    /// The nodes that have a ledger.
    pub fn nodes(&self) -> Vec<NodeName> {
        self.ledgers.iter().map(|entry| entry.key().clone()).collect()
    }

    /// Which card of a node a pod would go to, or has had set aside for it.
    ///
    /// # Errors
    ///
    /// Each card's reason where none fits; no card at all where the node has no ledger.
    pub fn fit(&self, node: &str, pod: &PodUid, request: &GpuRequest) -> Result<Choice, NoCard> {
        match self.ledgers.get(node) {
            Some(ledger) => ledger.fit_pod(pod, request),
            None => NodeLedger::default().fit(request),
        }
    }

    /// Notes what the API server shows of a GPU pod.
    pub fn note(&self, pod: &PodFacts, gpu: &GpuPod) {
        if pod.finished {
            return self.forget(&pod.uid);
        }
        let mut home = self.homes.entry(pod.uid.clone()).or_insert_with(|| Home {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            request: gpu.request.clone(),
            nodes: Vec::new(),
        });
        // A pod that is not bound may have a binding under way: what is reserved stays.
        if let Some(node) = &pod.node {
            self.settle(&pod.uid, &mut home, node, gpu);
        }
    }

    /// As [`CardBook::note`], for what was asked rather than watched: a pod that is no longer known
    /// stays unknown, since the watch has told of its end meanwhile.
    pub fn note_known(&self, pod: &PodFacts, gpu: &GpuPod) {
        if pod.finished {
            return self.forget(&pod.uid);
        }
        let home = self.homes.get_mut(&pod.uid);
        if let (Some(mut home), Some(node)) = (home, &pod.node) {
            self.settle(&pod.uid, &mut home, node, gpu);
        }
    }

    fn settle(&self, uid: &PodUid, home: &mut Home, node: &NodeName, gpu: &GpuPod) {
        for other in home.nodes.drain(..).filter(|other| other != node) {
            self.change(&other, |ledger| ledger.release(uid));
        }
        home.nodes.push(node.clone());
        let stage = if gpu.assigned { Stage::Allocated } else { Stage::Bound };
        let placed = gpu.placed.clone();
        self.change(node, |ledger| ledger.observe(uid, &gpu.request, placed, stage));
    }

    /// Gives back everything that a pod holds, and forgets it.
    pub fn forget(&self, uid: &PodUid) {
        if let Entry::Occupied(home) = self.homes.entry(uid.clone()) {
            for node in &home.get().nodes {
                self.change(node, |ledger| ledger.release(uid));
            }
            home.remove();
        }
    }

    /// What a pod asks for, where it is known.
    pub fn request(&self, uid: &PodUid) -> Option<GpuRequest> {
        self.homes.get(uid).map(|home| home.request.clone())
    }

    /// The nodes on which a pod holds units.
    pub fn held_on(&self, uid: &PodUid) -> Vec<NodeName> {
        self.homes.get(uid).map_or_else(Vec::new, |home| home.nodes.clone())
    }

    /// Chooses a card of a node and sets it aside.
    ///
    /// # Errors
    ///
    /// Where no card fits, or the pod is bound already.
    pub fn reserve(
        &self,
        pod: &GpuPodId,
        request: &GpuRequest,
        node: &NodeName,
    ) -> Result<(Claim, Choice), Unreserved> {
        let mut home = self.homes.entry(pod.uid.clone()).or_insert_with(|| Home {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            request: request.clone(),
            nodes: Vec::new(),
        });
        let reserved = self.change(node, |ledger| match ledger.stage(&pod.uid) {
            Some(Stage::Bound | Stage::Allocated) => Err(Unreserved::Bound(node.clone())),
            Some(Stage::Reserved) | None => ledger
                .reserve(&pod.uid, request)
                .map_err(|why| Unreserved::NoCard(node.clone(), why)),
        })?;
        if !home.nodes.contains(node) {
            home.nodes.push(node.clone());
        }
        Ok(reserved)
    }

    /// The API server has taken the binding that `claim` was reserved for. Does nothing where the
    /// pod has ended meanwhile.
    pub fn confirm(&self, uid: &PodUid, node: &NodeName, claim: Claim) {
        let Some(mut home) = self.homes.get_mut(uid) else { return };
        let request = home.request.clone();
        let gpu = GpuPod {
            placed: Placed::by(&claim, &request),
            request,
            claim: Ok(Some(claim)),
            assigned: false,
        };
        self.settle(uid, &mut home, node, &gpu);
    }

    /// Gives a reservation back. Does nothing where the pod is known to be bound there.
    pub fn cancel(&self, uid: &PodUid, node: &NodeName) {
        let Some(mut home) = self.homes.get_mut(uid) else { return };
        let left = self.change(node, |ledger| {
            ledger.cancel(uid);
            ledger.stage(uid)
        });
        if left.is_none() {
            home.nodes.retain(|other| other != node);
        }
    }

    /// Whether a reservation on the node still waits for the API server's word.
    pub fn is_reserved(&self, uid: &PodUid, node: &NodeName) -> bool {
        let ledger = self.ledgers.get(node);
        ledger.is_some_and(|ledger| ledger.stage(uid) == Some(Stage::Reserved))
    }

    /// The pods whose place does not hang on a binding under way. A list of all pods that begins
    /// after this call names each of them that still exists.
    pub fn settled(&self) -> HashSet<PodUid> {
        let pods = self.homes.iter();
        let settled = pods.filter(|home| {
            let mut nodes = home.nodes.iter();
            !nodes.any(|node| self.is_reserved(home.key(), node))
        });
        settled.map(|home| home.key().clone()).collect()
    }

    /// What is free on each card of a node, by index; empty where it has none.
    pub fn free_cards(&self, node: &str) -> Vec<FreeCard> {
        self.ledgers.get(node).map_or_else(Vec::new, |ledger| ledger.free_cards().to_vec())
    }

    /// A node's cards with their accounts; empty where it has none.
    pub fn accounts(&self, node: &str) -> Vec<Account> {
        // The ledger's lock is let go before pods are looked up: pod first, then node.
        let accounts = self.ledgers.get(node).map(|ledger| ledger.accounts());
        let accounts = accounts.unwrap_or_default().into_iter();
        accounts
            .map(|account| Account {
                index: account.card.index,
                units: account.card.units,
                used: account.used,
                pods: account.pods.iter().map(|(uid, units)| self.named(uid, *units)).collect(),
            })
            .collect()
    }

    fn named(&self, uid: &PodUid, units: Units) -> PodOnCard {
        let (namespace, name) = match self.homes.get(uid) {
            Some(home) => (home.namespace.clone(), home.name.clone()),
            None => (String::new(), uid.to_string()),
        };
        PodOnCard { namespace, name, units }
    }

    /// Sums over all nodes.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for ledger in &self.ledgers {
            totals.nodes += u64::from(!ledger.cards().is_empty());
            let reserved = ledger.stages().filter(|(_, stage)| *stage == Stage::Reserved);
            totals.reserved += reserved.count() as u64;
            for account in ledger.accounts() {
                let (units, used) = (u64::from(account.card.units.0), u64::from(account.used.0));
                totals.cards += 1;
                totals.unhealthy += u64::from(!account.card.healthy);
                totals.units += units;
                totals.used += used;
                totals.overbooked += used.saturating_sub(units);
            }
        }
        totals
    }

    /// Changes one node's ledger; one that holds nothing is dropped.
    fn change<T>(&self, node: &NodeName, change: impl FnOnce(&mut NodeLedger) -> T) -> T {
        let mut ledger = match self.ledgers.entry(node.clone()) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) => entry.insert_entry(NodeLedger::default()),
        };
        let outcome = change(ledger.get_mut());
        if ledger.get().cards().is_empty() && ledger.get().stages().next().is_none() {
            ledger.remove();
        }
        outcome
    }
}
