//! What the kubelet's PodResources show, List and Get.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kubelet_api::podresources::pod_resources_lister_client::PodResourcesListerClient;
use kubelet_api::podresources::{GetPodResourcesRequest, ListPodResourcesRequest, PodResources};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::plugin::Ids;
use super::rig::RESOURCE;

/// The kubelet lets 100 calls a second through, for everybody together.
const NEXT_TOKEN: Duration = Duration::from_millis(11);

/// Devices of one resource by container.
pub type Held = BTreeMap<String, Ids>;

/// What List showed, by pod; or why it showed nothing.
pub type Seen = Result<BTreeMap<String, Held>, String>;

/// A PodResources socket.
#[derive(Debug, Clone)]
pub struct Records(PathBuf);

impl Records {
    /// The one at a path.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self(socket.to_owned())
    }

    async fn client(&self) -> Result<PodResourcesListerClient<Channel>, Status> {
        let failed = |error: tonic::transport::Error| Status::unavailable(error.to_string());
        let endpoint = Endpoint::from_shared(format!("unix://{}", self.0.display()));
        let channel = endpoint.map_err(failed)?.connect().await.map_err(failed)?;
        Ok(PodResourcesListerClient::new(channel))
    }

    /// List, or why there is no answer.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub async fn look(&self) -> Seen {
        let mut client = self.client().await.map_err(|status| status.to_string())?;
        loop {
            match client.list(ListPodResourcesRequest {}).await {
                Ok(answer) => {
                    let pods = answer.into_inner().pod_resources;
                    return Ok(pods.iter().map(|pod| (pod.name.clone(), held(pod))).collect());
                }
                Err(status) if status.code() == Code::ResourceExhausted => {}
                Err(status) => return Err(status.to_string()),
            }
            tokio::time::sleep(NEXT_TOKEN).await;
        }
    }

    /// Get; `None` where the kubelet knows no such pod.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub async fn get(&self, namespace: &str, pod: &str) -> Result<Option<Held>, String> {
        let mut client = self.client().await.map_err(|status| status.to_string())?;
        loop {
            let request = GetPodResourcesRequest {
                pod_name: pod.to_owned(),
                pod_namespace: namespace.to_owned(),
            };
            match client.get(request).await {
                Ok(answer) => return Ok(answer.into_inner().pod_resources.as_ref().map(held)),
                Err(status) if status.code() == Code::ResourceExhausted => {}
                Err(status) if status.message().contains("not found") => return Ok(None),
                Err(status) => return Err(status.to_string()),
            }
            tokio::time::sleep(NEXT_TOKEN).await;
        }
    }
}

fn held(pod: &PodResources) -> Held {
    let ids = |container: &kubelet_api::podresources::ContainerResources| {
        let ours = container.devices.iter().filter(|devices| devices.resource_name == RESOURCE);
        ours.flat_map(|devices| devices.device_ids.clone()).collect::<Ids>()
    };
    pod.containers.iter().map(|container| (container.name.clone(), ids(container))).collect()
}
