//! The gRPC service that the kubelet calls.
//!
//! Invariant: a stream of the device list begins with the current list and always sends the newest list;
//! intermediate lists may be skipped. It is sent when it has changed, and whenever [`Admission::resends`] asks for it.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, stream};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::devices::DeviceList;
use crate::admission::Admission;
use crate::admission::breaker::Breaker;
use crate::gpus::Gpus;
use crate::gpus::closed::ByClaims;
use kubelet_api::v1beta1::device_plugin_server::DevicePlugin;
use kubelet_api::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device,
    DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse,
};

/// The optional calls that this plugin serves.
pub(crate) const OPTIONS: DevicePluginOptions =
    DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true };

/// Streams of the device list (ListAndWatch).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Streams {
    /// How many were opened so far.
    pub opened: usize,
    /// How many are open now.
    pub live: usize,
}

/// The service of one registration.
#[derive(Clone)]
pub(crate) struct Service {
    /// Answers the calls.
    pub admission: Arc<Admission>,
    /// The GPUs to list.
    pub gpus: watch::Receiver<Arc<Gpus>>,
    /// Whether the API server can be reached: without it no new pod can be admitted.
    pub reachable: watch::Receiver<bool>,
    /// The GPUs that ResourceClaims have for themselves.
    pub by_claims: watch::Receiver<Option<Arc<ByClaims>>>,
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

/// When a stream sends its next list, and what that is.
struct Updates {
    admission: Arc<Admission>,
    gpus: watch::Receiver<Arc<Gpus>>,
    reachable: watch::Receiver<bool>,
    by_claims: watch::Receiver<Option<Arc<ByClaims>>>,
    breaker: watch::Receiver<Breaker>,
    /// Changes of what containers hold, and of the pods of this node.
    records: watch::Receiver<()>,
    pods: watch::Receiver<u64>,
    resends: watch::Receiver<()>,
    end: daemon::Shutdown,
    list: DeviceList,
}

impl Updates {
    fn of(service: &Service) -> Self {
        let Service { admission, gpus, reachable, by_claims, end, .. } = service.clone();
        let (records, pods) = admission.changes_of_holders();
        let breaker = admission.breaker();
        let mut resends = admission.resends();
        // A stream begins with the list.
        resends.mark_changed();
        let list = DeviceList::default();
        Self { admission, gpus, reachable, by_claims, breaker, records, pods, resends, end, list }
    }

    /// Waits until the device list must be sent again; `None` at the end of the session.
    async fn next(&mut self) -> Option<Vec<Device>> {
        loop {
            let resend = tokio::select! {
                biased;
                () = self.end.cancelled() => return None,
                changed = self.resends.changed() => changed.map(|()| true).ok()?,
                changed = self.gpus.changed() => changed.map(|()| false).ok()?,
                changed = self.reachable.changed() => changed.map(|()| false).ok()?,
                changed = self.by_claims.changed() => changed.map(|()| false).ok()?,
                changed = self.breaker.changed() => changed.map(|()| false).ok()?,
                changed = self.records.changed() => changed.map(|()| false).ok()?,
                changed = self.pods.changed() => changed.map(|()| false).ok()?,
            };
            let gpus = self.gpus.borrow_and_update().clone();
            let reachable = *self.reachable.borrow_and_update();
            let offer = self.breaker.borrow_and_update().offer();
            let by_claims = self.by_claims.borrow_and_update().as_ref().is_none_or(|by| by.all);
            let takes_pods = reachable && !by_claims;
            let held = self.admission.held_ids();
            if self.list.update(&gpus, &held, takes_pods, offer) || resend {
                return Some(self.list.devices());
            }
        }
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
        let state = (Updates::of(self), Live::new(&self.streams));
        let lists = stream::unfold(state, |(mut updates, live)| async move {
            let devices = updates.next().await?;
            Some((Ok(ListAndWatchResponse { devices }), (updates, live)))
        });
        Ok(Response::new(Box::pin(lists)))
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
        let mut container_responses = Vec::new();
        for container in &request.get_ref().container_requests {
            match self.admission.allocate(&container.devices_ids) {
                Ok(response) => container_responses.push(response),
                Err(refusal) => return Err(Status::failed_precondition(refusal.text())),
            }
        }
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        match self.admission.prestart(&request.get_ref().devices_ids).await {
            Ok(()) => Ok(Response::new(PreStartContainerResponse {})),
            Err(error) => Err(Status::failed_precondition(error.to_string())),
        }
    }
}
