//! A client of the kubelet's PodResources API: which container holds which devices.
//!
//! The kubelet limits List and Get together to 100 calls a second with a burst of 10, for all clients on the node. A
//! call that this limit rejects is retried every 11 ms, at most 90 times, and so is a call while no kubelet listens: a
//! restarted kubelet may admit a pod some milliseconds before it listens.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use cluster::DeviceName;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::gpus::ids::{DeviceId, Ids};
use crate::pods::PodRef;
use kubelet_api::podresources::pod_resources_lister_client::PodResourcesListerClient;
use kubelet_api::podresources::{
    ContainerResources, GetPodResourcesRequest, ListPodResourcesRequest, PodResources,
};

/// Pause before a retry of a rejected call: the rate limit admits one call every 10 ms.
const RETRY_PAUSE: Duration = Duration::from_millis(11);
/// Attempts of a call that the rate limit rejects, or that finds no kubelet, before it fails.
const MAX_CALLS: u32 = 90;
/// Time for one response, retries included. The kubelet waits for this plugin meanwhile, and admits no other pod; where
/// this ends, the pod is refused for good. So it is what a kubelet needs on a node without a free processor.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// The largest response, in bytes: enough for a node of 100,000 units. gRPC's default of 4 MiB is enough for
/// half of that.
const MAX_MESSAGE: usize = 16 << 20;

/// A pod in the kubelet's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPod {
    /// Namespace and name; PodResources has no UIDs.
    pub pod: PodRef,
    /// Ids of our resource by container. A container without ids has an empty set; init containers are
    /// missing.
    pub containers: BTreeMap<String, Ids>,
}

impl ListedPod {
    /// The ids of all its containers.
    pub fn ids(&self) -> impl Iterator<Item = &DeviceId> {
        self.containers.values().flatten()
    }
}

/// The kubelet's response about one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// The pod as the kubelet lists it.
    Pod(ListedPod),
    /// The kubelet has no pod of that name.
    Absent,
    /// The kubelet does not serve Get, which is disabled by default before v1.34.
    Unsupported,
}

/// The devices that containers have by resource claims, by the container's name. Init containers are missing.
pub type ClaimedDevices = BTreeMap<String, Vec<DeviceName>>;

type Client = PodResourcesListerClient<Channel>;

/// A client of the kubelet's PodResources socket. It connects with the first call, and again after the
/// kubelet restarted.
#[derive(Debug, Clone)]
pub struct PodResourcesClient {
    client: Client,
    resource: String,
}

impl PodResourcesClient {
    /// A client of the socket at `path`. It reads the devices of `resource` only.
    ///
    /// # Errors
    /// When the path cannot be part of an address.
    pub fn new(path: &Path, resource: &str) -> Result<Self, tonic::transport::Error> {
        let channel = Endpoint::from_shared(format!("unix://{}", path.display()))?.connect_lazy();
        let client = PodResourcesListerClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        Ok(Self { client, resource: resource.to_owned() })
    }

    /// List: every active pod.
    ///
    /// Do not call it while a device plugin of the node may be answering Allocate: List makes the kubelet
    /// forget the ids of that call (kubernetes/kubernetes#137534). It is safe during
    /// GetPreferredAllocation, since the kubelet admits one pod at a time.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub async fn list(&self) -> Result<Vec<ListedPod>, Status> {
        let listed = self.repeat(async |mut client| client.list(ListPodResourcesRequest {}).await);
        let pods = listed.await?.into_inner().pod_resources;
        Ok(pods.into_iter().map(|pod| self.pod(pod)).collect())
    }

    /// Get: one pod.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub async fn get(&self, pod: &PodRef) -> Result<Record, Status> {
        match self.ask(pod).await {
            Ok(Some(pod)) => Ok(Record::Pod(self.pod(pod))),
            Ok(None) => Ok(Record::Absent),
            Err(status) => unanswered(status),
        }
    }

    /// Get: the devices of one pod by resource claims; `None` where the kubelet has no pod of that name, or does not
    /// serve Get.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub async fn claimed_devices(&self, pod: &PodRef) -> Result<Option<ClaimedDevices>, Status> {
        match self.ask(pod).await {
            Ok(found) => Ok(found.map(claimed_devices)),
            Err(status) => unanswered(status).map(|_| None),
        }
    }

    async fn ask(&self, pod: &PodRef) -> Result<Option<PodResources>, Status> {
        let got = self.repeat(async |mut client| {
            let request = GetPodResourcesRequest {
                pod_name: pod.name.clone(),
                pod_namespace: pod.namespace.clone(),
            };
            client.get(request).await
        });
        Ok(got.await?.into_inner().pod_resources)
    }

    /// Calls until there is an answer, within [`ANSWER_TIMEOUT`].
    async fn repeat<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        match timeout(ANSWER_TIMEOUT, self.try_repeatedly(call)).await {
            Ok(answer) => answer,
            Err(_) => Err(Status::deadline_exceeded(format!(
                "the kubelet did not answer within {ANSWER_TIMEOUT:?}"
            ))),
        }
    }

    async fn try_repeatedly<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        for _ in 1..MAX_CALLS {
            match call(self.client.clone()).await {
                // The kubelet's rate limit, or the kubelet starts.
                Err(status)
                    if matches!(status.code(), Code::ResourceExhausted | Code::Unavailable) => {}
                answer => return answer,
            }
            sleep(RETRY_PAUSE).await;
        }
        call(self.client.clone()).await
    }

    fn pod(&self, pod: PodResources) -> ListedPod {
        let mut containers = BTreeMap::new();
        for container in pod.containers {
            let ids = self.ids(&container);
            containers.insert(container.name, ids);
        }
        ListedPod { pod: PodRef { namespace: pod.namespace, name: pod.name }, containers }
    }

    /// The device ids of our resource. Ids that do not parse, from a plugin that served the resource before,
    /// are on none of our GPUs and are left out.
    fn ids(&self, container: &ContainerResources) -> Ids {
        let ours =
            container.devices.iter().filter(|devices| devices.resource_name == self.resource);
        ours.flat_map(|devices| &devices.device_ids).filter_map(|id| id.parse().ok()).collect()
    }
}

fn claimed_devices(pod: PodResources) -> ClaimedDevices {
    let mut claimed = ClaimedDevices::new();
    for container in pod.containers {
        let devices = claimed.entry(container.name).or_default();
        for resource in container.dynamic_resources.into_iter().flat_map(|of| of.claim_resources) {
            devices.push(DeviceName {
                driver: resource.driver_name,
                pool: resource.pool_name,
                device: resource.device_name,
            });
        }
    }
    claimed
}

/// The kubelet's errors all have the code Unknown and differ in their text
/// (pkg/kubelet/apis/podresources/server_v1.go).
fn unanswered(status: Status) -> Result<Record, Status> {
    match status.message() {
        text if text.contains("not found") => Ok(Record::Absent),
        text if text.contains("disabled") || status.code() == Code::Unimplemented => {
            Ok(Record::Unsupported)
        }
        _ => Err(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_is_not_found_differs_from_a_get_that_is_switched_off() {
        for (text, record) in [
            ("pod p in namespace n not found", Some(Record::Absent)),
            ("PodResources API Get method disabled", Some(Record::Unsupported)),
            ("transport error", None),
        ] {
            assert_eq!(unanswered(Status::unknown(text)).ok(), record, "{text}");
        }
    }
}
