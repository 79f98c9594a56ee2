//! Reads explain and shadow from the other replicas.
//!
//! kube-scheduler sends its requests to one replica, and after a restart or a takeover to another. So any replica may
//! have the decision about a pod.

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

/// Other replicas at most.
const MAX_REPLICAS: usize = 8;

/// The timeout of listing their endpoints.
const LIST_TIMEOUT: Duration = Duration::from_secs(2);

/// The timeout of one replica's whole answer. Operators wait for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The largest answer: explain's for 5,000 nodes with 8 GPUs each takes some 30 MiB.
const MAX_ANSWER: usize = 64 << 20;

/// The other replicas, found by their Service.
pub struct OtherReplicas {
    cluster: Client,
    service: ServicePort,
    /// The addresses of this replica.
    own: Vec<SocketAddr>,
    client: reqwest::Client,
}

/// What the other replicas answered.
#[derive(Debug, Default)]
pub(crate) struct OtherAnswers {
    /// The bodies of the answers of status 200.
    pub(crate) bodies: Vec<Vec<u8>>,
    /// The addresses of replicas that gave no such answer, or the Service where its endpoints cannot be read.
    pub(crate) missing: Vec<String>,
}

/// Why a replica gave no answer.
#[derive(Debug, thiserror::Error)]
enum QueryError {
    #[error("no answer in time")]
    Silent,
    #[error(transparent)]
    Answer(#[from] AnswerError),
}

impl OtherReplicas {
    /// The replicas behind the Service, without this one, whose addresses are `own`.
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

    /// Sends a request to all other replicas, a POST if there is a body. A replica that does not answer is logged.
    pub(crate) async fn query(&self, path: &str, body: Option<&Bytes>) -> OtherAnswers {
        let found = match list_endpoints(&self.cluster, &self.service, LIST_TIMEOUT).await {
            Ok(found) => found,
            Err(error) => {
                let ServicePort { namespace, name, .. } = &self.service;
                tracing::warn!(
                    "the endpoints of Service {namespace}/{name} cannot be read: {error}"
                );
                let missing = vec![format!("Service {namespace}/{name}")];
                return OtherAnswers { missing, ..OtherAnswers::default() };
            }
        };
        let others: BTreeSet<_> = found.into_iter().filter(|at| !self.own.contains(at)).collect();
        let ask = |at| async move { (at, self.query_one(at, path, body).await) };
        let mut all = OtherAnswers::default();
        for (at, answer) in join_all(others.into_iter().take(MAX_REPLICAS).map(ask)).await {
            match answer {
                Ok((StatusCode::OK, body)) => all.bodies.push(body),
                // It has nothing to tell, as of a pod that it does not know, or is of an older version.
                Ok(_) => all.missing.push(at.to_string()),
                Err(error) => {
                    tracing::warn!("no answer to {path} from the replica at {at}: {error}");
                    all.missing.push(at.to_string());
                }
            }
        }
        all
    }

    /// The status and the body of one replica's answer.
    async fn query_one(
        &self,
        at: SocketAddr,
        path: &str,
        body: Option<&Bytes>,
    ) -> Result<(StatusCode, Vec<u8>), QueryError> {
        let url = format!("http://{at}{path}");
        let request = match body {
            Some(body) => self.client.post(url).body(body.clone()),
            None => self.client.get(url),
        };
        let answer = async {
            let answer = request.header(FORWARDED, "1").send().await.map_err(AnswerError::from)?;
            let status = answer.status();
            Ok((status, http_client::body(answer, MAX_ANSWER).await?))
        };
        timeout(ANSWER_TIMEOUT, answer).await.unwrap_or(Err(QueryError::Silent))
    }
}
