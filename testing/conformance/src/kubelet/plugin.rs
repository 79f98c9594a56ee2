//! A device plugin that writes down how it is called, and does as it is told.
//!
//! A life of it is a runtime of its own: when that ends, sockets close and calls break off as they do
//! with a process that was killed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kubelet_api::v1beta1::device_plugin_server::{DevicePlugin, DevicePluginServer};
use kubelet_api::v1beta1::registration_client::RegistrationClient;
use kubelet_api::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse,
    ContainerPreferredAllocationResponse, Device, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, RegisterRequest,
};
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::records::{Records, Seen};

/// Its socket beside the kubelet's.
const SOCKET: &str = "conformance.sock";
/// A registration that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(15);

/// A set of device ids.
pub type Ids = BTreeSet<String>;

/// One call of a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// GetPreferredAllocation.
    Preferred {
        /// The ids to choose from.
        available: Ids,
        /// Those that must be chosen.
        must: Ids,
        /// How many to choose.
        size: usize,
        /// What was answered.
        answered: Ids,
        /// What the kubelet's records showed meanwhile.
        seen: Seen,
    },
    /// Allocate for one container.
    Allocate {
        /// The ids.
        ids: Ids,
        /// What the kubelet's records showed meanwhile.
        seen: Seen,
    },
    /// PreStartContainer.
    Start {
        /// The ids.
        ids: Ids,
    },
}

/// How the next calls are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Orders {
    /// So many calls of Allocate fail.
    pub refuse_allocate: usize,
    /// So many calls of PreStartContainer fail.
    pub refuse_start: usize,
    /// Each Allocate takes so long.
    pub delay: Duration,
    /// From its next life on it says that it wants neither GetPreferredAllocation nor PreStartContainer.
    pub no_hooks: bool,
}

/// The plugin. Dropping it ends it; its socket stays behind.
#[derive(Debug)]
pub struct Plugin {
    directory: PathBuf,
    resource: String,
    service: Service,
    life: Option<Runtime>,
}

#[derive(Debug, Clone)]
struct Service {
    calls: Arc<watch::Sender<Vec<Call>>>,
    orders: Arc<watch::Sender<Orders>>,
    devices: Arc<watch::Sender<BTreeMap<String, bool>>>,
    records: Records,
}

impl Plugin {
    /// One that lists `count` healthy devices, not begun yet. `directory` is the kubelet's for device
    /// plugins.
    #[must_use]
    pub fn new(directory: &Path, records: Records, resource: &str, count: usize) -> Self {
        let devices = (0..count).map(|number| (format!("unit-{number:02}"), true)).collect();
        let service = Service {
            calls: Arc::default(),
            orders: Arc::default(),
            devices: Arc::new(watch::Sender::new(devices)),
            records,
        };
        let (directory, resource) = (directory.to_owned(), resource.to_owned());
        Self { directory, resource, service, life: None }
    }

    /// Begins a life: serves on a fresh socket and registers.
    ///
    /// # Errors
    /// When the socket cannot be made, or the kubelet does not take the registration.
    pub async fn begin(&mut self) -> io::Result<()> {
        self.end();
        // Whatever an earlier life left.
        let _ = std::fs::remove_file(self.socket());
        let life = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let begun =
            life.spawn(begin(self.directory.clone(), self.resource.clone(), self.service.clone()));
        self.life = Some(life);
        begun.await.map_err(io::Error::other)?
    }

    /// Ends the life as by SIGKILL.
    pub fn end(&mut self) {
        self.life.take().into_iter().for_each(Runtime::shutdown_background);
    }

    /// Whether it has begun and not ended.
    #[must_use]
    pub fn lives(&self) -> bool {
        self.life.is_some()
    }

    pub(super) fn records(&self) -> &Records {
        &self.service.records
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.join(SOCKET)
    }

    /// How it was called, from the beginning.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.service.calls.borrow().clone()
    }

    /// Waits until the calls satisfy `holds`.
    pub async fn called(&self, holds: impl Fn(&[Call]) -> bool) -> Vec<Call> {
        let mut calls = self.service.calls.subscribe();
        match calls.wait_for(|calls| holds(calls)).await {
            Ok(calls) => calls.clone(),
            // The sender is in `self`.
            Err(_) => Vec::new(),
        }
    }

    /// Forgets how it was called.
    pub fn forget(&self) {
        self.service.calls.send_replace(Vec::new());
    }

    /// From now on it does as this says.
    pub fn order(&self, orders: Orders) {
        self.service.orders.send_replace(orders);
    }

    /// As it does now.
    #[must_use]
    pub fn orders(&self) -> Orders {
        *self.service.orders.borrow()
    }

    /// The devices that it lists, with their health.
    #[must_use]
    pub fn devices(&self) -> BTreeMap<String, bool> {
        self.service.devices.borrow().clone()
    }

    /// Lists so many of its devices, the first ones, as unhealthy, and all others as healthy.
    pub fn sicken(&self, count: usize) {
        self.service.devices.send_modify(|devices| {
            devices.values_mut().enumerate().for_each(|(place, healthy)| *healthy = place >= count);
        });
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.end();
    }
}

