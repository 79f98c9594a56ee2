//! The list of workloads that the leading replica serves, read by the others: a new leader serves it as well, until it
//! has learned as much itself.
//!
//! Invariant: a list is taken over as a whole or not at all, and the last good one stays.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use api::workloads::{MAX_TEXT, MAX_WORKLOADS, Workload, Workloads};
use cluster::Leadership;
use daemon::Shutdown;
use jiff::{SignedDuration, Timestamp};
use placement::learning::Limits;
use placement::workload::{MOST_POD_MINUTES, WorkloadId, claimed_evidence, outweighs};
use reqwest::{Client, StatusCode, redirect};

use super::PATH;
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

/// The leader's last list, which the reader fills and the server reads.
pub(crate) type LeadersList = Arc<Mutex<Vec<Workload>>>;

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
            Ok(mut workloads) => {
                let now = self.clock.now();
                for workload in &mut workloads {
                    limit_claims(workload, now);
                }
                *self.list.lock().unwrap_or_else(PoisonError::into_inner) = workloads;
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

/// Bounds what a list claims about a workload when it is received at `now`: a time in the future would stay the newest
/// one, and be passed on to the next leader.
fn limit_claims(workload: &mut Workload, now: Timestamp) {
    workload.last_seen = workload.last_seen.min(now);
    workload.pod_minutes = workload.pod_minutes.min(MOST_POD_MINUTES);
}

/// What was learned, and what the list of an earlier leader has beyond it: workloads that are not learned, or about
/// which it has more evidence.
pub(super) fn add_earlier(
    mut learned: Vec<Workload>,
    earlier: &[Workload],
    now: Timestamp,
) -> Vec<Workload> {
    let max_age = Limits::default().max_age;
    let ids = learned.iter().map(Workload::id);
    let positions: HashMap<WorkloadId, usize> = ids.zip(0..).collect();
    for workload in earlier {
        if now.duration_since(workload.last_seen) > max_age {
            continue;
        }
        if let Some(position) = positions.get(&workload.id()) {
            let own = &mut learned[*position];
            if outweighs(evidence(workload, now), evidence(own, now)) {
                *own = workload.clone();
            }
        } else if learned.len() < MAX_WORKLOADS {
            learned.push(workload.clone());
        }
    }
    learned
}

fn evidence(workload: &Workload, now: Timestamp) -> f64 {
    claimed_evidence(workload.pod_minutes, workload.last_seen, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(name: &str, pod_minutes: f64, last_seen: Timestamp) -> Workload {
        let id = WorkloadId {
            namespace: "shop".into(),
            kind: "StatefulSet".into(),
            name: name.into(),
            template: 1,
        };
        Workload::new(&id, &Default::default(), pod_minutes, last_seen)
    }

    #[test]
    fn an_earlier_leaders_list_counts_until_as_much_is_learned() {
        let now = Timestamp::from_second(1_795_165_200).unwrap();
        let earlier = [
            ("day", 900.0, 12),
            ("outgrown", 900.0, 12),
            ("cron", 60.0, 20),
            ("gone", 900.0, 15 * 24),
        ];
        let earlier = earlier.map(|(name, pod_minutes, hours)| {
            workload(name, pod_minutes, now - SignedDuration::from_hours(hours))
        });
        let learned = vec![
            workload("day", 600.0, now),
            workload("outgrown", 640.0, now),
            workload("new", 5.0, now),
        ];
        let all = add_earlier(learned, &earlier, now);
        let minutes: Vec<_> = all.iter().map(|it| (it.name.as_str(), it.pod_minutes)).collect();
        assert_eq!(minutes, [("day", 900.0), ("outgrown", 640.0), ("new", 5.0), ("cron", 60.0)]);
    }

    #[test]
    fn no_list_grows_without_bound() {
        let now = Timestamp::from_second(1_795_165_200).unwrap();
        let mut all: Vec<Workload> = (0..5_000 + MAX_WORKLOADS)
            .map(|number| workload(&format!("w{number}"), 9.0, now))
            .collect();
        let earlier = all[5_000..].to_vec();
        all.truncate(MAX_WORKLOADS);
        assert_eq!(add_earlier(all, &earlier, now).len(), MAX_WORKLOADS);
    }
}
