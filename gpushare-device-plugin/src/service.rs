//! The device plugin service: the kubelet's calls, handed on.
//!
//! Invariant: a stream of the device list begins with the whole list, and carries every later
//! state, or a newer one.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, stream};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::admission::Admission;
use crate::cards::{Card, Cards};
use kubelet_api::v1beta1::device_plugin_server::DevicePlugin;
use kubelet_api::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device,
    DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse,
};

/// What this plugin does beyond Allocate.
pub const OPTIONS: DevicePluginOptions =
    DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true };

/// How many device list streams there have been and are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Streams {
    /// Opened so far.
    pub opened: usize,
    /// Open now.
    pub live: usize,
}

/// The service of one registration.
#[derive(Clone)]
pub struct Service {
    /// Where the questions are answered.
    pub admission: Arc<Admission>,
    /// What is listed.
    pub cards: watch::Receiver<Arc<Cards>>,
    /// Told of every stream.
    pub streams: watch::Sender<Streams>,
    /// Ends the streams.
    pub end: daemon::Shutdown,
}

/// Counts a stream for as long as it lives.
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

/// What a stream waits for.
struct News {
    cards: watch::Receiver<Arc<Cards>>,
    resends: watch::Receiver<()>,
    end: daemon::Shutdown,
}

impl News {
    /// The cards, once they are to be listed; `None` at the end.
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
        let news = News { cards, resends: self.admission.resends(), end: self.end.clone() };
        let state = (news, Live::new(&self.streams));
        let next = |(mut news, live): (News, Live)| async move {
            let devices = devices(&*news.next().await?);
            Some((Ok(ListAndWatchResponse { devices }), (news, live)))
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
        let proof = self.admission.prestart(&request.get_ref().devices_ids).await;
        let refused =
            |error: crate::admission::StartError| Status::failed_precondition(error.to_string());
        proof.map(|()| Response::new(PreStartContainerResponse {})).map_err(refused)
    }
}

fn devices(cards: &Cards) -> Vec<Device> {
    cards.iter().flat_map(|card| card.ids().map(|id| device(card, id.to_string()))).collect()
}

/// Without a topology: with one, the kubelet's topology manager would pick a NUMA node before it
/// asks us, and might leave the claimed card out. The NUMA node is in the node's annotation, where
/// the claim is made.
fn device(card: &Card, id: String) -> Device {
    let health = if card.healthy { "Healthy" } else { "Unhealthy" };
    Device { id, health: health.to_owned(), topology: None }
}
