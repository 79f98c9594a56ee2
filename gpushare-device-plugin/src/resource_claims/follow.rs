//! Keeps the records of claims true while others change the node: claims of running pods that no record has are added,
//! and those of pods that are gone are released, though the kubelet, whose own record was lost, never unprepares them.
//!
//! Invariant: a claim that the API server has allocated on this node stays booked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cluster::{DeviceResult, ResourceClaimFacts};
use placement::units::ResourceClaimUid;
use tokio::time::{Instant, sleep};

use super::driver::{ClaimRef, Driver, READ_TIMEOUT};
use super::wanted::Wanted;
use crate::pods::{NodePod, PodRef};
use crate::records::resource_claims::BookedClaim;

/// Pause before what failed is tried again, at the start.
const RETRY: Duration = Duration::from_secs(2);
/// Pause between two looks at files that others may delete, and at claims whose pods are gone.
const EVERY: Duration = Duration::from_secs(10);
/// Time in which a claim that was found at the start may have no process yet.
const YOUNG: Duration = Duration::from_secs(60);
/// Time after which a claim without a pod is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(30);

impl Driver {
    /// Follows the node's pods until the shutdown.
    pub(crate) async fn follow(self: Arc<Self>, shutdown: daemon::Shutdown) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.keep_true() => {}
        }
    }

    /// Ends the claims of an earlier process that served them, where this one does not: once their processes have
    /// ended.
    pub(crate) async fn end_all(self: Arc<Self>, shutdown: daemon::Shutdown) {
        let end = async {
            self.lingering.grants_loaded().await;
            if self.records.lock().resource_claims.unprepare_all() {
                tracing::warn!(
                    "without --claims, claims of an earlier process hold their memory until they have ended"
                );
                self.lingering.save(&mut self.records.lock());
                self.records.notify();
            }
            while self.records.lock().resource_claims.has_unprepared() {
                sleep(EVERY).await;
                self.set_files();
            }
            shutdown.cancelled().await;
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = end => {}
        }
    }

    async fn keep_true(&self) {
        self.lingering.grants_loaded().await;
        self.pods.listed().await;
        // Fails only without a sender, which lives as long as the plugin.
        let _ = self.gpus.clone().wait_for(|gpus| !gpus.is_empty()).await;
        // Without it the limits of running claims are not known.
        let _ = self.isolation.support.clone().wait_for(Option::is_some).await;
        while let Err(why) = self.recover().await {
            tracing::warn!("which claims the node's pods have is not known yet: {why}");
            sleep(RETRY).await;
        }
        self.recovered.send_replace(true);
        let begun = Instant::now();
        let mut pods = self.pods.changes();
        let mut asked: BTreeMap<ResourceClaimUid, Instant> = BTreeMap::new();
        loop {
            if begun.elapsed() >= YOUNG {
                // From here on their processes decide.
                let found = std::mem::take(&mut *self.found());
                for uid in &found {
                    self.release(uid);
                }
            }
            self.add_pods();
            self.set_files();
            self.release_forgotten(&mut asked).await;
            tokio::select! {
                changed = pods.changed() => if changed.is_err() { return },
                () = sleep(EVERY) => {}
            }
        }
    }

    /// Books the claims of running pods that no record has, whatever room there is: they run.
    async fn recover(&self) -> Result<(), String> {
        for pod in self.pods.by_uids().into_values() {
            if pod.resource_claims.is_empty()
                || pod.facts.finished
                || !self.holds_devices(&pod).await?
            {
                continue;
            }
            for name in &pod.resource_claims {
                self.recover_claim(&pod, name).await?;
            }
        }
        Ok(())
    }

    /// Whether the kubelet has devices of this driver for a pod. One that does not tell has none.
    async fn holds_devices(&self, pod: &NodePod) -> Result<bool, String> {
        let asked = self.kubelet.claimed_devices(&PodRef::of(&pod.facts)).await;
        let devices = asked.map_err(|status| status.message().to_owned())?;
        let mut all = devices.iter().flat_map(|containers| containers.values().flatten());
        Ok(all.any(|device| device.driver == self.name))
    }

    async fn recover_claim(&self, pod: &NodePod, name: &str) -> Result<(), String> {
        let namespace = &pod.facts.namespace;
        let read =
            cluster::get_resource_claim(&self.client, namespace, name, &self.name, READ_TIMEOUT);
        let Some(facts) = read.await.map_err(|error| error.to_string())? else { return Ok(()) };
        let is_known = self.records.lock().resource_claims.get(&facts.uid).is_some();
        if is_known || !self.is_allocated_here(&facts) {
            return Ok(());
        }
        let claim = self.booking_of_running(&facts);
        tracing::warn!(uid = %facts.uid, namespace, claim = name, "a running pod has a claim that was not on record");
        self.found().insert(facts.uid.clone());
        let mut records = self.records.lock();
        records.resource_claims.insert(facts.uid.clone(), claim);
        self.lingering.save(&mut records);
        drop(records);
        self.records.notify();
        Ok(())
    }

    /// The booking of a claim whose containers may run: until their processes have ended, or it is prepared again, as
    /// after a boot of the node.
    fn booking_of_running(&self, facts: &ResourceClaimFacts) -> BookedClaim {
        let gpus = self.gpus.borrow().clone();
        let wanted = Wanted::of_running(facts, &gpus);
        let support = self.isolation.support.borrow().clone();
        let limit = support.and_then(|support| {
            let (limit, _) = wanted.limit(&gpus, self.isolation.policy, &support).ok()?;
            limit
        });
        wanted.booked(facts, limit)
    }

    fn is_allocated_here(&self, facts: &ResourceClaimFacts) -> bool {
        let is_here = |result: &DeviceResult| result.pool == self.node.as_str();
        facts.allocated.as_ref().is_some_and(|allocated| allocated.results.iter().any(is_here))
    }

    /// Adds the pods that use a claim: the kubelet names none, and prepares a claim once for all of them.
    fn add_pods(&self) {
        let mut is_new = false;
        for (uid, pod) in self.pods.by_uids() {
            if !pod.resource_claims.is_empty() {
                let mut records = self.records.lock();
                let namespace = &pod.facts.namespace;
                is_new |= records.resource_claims.add_pod(&uid, namespace, &pod.resource_claims);
            }
        }
        if is_new {
            self.lingering.save(&mut self.records.lock());
        }
    }

    /// Releases prepared claims whose pods are gone, and which are not allocated on this node any more.
    async fn release_forgotten(&self, asked: &mut BTreeMap<ResourceClaimUid, Instant>) {
        let mut without_pods = Vec::new();
        {
            let pods = self.pods.by_uids();
            let records = self.records.lock();
            for (uid, claim) in records.resource_claims.iter().filter(|(_, claim)| claim.prepared) {
                let runs = |pod| pods.get(pod).is_some_and(|pod| !pod.facts.finished);
                if !claim.pods.iter().any(runs) {
                    let (namespace, name) = (claim.namespace.clone(), claim.name.clone());
                    without_pods.push(ClaimRef { namespace, name, uid: uid.clone() });
                }
            }
        }
        asked.retain(|uid, _| without_pods.iter().any(|claim| claim.uid == *uid));
        for claim in without_pods {
            let is_due = asked.get(&claim.uid).is_none_or(|at| at.elapsed() >= ASK_AGAIN);
            if !is_due {
                continue;
            }
            asked.insert(claim.uid.clone(), Instant::now());
            match self.read(&claim).await {
                Ok(Some(facts)) if self.is_allocated_here(&facts) => {}
                Ok(_) => {
                    if self.release(&claim.uid) {
                        tracing::info!(uid = %claim.uid, "claim {claim} is released: its pods are gone");
                    }
                }
                Err(error) => tracing::debug!("claim {claim}: {error}"),
            }
        }
    }
}
