//! Asking the other replicas what kube-scheduler has asked them.
//!
//! kube-scheduler stays at one replica, and after a restart or a takeover at another. So what a pod was decided by may be known
//! to any of them, and each asks the others before it tells.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::StatusCode;
use cluster::{Client, ServicePort, list_endpoints};
use futures::future::join_all;
use tokio::time::timeout;

use super::FORWARDED;
use crate::http_client::{self, AnswerError, SetupError};

/// The others at most.
const MOST: usize = 8;

/// For reading where they are.
const LIST: Duration = Duration::from_secs(2);

/// For one's whole answer. Operators wait for it.
const ANSWER: Duration = Duration::from_secs(3);

/// The largest answer: explain's for 5,000 nodes with 8 cards each takes some 30 MiB.
const MAX_ANSWER: usize = 64 << 20;

/// The other replicas, found by their Service.
pub struct Others {
    cluster: Client,
    service: ServicePort,
    /// Where this replica answers.
    own: Vec<SocketAddr>,
    client: reqwest::Client,
}

/// Why one gave no answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("no answer in time")]
    Silent,
    #[error(transparent)]
    Answer(#[from] AnswerError),
}

impl Others {
    /// Those behind the Service but for this one, which answers at `own`.
    ///
    /// # Errors
    ///
    /// Where no HTTP client can be set up.
    pub fn new(
        cluster: Client,
        service: ServicePort,
        own: Vec<SocketAddr>,
    ) -> Result<Self, SetupError> {
        let client = http_client::builder()?.pool_max_idle_per_host(0).build()?;
        Ok(Self { cluster, service, own, client })
    }

    /// The bodies of the answers of status 200 to a question, a POST where it has a body. A replica that does not answer is left
    /// out, and logged.
    pub(crate) async fn ask(&self, path: &str, question: Option<&Bytes>) -> Vec<Vec<u8>> {
        let found = match list_endpoints(&self.cluster, &self.service, LIST).await {
            Ok(found) => found,
            Err(error) => {
                let ServicePort { namespace, name, .. } = &self.service;
                tracing::warn!(
                    "the endpoints of Service {namespace}/{name} cannot be read: {error}"
                );
                return Vec::new();
            }
        };
        let found: BTreeSet<_> = found.into_iter().filter(|at| !self.own.contains(at)).collect();
        let answers = found.into_iter().take(MOST).map(|at| self.ask_one(at, path, question));
        join_all(answers).await.into_iter().flatten().collect()
    }

    async fn ask_one(
        &self,
        at: SocketAddr,
        path: &str,
        question: Option<&Bytes>,
    ) -> Option<Vec<u8>> {
        let url = format!("http://{at}{path}");
        let request = match question {
            Some(body) => self.client.post(url).body(body.clone()),
            None => self.client.get(url),
        };
        let answer = async {
            let answer = request.header(FORWARDED, "1").send().await.map_err(AnswerError::from)?;
            let status = answer.status();
            Ok((status, http_client::body(answer, MAX_ANSWER).await?))
        };
        match timeout(ANSWER, answer).await.unwrap_or(Err(Failure::Silent)) {
            Ok((status, body)) => (status == StatusCode::OK).then_some(body),
            Err(error) => {
                tracing::warn!("another replica was asked for {path}: {at}: {error}");
                None
            }
        }
    }
}