async fn begin(directory: PathBuf, resource: String, service: Service) -> io::Result<()> {
    let incoming = UnixListenerStream::new(UnixListener::bind(directory.join(SOCKET))?);
    let router = Server::builder().add_service(DevicePluginServer::new(service));
    tokio::spawn(router.serve_with_incoming(incoming));
    let request = RegisterRequest {
        version: "v1beta1".to_owned(),
        endpoint: SOCKET.to_owned(),
        resource_name: resource,
        // The kubelet goes by what it is told when it asks back.
        options: Some(HOOKS),
    };
    let address = format!("unix://{}", directory.join("kubelet.sock").display());
    let register = async {
        let mut kubelet = RegistrationClient::connect(address).await.map_err(io::Error::other)?;
        kubelet.register(request).await.map(drop).map_err(io::Error::other)
    };
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the kubelet took no registration");
    tokio::time::timeout(PATIENCE, register).await.map_err(late)?
}

const HOOKS: DevicePluginOptions =
    DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true };
const NO_HOOKS: DevicePluginOptions =
    DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: false };

impl Service {
    fn note(&self, call: Call) {
        self.calls.send_modify(|calls| calls.push(call));
    }

    /// Whether this call is one that shall fail, and one fewer from now on.
    fn refuses(&self, which: impl Fn(&mut Orders) -> &mut usize) -> Result<(), Status> {
        let refused = self.orders.send_if_modified(|orders| {
            let left = which(orders);
            let refuses = *left > 0;
            *left = left.saturating_sub(1);
            refuses
        });
        if refused { Err(Status::internal("as it was told")) } else { Ok(()) }
    }
}

fn ids(list: Vec<String>) -> Ids {
    list.into_iter().collect()
}

/// The last ids, which no kubelet would choose by itself but by chance, and those that it must.
fn choose(available: &Ids, must: &Ids, size: usize) -> Ids {
    let rest = available.iter().rev().filter(|id| !must.contains(*id));
    must.iter().chain(rest.take(size.saturating_sub(must.len()))).cloned().collect()
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream = std::pin::Pin<
        Box<dyn tokio_stream::Stream<Item = Result<ListAndWatchResponse, Status>> + Send>,
    >;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(if self.orders.borrow().no_hooks { NO_HOOKS } else { HOOKS }))
    }

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let lists = WatchStream::new(self.devices.subscribe()).map(|devices| Ok(listed(devices)));
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let mut container_responses = Vec::new();
        for asked in request.into_inner().container_requests {
            let available = ids(asked.available_device_i_ds);
            let must = ids(asked.must_include_device_i_ds);
            let size = usize::try_from(asked.allocation_size).unwrap_or(0);
            let answered = choose(&available, &must, size);
            let device_i_ds = answered.iter().cloned().collect();
            let seen = self.records.look().await;
            self.note(Call::Preferred { available, must, size, answered, seen });
            container_responses.push(ContainerPreferredAllocationResponse { device_i_ds });
        }
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let mut container_responses = Vec::new();
        for asked in request.into_inner().container_requests {
            let seen = self.records.look().await;
            let envs = [("CONFORMANCE_IDS".to_owned(), asked.devices_ids.join(","))].into();
            self.note(Call::Allocate { ids: ids(asked.devices_ids), seen });
            container_responses.push(ContainerAllocateResponse { envs, ..Default::default() });
        }
        let delay = self.orders.borrow().delay;
        tokio::time::sleep(delay).await;
        self.refuses(|orders| &mut orders.refuse_allocate)?;
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        self.note(Call::Start { ids: ids(request.into_inner().devices_ids) });
        self.refuses(|orders| &mut orders.refuse_start)?;
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

fn listed(devices: BTreeMap<String, bool>) -> ListAndWatchResponse {
    let health = |healthy: bool| if healthy { "Healthy" } else { "Unhealthy" }.to_owned();
    let device = |(id, healthy)| Device { id, health: health(healthy), topology: None };
    ListAndWatchResponse { devices: devices.into_iter().map(device).collect() }
}
