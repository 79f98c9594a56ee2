//! The kubelet's own record of who holds which devices (PodResources).
//!
//! List and Get share a budget of 100 calls a second with everybody on the node; what is turned
//! away for that is asked again after the 11 ms in which the next token comes, for a second at
//! most.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::metrics::Metrics;
use crate::pods::PodRef;
use crate::records::{Ids, ListedPod};
use kubelet_api::podresources::pod_resources_lister_client::PodResourcesListerClient;
use kubelet_api::podresources::{
    ContainerResources, GetPodResourcesRequest, ListPodResourcesRequest, PodResources,
};

/// The kubelet's limiter gives a token every 10 ms.
const NEXT_TOKEN: Duration = Duration::from_millis(11);
/// A hundred tokens: whoever is still turned away then meets something else than a burst.
const TRIES: u32 = 90;
/// A kubelet that does not answer within this is as good as gone; it waits for us, too.
const LIMIT: Duration = Duration::from_secs(5);
/// Room for a node of 100,000 units, where gRPC's default of 4 MiB ends at half of that.
const MAX_MESSAGE: usize = 16 << 20;

/// What the kubelet has written down of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// This.
    Pod(ListedPod),
    /// It knows no pod of that name.
    Absent,
    /// It does not tell of single pods: before v1.34 that is switched off.
    Untold,
}

/// A client of the kubelet's PodResources socket. It connects when needed, and anew when the
/// kubelet restarts.
#[derive(Debug, Clone)]
pub struct KubeletRecords {
    client: PodResourcesListerClient<Channel>,
    resource: String,
    metrics: Metrics,
}

impl KubeletRecords {
    /// A client of the socket at `path`, reading devices of `resource`.
    ///
    /// # Errors
    /// When the path cannot be written as an address.
    pub fn new(
        path: &Path,
        resource: &str,
        metrics: Metrics,
    ) -> Result<Self, tonic::transport::Error> {
        let channel = Endpoint::from_shared(format!("unix://{}", path.display()))?.connect_lazy();
        let client = PodResourcesListerClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        Ok(Self { client, resource: resource.to_owned(), metrics })
    }

    /// Every active pod. To be called from GetPreferredAllocation only, or while no Allocate can be
    /// under way: List makes the kubelet forget ids in flight (kubernetes/kubernetes#137534).
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub async fn list(&self) -> Result<Vec<ListedPod>, Status> {
        let call = || {
            let mut client = self.client.clone();
            async move { client.list(ListPodResourcesRequest {}).await }
        };
        let pods = self.patiently(call).await?.into_inner().pod_resources;
        Ok(pods.into_iter().map(|pod| self.pod(pod)).collect())
    }

    /// One pod.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub async fn get(&self, pod: &PodRef) -> Result<Record, Status> {
        let call = || {
            let mut client = self.client.clone();
            let request = GetPodResourcesRequest {
                pod_name: pod.name.clone(),
                pod_namespace: pod.namespace.clone(),
            };
            async move { client.get(request).await }
        };
        match self.patiently(call).await {
            Ok(answer) => Ok(match answer.into_inner().pod_resources {
                Some(pod) => Record::Pod(self.pod(pod)),
                None => Record::Absent,
            }),
            Err(status) => unanswered(status),
        }
    }

    async fn patiently<T, F>(&self, call: impl Fn() -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let tries = async {
            for _ in 1..TRIES {
                match call().await {
                    Err(status) if status.code() == Code::ResourceExhausted => {
                        self.metrics.record_retries.inc()
                    }
                    answer => return answer,
                };
                tokio::time::sleep(NEXT_TOKEN).await;
            }
            call().await
        };
        let late = |_| {
            Err(Status::deadline_exceeded(format!("the kubelet did not answer within {LIMIT:?}")))
        };
        tokio::time::timeout(LIMIT, tries).await.unwrap_or_else(late)
    }

    fn pod(&self, pod: PodResources) -> ListedPod {
        let ids = |container: ContainerResources| (container.name.clone(), self.ids(&container));
        let containers: BTreeMap<String, Ids> = pod.containers.into_iter().map(ids).collect();
        ListedPod { pod: PodRef { namespace: pod.namespace, name: pod.name }, containers }
    }

    /// Ids that are not ours in form (another plugin served this resource before) are on none of
    /// our cards.
    fn ids(&self, container: &ContainerResources) -> Ids {
        let ours =
            container.devices.iter().filter(|devices| devices.resource_name == self.resource);
        ours.flat_map(|devices| &devices.device_ids).filter_map(|id| id.parse().ok()).collect()
    }
}

/// The kubelet tells by words alone (pkg/kubelet/apis/podresources/server_v1.go, code Unknown).
fn unanswered(status: Status) -> Result<Record, Status> {
    match status.message() {
        text if text.contains("not found") => Ok(Record::Absent),
        text if text.contains("disabled") || status.code() == Code::Unimplemented => {
            Ok(Record::Untold)
        }
        _ => Err(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_that_tells_nothing_is_not_one_that_knows_nothing() {
        let answer = |text: &str| unanswered(Status::unknown(text)).ok();
        assert_eq!(answer("pod p in namespace n not found"), Some(Record::Absent));
        assert_eq!(answer("PodResources API Get method disabled"), Some(Record::Untold));
        assert_eq!(answer("transport error"), None);
    }
}
