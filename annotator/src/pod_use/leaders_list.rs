//! The list of workloads that the leading replica serves, read by the others: a new leader goes on learning from it.
//!
//! Invariants: a list is taken over as a whole or not at all, and the last good one stays. It is taken over once,
//! before this replica learns anything as the leader.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use api::workloads::{MAX_TEXT, Workload, Workloads};
use cluster::Leadership;
use daemon::Shutdown;
use jiff::{SignedDuration, Timestamp};
use placement::learning::Learned;
use reqwest::{Client, StatusCode, redirect};

use super::{PATH, SharedLearner};
use crate::clock::Clock;
use crate::exporter::tls;

/// The time between two reads.
const PERIOD: SignedDuration = SignedDuration::from_secs(30);

/// The time after a read that failed: a replica that has just started may have to take over soon.
const RETRY: SignedDuration = SignedDuration::from_secs(5);

/// Time for a whole answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Addresses that are tried in one read.
const TRIES: usize = 6;

/// The leader's last list, which the reader fills; `None` if none was read since this replica led last.
pub(crate) type LeadersList = Arc<Mutex<Option<Vec<Workload>>>>;

/// Reads the leader's list while this replica does not lead.
pub(crate) struct ListReader {
    client: Client,
    /// `HOST:PORT`: the addresses of all replicas.
    address: String,
    leadership: Leadership,
    list: LeadersList,
    clock: Clock,
}

impl ListReader {
    /// A reader of the replicas at `address`.
    ///
    /// # Errors
    ///
    /// If no HTTP client can be set up.
    pub(crate) fn new(
        address: String,
        leadership: Leadership,
        list: LeadersList,
        clock: Clock,
    ) -> anyhow::Result<Self> {
        // reqwest requires a TLS configuration even if it is never used.
        let client = Client::builder()
            .tls_backend_preconfigured(tls::client_config_of(None).map_err(anyhow::Error::msg)?)
            .no_proxy()
            .redirect(redirect::Policy::none())
            .pool_max_idle_per_host(0)
            .timeout(TIMEOUT)
            .build()?;
        Ok(Self { client, address, leadership, list, clock })
    }

    /// Reads until the shutdown.
    ///
    /// # Errors
    ///
    /// None: a read that fails is repeated.
    pub(crate) async fn follow(self, shutdown: Shutdown) -> anyhow::Result<()> {
        shutdown.run_until_cancelled(self.read_again_and_again()).await;
        Ok(())
    }

    async fn read_again_and_again(&self) {
        loop {
            let pause = if self.leadership.is_held() { PERIOD } else { self.update().await };
            self.clock.wait(self.clock.now().checked_add(pause).ok()).await;
        }
    }

    /// Reads the list once. Returns the time until the next read.
    async fn update(&self) -> SignedDuration {
        match self.read().await {
            Ok(workloads) => {
                let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
                // This replica may lead by now, and have taken the list before over.
                if !self.leadership.is_held() {
                    *list = Some(workloads);
                }
                PERIOD
            }
            Err(error) => {
                let error = daemon::Causes(error.as_ref()).to_string();
                tracing::debug!(
                    replicas = self.address,
                    error,
                    "no replica serves the list of workloads"
                );
                RETRY
            }
        }
    }

    /// The list of the first replica that answers; the others answer that they do not lead.
    async fn read(&self) -> anyhow::Result<Vec<Workload>> {
        let mut outcome = Err(anyhow::anyhow!("the name has no address"));
        for address in tokio::net::lookup_host(&self.address).await?.take(TRIES) {
            outcome = self.read_from(address).await;
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    async fn read_from(&self, address: SocketAddr) -> anyhow::Result<Vec<Workload>> {
        let mut answer = self.client.get(format!("http://{address}{PATH}")).send().await?;
        ensure!(answer.status() == StatusCode::OK, "status {}", answer.status().as_u16());
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await? {
            ensure!(body.len() + chunk.len() <= MAX_TEXT, "more than {MAX_TEXT} bytes");
            body.extend_from_slice(&chunk);
        }
        let text = str::from_utf8(&body).context("no text in UTF-8")?;
        Ok(Workloads::from_json(text)?.workloads)
    }
}

/// Has the learner go on from the last list of the leader before, once; if none was read since this replica led last,
/// from what it has learned itself.
pub(super) fn take_over(learner: &SharedLearner, list: &LeadersList, now: Timestamp) {
    // The list stays locked meanwhile, so that none learns or answers from a learner without it.
    let mut locked = list.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(workloads) = locked.take() else { return };
    let learned = |workload: Workload| Learned {
        id: workload.id(),
        used: workload.learned(),
        pod_minutes: workload.pod_minutes,
        last_seen: workload.last_seen,
    };
    let mut own = learner.lock().unwrap_or_else(PoisonError::into_inner);
    own.restore(workloads.into_iter().map(learned), now);
}
