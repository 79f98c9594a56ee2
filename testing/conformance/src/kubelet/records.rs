//! The kubelet's records of the suite's pods, by List and Get of the PodResources API.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kubelet_api::podresources::pod_resources_lister_client::PodResourcesListerClient;
use kubelet_api::podresources::{
    ContainerResources, GetPodResourcesRequest, ListPodResourcesRequest, PodResources,
};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::plugin::Ids;
use super::rig::RESOURCE;

/// Wait after a call that the rate limit rejected. The kubelet allows 100 calls a second of all clients together.
const RATE_LIMITED: Duration = Duration::from_millis(11);

/// Device ids by container.
pub type DevicesByContainer = BTreeMap<String, Ids>;

/// The records at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The answer of List, by pod.
    pub list: BTreeMap<String, DevicesByContainer>,
    /// The answer of Get for each pod that List shows without any device; `None` where Get does not know it.
    pub get: BTreeMap<String, Option<DevicesByContainer>>,
}

/// A client of PodResources, for the pods of one namespace.
#[derive(Debug, Clone)]
pub struct Records {
    socket: PathBuf,
    namespace: String,
}

impl Records {
    /// A client of the socket at this path.
    #[must_use]
    pub fn new(socket: &Path, namespace: &str) -> Self {
        Self { socket: socket.to_owned(), namespace: namespace.to_owned() }
    }

    /// Calls List, then Get for the pods without devices.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub(super) async fn shown(&self) -> Result<Shown, String> {
        let list = self.list().await?;
        let mut get = BTreeMap::new();
        for (pod, _) in list.iter().filter(|(_, devices)| devices.values().all(Ids::is_empty)) {
            get.insert(pod.clone(), self.get(pod).await?);
        }
        Ok(Shown { list, get })
    }

    /// Calls List.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub(super) async fn list(&self) -> Result<BTreeMap<String, DevicesByContainer>, String> {
        let mut client = self.client().await?;
        let answer = loop {
            match client.list(ListPodResourcesRequest {}).await {
                Err(status) if is_rate_limit(&status) => tokio::time::sleep(RATE_LIMITED).await,
                answer => break answer.map_err(|status| status.to_string())?.into_inner(),
            }
        };
        let ours = answer.pod_resources.iter().filter(|pod| pod.namespace == self.namespace);
        Ok(ours.map(|pod| (pod.name.clone(), devices_of(pod))).collect())
    }

    /// Calls Get. `None` where the kubelet does not know the pod.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub(super) async fn get(&self, pod: &str) -> Result<Option<DevicesByContainer>, String> {
        let mut client = self.client().await?;
        let request = GetPodResourcesRequest {
            pod_name: pod.to_owned(),
            pod_namespace: self.namespace.clone(),
        };
        let unknown = format!("pod {pod} in namespace {} not found", self.namespace);
        loop {
            match client.get(request.clone()).await {
                Ok(answer) => {
                    return Ok(answer.into_inner().pod_resources.as_ref().map(devices_of));
                }
                Err(status) if is_rate_limit(&status) => tokio::time::sleep(RATE_LIMITED).await,
                Err(status) if status.message() == unknown => return Ok(None),
                Err(status) => return Err(status.to_string()),
            }
        }
    }

    async fn client(&self) -> Result<PodResourcesListerClient<Channel>, String> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", self.socket.display()));
        let channel = endpoint.map_err(|error| error.to_string())?.connect().await;
        channel.map(PodResourcesListerClient::new).map_err(|error| error.to_string())
    }
}

fn is_rate_limit(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted
}

fn devices_of(pod: &PodResources) -> DevicesByContainer {
    pod.containers.iter().map(|container| (container.name.clone(), ids_of(container))).collect()
}

fn ids_of(container: &ContainerResources) -> Ids {
    let ours = container.devices.iter().filter(|devices| devices.resource_name == RESOURCE);
    ours.flat_map(|devices| devices.device_ids.clone()).collect()
}
