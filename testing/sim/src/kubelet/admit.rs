//! Admission of a pod: for each container, ids of the pod's init containers first, then those that the plugin prefers,
//! then any; then Allocate. (`devicesToAllocate` and `Allocate` in devicemanager/manager.go.)

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use kubelet_api::v1beta1::device_plugin_client::DevicePluginClient;
use kubelet_api::v1beta1::{
    AllocateRequest, ContainerAllocateRequest, ContainerPreferredAllocationRequest,
    DevicePluginOptions, PreStartContainerRequest, PreferredAllocationRequest,
};
use tonic::Status;
use tonic::transport::Channel;

use super::account::{Answers, ContainerSpec, Ids, PodKey, PodSpec};
use super::device_manager::Shared;

/// Why a pod was not admitted, or a container did not start, in the kubelet's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AdmitError(pub String);

pub(super) async fn admit(
    shared: &Shared,
    pod: &PodSpec,
    running: &BTreeSet<String>,
) -> Result<Answers, AdmitError> {
    // The kubelet lists a pod before it is admitted: podManager.AddPod.
    shared.account().add(pod.clone());
    let admitted = containers(shared, pod, running).await;
    if let Err(error) = admitted {
        shared.account().remove(&pod.key());
        return Err(error);
    }
    Ok(shared.account().answers(&pod.key()))
}

async fn containers(
    shared: &Shared,
    pod: &PodSpec,
    running: &BTreeSet<String>,
) -> Result<(), AdmitError> {
    let key = pod.key();
    // The device manager ignores a resource that no plugin has ever registered.
    if !shared.knows_the_resource() {
        return Ok(());
    }
    for container in pod.containers.iter().filter(|container| container.size > 0) {
        // A container that ran before the kubelet's restart is left as it is, whatever the kubelet knows of it.
        if running.contains(&container.name) {
            continue;
        }
        let held = shared.account().ids(&key, &container.name);
        if held.is_empty() {
            allocate(shared, &key, container).await?;
        } else {
            check_health(shared, &held)?;
        }
    }
    Ok(())
}

/// Whether a container that held devices before the kubelet's restart may start again with them.
fn check_health(shared: &Shared, held: &Ids) -> Result<(), AdmitError> {
    let healthy = healthy(shared);
    let resource = &shared.resource;
    let what = if healthy.is_empty() {
        "no healthy devices present"
    } else if !healthy.is_superset(held) {
        "previously allocated devices are no longer healthy"
    } else {
        return Ok(());
    };
    Err(AdmitError(format!("{what}; cannot allocate unhealthy devices {resource}")))
}

async fn allocate(
    shared: &Shared,
    pod: &PodKey,
    container: &ContainerSpec,
) -> Result<(), AdmitError> {
    let (mut client, options) = plugin(shared)?;
    let ids = devices_to_allocate(shared, &mut client, options, pod, container).await?;
    let request = ContainerAllocateRequest { devices_ids: ids.iter().cloned().collect() };
    let answer = client.allocate(AllocateRequest { container_requests: vec![request] }).await;
    let answer = answer.map_err(|status| unexpected("Allocate", &status))?.into_inner();
    if shared.forgets.swap(false, Ordering::Relaxed) {
        return Err(AdmitError("died before it recorded the answer to Allocate".to_owned()));
    }
    let first = answer.container_responses.into_iter().next();
    let first =
        first.ok_or_else(|| AdmitError("Allocate returned no container response".to_owned()))?;
    // Only now does the account show them: until here they count as taken without a pod.
    shared.account().hold(pod, &container.name, ids, first);
    shared.write_checkpoint();
    Ok(())
}

fn unexpected(call: &str, status: &Status) -> AdmitError {
    let code = status.code();
    let text = status.message();
    AdmitError(format!(
        "{call} failed due to rpc error: code = {code:?} desc = {text}, which is unexpected"
    ))
}

async fn devices_to_allocate(
    shared: &Shared,
    client: &mut DevicePluginClient<Channel>,
    options: DevicePluginOptions,
    pod: &PodKey,
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
    let needed = size - must.len();
    if available.len() < needed {
        let resource = &shared.resource;
        let count = available.len();
        return Err(AdmitError(format!(
            "requested number of devices unavailable for {resource}. Requested: {needed}, Available: {count}"
        )));
    }
    let preferred = if options.get_preferred_allocation_available {
        preferred(client, &available, &must, size).await?
    } else {
        Vec::new()
    };
    let mut ids = must;
    ids.extend(preferred.into_iter().filter(|id| available.contains(id)).take(size - ids.len()));
    let rest = scattered(&available).into_iter().filter(|id| !ids.contains(id));
    let rest: Vec<String> = rest.take(size.saturating_sub(ids.len())).collect();
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
        allocation_size: i32::try_from(size).unwrap_or(i32::MAX),
    };
    let request = PreferredAllocationRequest { container_requests: vec![request] };
    let answer = client.get_preferred_allocation(request).await;
    let answer = answer.map_err(|status| unexpected("GetPreferredAllocation", &status))?;
    let first = answer.into_inner().container_responses.into_iter().next();
    Ok(first.map(|first| first.device_i_ds).unwrap_or_default())
}

fn available(shared: &Shared) -> Ids {
    let healthy = healthy(shared);
    healthy.difference(&shared.account().taken).cloned().collect()
}

pub(super) fn healthy(shared: &Shared) -> Ids {
    let endpoint = shared.endpoint.borrow();
    let listed = endpoint.iter().flat_map(|endpoint| &endpoint.devices);
    listed.filter(|(_, healthy)| **healthy).map(|(id, _)| id.clone()).collect()
}

/// The ids in an order that looks random and is the same in every run. The kubelet takes them from Go maps.
fn scattered(ids: &Ids) -> Vec<String> {
    let mut ids: Vec<String> = ids.iter().cloned().collect();
    ids.sort_by_key(|id| {
        id.bytes().fold(17, |hash: u32, byte: u8| {
            hash.wrapping_mul(31).wrapping_add(byte.into()) ^ (hash >> 7)
        })
    });
    ids
}

pub(super) async fn prestart(
    shared: &Shared,
    pod: &PodKey,
    container: &str,
) -> Result<(), AdmitError> {
    if !shared.knows_the_resource() || !shared.account().asks(pod, container) {
        return Ok(());
    }
    let (mut client, options) = plugin(shared)?;
    if !options.pre_start_required {
        return Ok(());
    }
    let devices_ids: Vec<String> = shared.account().ids(pod, container).into_iter().collect();
    if devices_ids.is_empty() {
        let resource = &shared.resource;
        return Err(AdmitError(format!(
            "no devices found allocated in local cache for container {container}, resource {resource}"
        )));
    }
    let answer = client.pre_start_container(PreStartContainerRequest { devices_ids }).await;
    answer.map(drop).map_err(|status| AdmitError(status.message().to_owned()))
}

fn plugin(
    shared: &Shared,
) -> Result<(DevicePluginClient<Channel>, DevicePluginOptions), AdmitError> {
    let endpoint = shared.endpoint.borrow();
    let plugin = endpoint.as_ref().map(|endpoint| (endpoint.client.clone(), endpoint.options));
    let resource = &shared.resource;
    plugin.ok_or_else(|| {
        AdmitError(format!(
            "no healthy devices present; cannot allocate unhealthy devices {resource}"
        ))
    })
}
