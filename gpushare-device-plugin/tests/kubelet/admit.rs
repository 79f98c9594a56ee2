//! Admission: for each container, ids from the pod's init containers first, then what the plugin
//! prefers, then any; then Allocate. (devicesToAllocate and Allocate in devicemanager/manager.go.)

use std::collections::{BTreeMap, BTreeSet};

use gpushare_device_plugin::wire::v1beta1::device_plugin_client::DevicePluginClient;
use gpushare_device_plugin::wire::v1beta1::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, PreStartContainerRequest, PreferredAllocationRequest,
};
use tonic::transport::Channel;

use super::{ContainerSpec, PodSpec, Shared};

/// Why a pod failed, or a container did not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmitError(pub String);

type Ids = BTreeSet<String>;

pub async fn admit(
    shared: &Shared,
    pod: PodSpec,
) -> Result<BTreeMap<String, ContainerAllocateResponse>, AdmitError> {
    let name = pod.name.clone();
    // Listed before it is admitted: podManager.AddPod.
    shared.account().add(pod.clone());
    let mut answers = BTreeMap::new();
    for container in pod.containers.iter().filter(|container| container.size > 0) {
        match container_devices(shared, &name, container).await {
            Ok(answer) => drop(answers.insert(container.name.clone(), answer)),
            Err(error) => {
                shared.account().remove(&name);
                return Err(error);
            }
        }
    }
    shared.account().write_checkpoint();
    Ok(answers)
}

async fn container_devices(
    shared: &Shared,
    pod: &str,
    container: &ContainerSpec,
) -> Result<ContainerAllocateResponse, AdmitError> {
    let mut client = client(shared)?;
    let ids = devices_to_allocate(shared, &mut client, pod, container).await?;
    let request = ContainerAllocateRequest { devices_ids: ids.iter().cloned().collect() };
    let answer = client.allocate(AllocateRequest { container_requests: vec![request] }).await;
    // Written down only now: until here the ids were in flight.
    let answer = answer.map_err(|status| AdmitError(status.message().to_owned()))?.into_inner();
    shared.account().hold(pod, &container.name, ids);
    Ok(answer.container_responses.into_iter().next().unwrap())
}

async fn devices_to_allocate(
    shared: &Shared,
    client: &mut DevicePluginClient<Channel>,
    pod: &str,
    container: &ContainerSpec,
) -> Result<Ids, AdmitError> {
    let size = container.size;
    shared.account().collect();
    let reusable = scattered(&shared.account().reusable(pod));
    let must: Ids = reusable.into_iter().take(size).collect();
    if must.len() == size {
        return Ok(must);
    }
    let available = available(shared);
    if available.len() + must.len() < size {
        return Err(AdmitError(format!("Requested: {size}, Available: {}", available.len())));
    }
    let preferred = preferred(client, &available, &must, size).await?;
    let mut ids = must;
    ids.extend(preferred.into_iter().filter(|id| available.contains(id)).take(size - ids.len()));
    let missing = size - ids.len();
    let rest = scattered(&available)
        .into_iter()
        .filter(|id| !ids.contains(id))
        .take(missing)
        .collect::<Vec<_>>();
    ids.extend(rest);
    shared.account().taken.extend(ids.clone());
    Ok(ids)
}

async fn preferred(
    client: &mut DevicePluginClient<Channel>,
    available: &Ids,
    must: &Ids,
    size: usize,
) -> Result<Vec<String>, AdmitError> {
    let request = ContainerPreferredAllocationRequest {
        available_device_i_ds: available.union(must).cloned().collect(),
        must_include_device_i_ds: must.iter().cloned().collect(),
        allocation_size: i32::try_from(size).unwrap(),
    };
    let request = PreferredAllocationRequest { container_requests: vec![request] };
    let answer = client.get_preferred_allocation(request).await;
    let answer =
        answer.map_err(|status| AdmitError(format!("GetPreferredAllocation failed: {status}")))?;
    Ok(answer.into_inner().container_responses.remove(0).device_i_ds)
}

fn available(shared: &Shared) -> Ids {
    let endpoint = shared.endpoint.borrow();
    let listed = endpoint.iter().flat_map(|endpoint| &endpoint.devices);
    let healthy = listed.filter(|(_, healthy)| **healthy).map(|(id, _)| id.clone());
    let account = shared.account();
    healthy.filter(|id| !account.taken.contains(id)).collect()
}

/// In an order that looks random and is the same in every run: the kubelet takes from Go maps.
fn scattered(ids: &Ids) -> Vec<String> {
    let key = |id: &String| {
        id.bytes()
            .fold(17_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()) ^ hash >> 7)
    };
    let mut ids: Vec<String> = ids.iter().cloned().collect();
    ids.sort_by_key(key);
    ids
}

pub async fn prestart(shared: &Shared, pod: &str, container: &str) -> Result<(), AdmitError> {
    let devices_ids: Vec<String> = shared.account().ids(pod, container).into_iter().collect();
    if devices_ids.is_empty() {
        return Ok(());
    }
    let answer =
        client(shared)?.pre_start_container(PreStartContainerRequest { devices_ids }).await;
    answer.map(drop).map_err(|status| AdmitError(status.message().to_owned()))
}

fn client(shared: &Shared) -> Result<DevicePluginClient<Channel>, AdmitError> {
    let endpoint = shared.endpoint.borrow();
    let client = endpoint.as_ref().map(|endpoint| endpoint.client.clone());
    client.ok_or_else(|| AdmitError("no healthy devices present; cannot allocate".to_owned()))
}
