//! What the kubelet's PodResources show of the suite's pods, List and Get.

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

/// The kubelet lets 100 calls a second through, for everybody together.
const NEXT_TOKEN: Duration = Duration::from_millis(11);

/// Devices by container.
pub type Held = BTreeMap<String, Ids>;

/// What was shown at one moment, or why nothing.
pub type Seen = Result<Sight, String>;

/// What was shown at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sight {
    /// List, by pod.
    pub list: BTreeMap<String, Held>,
    /// Get, for each pod that List showed without any device.
    pub get: BTreeMap<String, Option<Held>>,
}

/// A PodResources socket, and the namespace whose pods are looked at.
#[derive(Debug, Clone)]
pub struct Records {
    socket: PathBuf,
    namespace: String,
}

impl Records {
    /// The ones at a path.
    #[must_use]
    pub fn new(socket: &Path, namespace: &str) -> Self {
        Self { socket: socket.to_owned(), namespace: namespace.to_owned() }
    }

    /// List and Get.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub(super) async fn look(&self) -> Seen {
        let list = self.list().await?;
        let mut get = BTreeMap::new();
        for (pod, _) in list.iter().filter(|(_, held)| held.values().all(Ids::is_empty)) {
            get.insert(pod.clone(), self.get(pod).await?);
        }
        Ok(Sight { list, get })
    }

    /// List.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub(super) async fn list(&self) -> Result<BTreeMap<String, Held>, String> {
        let mut client = self.client().await?;
        let answer = loop {
            match client.list(ListPodResourcesRequest {}).await {
                Err(status) if is_limit(&status) => tokio::time::sleep(NEXT_TOKEN).await,
                answer => break answer.map_err(|status| status.to_string())?.into_inner(),
            }
        };
        let ours = answer.pod_resources.iter().filter(|pod| pod.namespace == self.namespace);
        Ok(ours.map(|pod| (pod.name.clone(), held(pod))).collect())
    }

    /// Get; `None` where the kubelet knows no such pod.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub(super) async fn get(&self, pod: &str) -> Result<Option<Held>, String> {
        let mut client = self.client().await?;
        let request = GetPodResourcesRequest {
            pod_name: pod.to_owned(),
            pod_namespace: self.namespace.clone(),
        };
        let unknown = format!("pod {pod} in namespace {} not found", self.namespace);
        loop {
            match client.get(request.clone()).await {
                Ok(answer) => return Ok(answer.into_inner().pod_resources.as_ref().map(held)),
                Err(status) if is_limit(&status) => tokio::time::sleep(NEXT_TOKEN).await,
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

fn is_limit(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted
}

fn held(pod: &PodResources) -> Held {
    let ids = |container: &ContainerResources| {
        let ours = container.devices.iter().filter(|devices| devices.resource_name == RESOURCE);
        ours.flat_map(|devices| devices.device_ids.clone()).collect()
    };
    pod.containers.iter().map(|container| (container.name.clone(), ids(container))).collect()
}
