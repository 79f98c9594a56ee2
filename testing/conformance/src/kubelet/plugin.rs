//! A device plugin that logs its calls and behaves as each fact sets it.
//!
//! It runs on a runtime of its own. When that ends, sockets close and calls break off as with a killed process.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

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

use super::records::{Records, Shown};

/// The name of its socket, in the kubelet's directory of plugins.
const SOCKET: &str = "conformance.sock";
/// Longest time of a registration.
const PATIENCE: Duration = Duration::from_secs(60);
/// Within this time of a registration a kubelet asks for the list of devices.
const TIME_TO_LIST: Duration = Duration::from_secs(3);

/// Device ids.
pub type Ids = BTreeSet<String>;

/// A logged call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PluginCall {
    /// GetPreferredAllocation.
    Preferred {
        /// The ids to choose from.
        available: Ids,
        /// The ids that must be chosen.
        must: Ids,
        /// The number to choose.
        size: usize,
        /// The answer.
        chosen: Ids,
        /// The kubelet's records during the call, or why they could not be read.
        shown: Result<Shown, String>,
    },
    /// Allocate for one container.
    Allocate {
        /// The ids.
        ids: Ids,
        /// The kubelet's records during the call, or why they could not be read.
        shown: Result<Shown, String>,
    },
    /// PreStartContainer.
    Start {
        /// The ids.
        ids: Ids,
    },
}

/// How the plugin answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Behaviour {
    /// Number of calls of Allocate that fail.
    pub refuse_allocate: usize,
    /// Number of calls of PreStartContainer that fail.
    pub refuse_start: usize,
    /// Time that each Allocate takes.
    pub delay: Duration,
    /// Whether its options exclude GetPreferredAllocation and PreStartContainer. In force from the next start.
    pub no_options: bool,
}

/// The plugin. Dropping it ends it. Its socket stays behind.
#[derive(Debug)]
pub struct Plugin {
    directory: PathBuf,
    resource: String,
    service: PluginService,
    runtime: Option<Runtime>,
    /// When it was last started.
    started_at: Option<Instant>,
}

#[derive(Debug, Clone)]
struct PluginService {
    calls: Arc<watch::Sender<Vec<PluginCall>>>,
    behaviour: Arc<watch::Sender<Behaviour>>,
    devices: Arc<watch::Sender<BTreeMap<String, bool>>>,
    records: Records,
}

impl Plugin {
    /// One that lists `count` healthy devices. It is not started. `directory` is the kubelet's directory of plugins.
    #[must_use]
    pub fn new(directory: &Path, records: Records, resource: &str, count: usize) -> Self {
        let devices = (0..count).map(|number| (format!("unit-{number:02}"), true)).collect();
        let service = PluginService {
            calls: Arc::default(),
            behaviour: Arc::default(),
            devices: Arc::new(watch::Sender::new(devices)),
            records,
        };
        let directory = directory.to_owned();
        let resource = resource.to_owned();
        Self { directory, resource, service, runtime: None, started_at: None }
    }

    /// Starts it, or starts it again: serves on a new socket and registers.
    ///
    /// # Errors
    /// When the socket cannot be made, or the kubelet does not accept the registration.
    pub async fn start(&mut self) -> io::Result<()> {
        self.kill();
        // An earlier start may have left a socket.
        let _ = std::fs::remove_file(self.socket());
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let directory = self.directory.clone();
        let resource = self.resource.clone();
        let started = runtime.spawn(start(directory, resource, self.service.clone()));
        self.runtime = Some(runtime);
        let started = started.await.map_err(io::Error::other)?;
        self.started_at = Some(Instant::now());
        started
    }

    /// Ends it as by SIGKILL.
    pub fn kill(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }

