//! The gRPC service that the kubelet calls.
//!
//! Invariant: a stream of the device list begins with the current list and always sends the newest list;
//! intermediate lists may be skipped.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, stream};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::admission::Admission;
use crate::admission::prestart::StartError;
use crate::cards::{Card, Cards};
use kubelet_api::v1beta1::device_plugin_server::DevicePlugin;
use kubelet_api::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device,
    DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse,
};

/// The optional calls that this plugin serves.
pub const OPTIONS: DevicePluginOptions =
    DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true };

/// Streams of the device list (ListAndWatch).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Streams {
    /// How many were opened so far.
    pub opened: usize,
    /// How many are open now.
    pub live: usize,
}

/// The service of one registration.
#[derive(Clone)]
pub struct Service {
    /// Answers the calls.
    pub admission: Arc<Admission>,
    /// The cards to list.
    pub cards: watch::Receiver<Arc<Cards>>,
    /// Counts streams.
    pub streams: watch::Sender<Streams>,
    /// Ends the streams.
    pub end: daemon::Shutdown,
}

/// Counts a stream as open until it is dropped.
struct Live(watch::Sender<Streams>);

impl Live {
    fn new(streams: &watch::Sender<Streams>) -> Self {
        streams.send_modify(|streams| {
            streams.opened += 1;
            streams.live += 1;
        });
        Self(streams.clone())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.send_modify(|streams| streams.live -= 1);
    }
}

/// When a stream sends its next list.
struct Updates {
    cards: watch::Receiver<Arc<Cards>>,
    resends: watch::Receiver<()>,
    end: daemon::Shutdown,
}

impl Updates {
    /// Waits until the device list must be sent again; `None` at the end of the session.
    async fn next(&mut self) -> Option<Arc<Cards>> {
        tokio::select! {
            () = self.end.cancelled() => return None,
            changed = self.cards.changed() => changed.ok()?,
            changed = self.resends.changed() => changed.ok()?,
        }
        Some(self.cards.borrow_and_update().clone())
    }
}

type ListStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl DevicePlugin for Service {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(OPTIONS))
    }

    type ListAndWatchStream = ListStream;

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<ListStream>, Status> {
        let mut cards = self.cards.clone();
        cards.mark_changed();
        let updates = Updates { cards, resends: self.admission.resends(), end: self.end.clone() };
        let state = (updates, Live::new(&self.streams));
        let next = |(mut updates, live): (Updates, Live)| async move {
            let devices = devices(&*updates.next().await?);
            Some((Ok(ListAndWatchResponse { devices }), (updates, live)))
        };
        Ok(Response::new(Box::pin(stream::unfold(state, next))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let mut container_responses = Vec::new();
        for container in &request.get_ref().container_requests {
            let device_i_ds = self.admission.prefer(container).await;
            container_responses.push(ContainerPreferredAllocationResponse { device_i_ds });
        }
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let containers = &request.get_ref().container_requests;
        let answers =
            containers.iter().map(|container| self.admission.allocate(&container.devices_ids));
        match answers.collect() {
            Ok(container_responses) => Ok(Response::new(AllocateResponse { container_responses })),
            Err(refusal) => Err(Status::failed_precondition(refusal.to_string())),
        }
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let checked = self.admission.prestart(&request.get_ref().devices_ids).await;
        let refused = |error: StartError| Status::failed_precondition(error.to_string());
        checked.map(|()| Response::new(PreStartContainerResponse {})).map_err(refused)
    }
}

fn devices(cards: &Cards) -> Vec<Device> {
    cards.iter().flat_map(|card| card.ids().map(|id| device(card, id.to_string()))).collect()
}

/// A device without a topology. With one, the kubelet's topology manager would choose a NUMA node before it
/// calls the plugin, and could exclude the claimed card. The extender reads the card's NUMA node from the
/// node's annotation.
fn device(card: &Card, id: String) -> Device {
    let health = if card.is_healthy() { "Healthy" } else { "Unhealthy" };
    Device { id, health: health.to_owned(), topology: None }
}
