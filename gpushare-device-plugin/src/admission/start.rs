//! PreStartContainer: the facts for the proof in [`prestart`](crate::prestart).

use std::sync::Arc;

use cluster::PodFacts;
use placement::units::CardId;

use super::{Admission, READS, parse};
use crate::allocate;
use crate::kubelet::Record;
use crate::pods::PodRef;
use crate::prestart::{Mismatch, Proof, could_hold, prove};
use crate::records::{Ids, Owner};
use crate::refusal::{Refusal, list};

/// Why a container may not start now.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The ids are not on one card.
    #[error(transparent)]
    Ids(#[from] Refusal),
    /// Record and claim disagree.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The kubelet's record cannot be read.
    #[error("cannot read the kubelet's record: {0}")]
    Record(#[from] tonic::Status),
}

impl Admission {
    /// PreStartContainer: proves that the container about to start is on its claimed card.
    ///
    /// # Errors
    /// Where record and claim disagree, or the record cannot be read; the kubelet tries again.
    pub async fn prestart(&self, ids: &[String]) -> Result<(), StartError> {
        let Ok(ids) = parse(ids) else {
            // A container from the days of another plugin, restarting; it was given its card then.
            self.metrics.unverifiable.inc();
            return Ok(());
        };
        let proof = self.proof(&ids).await;
        match &proof {
            Ok(Proof::Verified) => self.metrics.verified.inc(),
            Ok(Proof::Unverifiable) => self.metrics.unverifiable.inc(),
            Err(error) => {
                tracing::error!("container held back: {error}");
                self.metrics.mismatches.inc()
            }
        };
        proof.map(drop)
    }

    async fn proof(&self, ids: &Ids) -> Result<Proof, StartError> {
        let card = allocate::card_of(ids, &self.cards())?.uuid.clone();
        let known = self.state().records.owner(ids);
        if let Some(owner) = known {
            return self.proof_for(&owner, ids, &card).await;
        }
        let mut fallback = Err(Mismatch::NoOwner(list(ids)).into());
        for owner in self.possible_owners(ids, &card) {
            match self.proof_for(&owner, ids, &card).await {
                Ok(Proof::Verified) => return Ok(Proof::Verified),
                Ok(Proof::Unverifiable) => fallback = Ok(Proof::Unverifiable),
                Err(StartError::Record(status)) => return Err(status.into()),
                Err(_) => {}
            }
        }
        fallback
    }

    async fn proof_for(
        &self,
        owner: &Owner,
        ids: &Ids,
        card: &CardId,
    ) -> Result<Proof, StartError> {
        let record = match owner.init {
            true => Record::Untold,
            false => self.sources.kubelet.get(&owner.pod).await?,
        };
        let facts = self.facts_of(owner).await;
        Ok(prove(owner, ids, card, &record, facts.as_deref())?)
    }

    async fn facts_of(&self, owner: &Owner) -> Option<Arc<PodFacts>> {
        let right = |facts: &PodFacts| owner.uid.as_ref().is_none_or(|uid| *uid == facts.uid);
        if let Some(facts) = self.sources.pods.get(&owner.pod).filter(|facts| right(facts)) {
            return Some(facts);
        }
        let read = tokio::time::timeout(READS, self.sources.api.read(&owner.pod)).await;
        read.ok()?.ok()?.filter(right).map(Arc::new)
    }

    /// After a restart of this process the ids of init containers are known to nobody: every pod
    /// with such a claim.
    fn possible_owners(&self, ids: &Ids, card: &CardId) -> Vec<Owner> {
        let owners = |facts: Arc<PodFacts>| {
            let owner = |(container, init)| Owner {
                pod: PodRef::of(&facts),
                uid: Some(facts.uid.clone()),
                container,
                init,
            };
            could_hold(&facts, ids, card).into_iter().map(owner).collect::<Vec<_>>()
        };
        let pods = self.sources.pods.all().into_iter().filter(|facts| !facts.finished);
        pods.flat_map(owners).collect()
    }
}