    /// Whether it was started and not killed.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.runtime.is_some()
    }

    /// Whether the kubelet does not read its list of devices, although it has had the time to begin. A kubelet drops
    /// the list of a plugin whose predecessor ends while it registers, and does not ask again.
    pub(super) fn is_dropped(&self) -> bool {
        let is_read = self.service.devices.receiver_count() > 0;
        !is_read && self.started_at.is_some_and(|at| at.elapsed() > TIME_TO_LIST)
    }

    pub(super) fn records(&self) -> &Records {
        &self.service.records
    }

    /// The path of its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.join(SOCKET)
    }

    /// The calls since the last reset.
    #[must_use]
    pub fn calls(&self) -> Vec<PluginCall> {
        self.service.calls.borrow().clone()
    }

    /// Waits until the calls satisfy `holds`. Returns them.
    pub async fn called(&self, holds: impl Fn(&[PluginCall]) -> bool) -> Vec<PluginCall> {
        let mut calls = self.service.calls.subscribe();
        match calls.wait_for(|calls| holds(calls)).await {
            Ok(calls) => calls.clone(),
            // It cannot fail: `self` holds the sender.
            Err(_) => Vec::new(),
        }
    }

    /// Forgets the calls.
    pub fn reset(&self) {
        self.service.calls.send_replace(Vec::new());
    }

    /// Changes how it answers.
    pub fn set(&self, behaviour: Behaviour) {
        self.service.behaviour.send_replace(behaviour);
    }

    /// How it answers now.
    #[must_use]
    pub fn behaviour(&self) -> Behaviour {
        *self.service.behaviour.borrow()
    }

    /// The devices that it lists: id, and whether it is healthy.
    #[must_use]
    pub fn devices(&self) -> BTreeMap<String, bool> {
        self.service.devices.borrow().clone()
    }

    /// From now on it lists the first `count` devices as unhealthy, and all others as healthy.
    pub fn mark_unhealthy(&self, count: usize) {
        self.service.devices.send_modify(|devices| {
            devices.values_mut().enumerate().for_each(|(index, healthy)| *healthy = index >= count);
        });
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn start(directory: PathBuf, resource: String, service: PluginService) -> io::Result<()> {
    let incoming = UnixListenerStream::new(UnixListener::bind(directory.join(SOCKET))?);
    let router = Server::builder().add_service(DevicePluginServer::new(service));
    tokio::spawn(router.serve_with_incoming(incoming));
    let request = RegisterRequest {
        version: "v1beta1".to_owned(),
        endpoint: SOCKET.to_owned(),
        resource_name: resource,
        // The kubelet ignores these: it asks for the options.
        options: Some(ALL_CALLS),
    };
    let address = format!("unix://{}", directory.join("kubelet.sock").display());
    let register = async {
        let mut kubelet = RegistrationClient::connect(address).await.map_err(io::Error::other)?;
        kubelet.register(request).await.map(drop).map_err(io::Error::other)
    };
    tokio::time::timeout(PATIENCE, register).await.map_err(|_| {
        io::Error::new(io::ErrorKind::TimedOut, "the kubelet did not answer the registration")
    })?
}

/// Options of a plugin that wants the optional calls.
const ALL_CALLS: DevicePluginOptions =
    DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true };
/// Options of a plugin that wants Allocate alone.
const ALLOCATE_ALONE: DevicePluginOptions =
    DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: false };

impl PluginService {
    fn log(&self, call: PluginCall) {
        self.calls.send_modify(|calls| calls.push(call));
    }

    /// Fails if `count` is not 0, and takes 1 off it.
    fn refuse(&self, count: impl Fn(&mut Behaviour) -> &mut usize) -> Result<(), Status> {
        let refused = self.behaviour.send_if_modified(|behaviour| {
            let left = count(behaviour);
            let refused = *left > 0;
            *left = left.saturating_sub(1);
            refused
        });
        if refused { Err(Status::internal("refused by the fact")) } else { Ok(()) }
    }
}

fn ids(list: Vec<String>) -> Ids {
    list.into_iter().collect()
}

/// The ids that must be chosen, and the last ones of the others. The kubelet by itself would choose them by chance
/// alone.
fn choose(available: &Ids, must: &Ids, size: usize) -> Ids {
    let others = available.iter().rev().filter(|id| !must.contains(*id));
    must.iter().chain(others.take(size.saturating_sub(must.len()))).cloned().collect()
}

#[tonic::async_trait]
impl DevicePlugin for PluginService {
    type ListAndWatchStream = std::pin::Pin<
        Box<dyn tokio_stream::Stream<Item = Result<ListAndWatchResponse, Status>> + Send>,
    >;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(if self.behaviour.borrow().no_options {
            ALLOCATE_ALONE
        } else {
            ALL_CALLS
        }))
    }

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let lists = WatchStream::new(self.devices.subscribe()).map(|devices| Ok(list_of(devices)));
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
            let chosen = choose(&available, &must, size);
            let device_i_ds = chosen.iter().cloned().collect();
            let shown = self.records.shown().await;
            self.log(PluginCall::Preferred { available, must, size, chosen, shown });
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
            let shown = self.records.shown().await;
            let envs = [("CONFORMANCE_IDS".to_owned(), asked.devices_ids.join(","))].into();
            self.log(PluginCall::Allocate { ids: ids(asked.devices_ids), shown });
            container_responses.push(ContainerAllocateResponse { envs, ..Default::default() });
        }
        let delay = self.behaviour.borrow().delay;
        tokio::time::sleep(delay).await;
        self.refuse(|behaviour| &mut behaviour.refuse_allocate)?;
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        self.log(PluginCall::Start { ids: ids(request.into_inner().devices_ids) });
        self.refuse(|behaviour| &mut behaviour.refuse_start)?;
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

fn list_of(devices: BTreeMap<String, bool>) -> ListAndWatchResponse {
    let mut listed = Vec::new();
    for (id, healthy) in devices {
        let health = if healthy { "Healthy" } else { "Unhealthy" };
        listed.push(Device { id, health: health.to_owned(), topology: None });
    }
    ListAndWatchResponse { devices: listed }
}
