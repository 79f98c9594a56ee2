//! Registration: connects to the plugin, asks for its options, and follows its device list until the stream ends.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kubelet_api::v1beta1::device_plugin_client::DevicePluginClient;
use kubelet_api::v1beta1::registration_server::{Registration, RegistrationServer};
use kubelet_api::v1beta1::{DevicePluginOptions, Empty, ListAndWatchResponse, RegisterRequest};
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status, Streaming};

use super::device_manager::Shared;
use super::socket::{self, Served};

/// A registered plugin.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    pub(super) client: DevicePluginClient<Channel>,
    /// The optional calls that it wants.
    pub(super) options: DevicePluginOptions,
    /// Device ids, and whether each is healthy.
    pub(super) devices: BTreeMap<String, bool>,
    /// Number of the registration, from 1.
    number: usize,
}

struct Service {
    directory: PathBuf,
    shared: Arc<Shared>,
}

pub(super) fn serve(directory: &Path, shared: Arc<Shared>) -> io::Result<Served> {
    let service = Service { directory: directory.to_owned(), shared };
    let router = Server::builder().add_service(RegistrationServer::new(service));
    socket::serve(&directory.join("kubelet.sock"), router)
}

#[tonic::async_trait]
impl Registration for Service {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        if request.version != "v1beta1" || request.resource_name != self.shared.resource {
            return Err(Status::invalid_argument(format!("{request:?}")));
        }
        let mut client = self.connect(&request.endpoint).await?;
        // The kubelet asks for the options before it answers, whatever the request says of them.
        let options = client.get_device_plugin_options(Empty {}).await?.into_inner();
        let number = *self.shared.registrations.borrow() + 1;
        let devices = BTreeMap::new();
        let endpoint = Endpoint { client: client.clone(), options, devices, number };
        self.shared.endpoint.send_replace(Some(endpoint));
        let devices = client.list_and_watch(Empty {}).await?.into_inner();
        tokio::spawn(follow(devices, self.shared.clone(), number));
        self.shared.registrations.send_replace(number);
        Ok(Response::new(Empty {}))
    }
}

impl Service {
    async fn connect(&self, endpoint: &str) -> Result<DevicePluginClient<Channel>, Status> {
        let address = format!("unix://{}", self.directory.join(endpoint).display());
        let endpoint = tonic::transport::Endpoint::from_shared(address)
            .map_err(|error| unavailable(&error))?;
        let channel = endpoint.connect().await.map_err(|error| unavailable(&error))?;
        Ok(DevicePluginClient::new(channel).max_decoding_message_size(16 << 20))
    }
}

fn unavailable(error: &tonic::transport::Error) -> Status {
    Status::unavailable(error.to_string())
}

/// Ends with the stream, or when another registration or none is in force.
async fn follow(mut stream: Streaming<ListAndWatchResponse>, shared: Arc<Shared>, number: usize) {
    let mut endpoint = shared.endpoint.subscribe();
    loop {
        tokio::select! {
            answer = stream.next() => match answer {
                Some(Ok(list)) => update(&shared, &list, number),
                Some(Err(_)) | None => break,
            },
            _ = endpoint.wait_for(|endpoint| !has_number(endpoint.as_ref(), number)) => return,
        }
    }
    shared.endpoint.send_if_modified(|endpoint| {
        has_number(endpoint.as_ref(), number) && endpoint.take().is_some()
    });
}

/// Whether the registration in force has this number.
fn has_number(endpoint: Option<&Endpoint>, number: usize) -> bool {
    endpoint.is_some_and(|endpoint| endpoint.number == number)
}

fn update(shared: &Shared, list: &ListAndWatchResponse, number: usize) {
    let devices: BTreeMap<String, bool> =
        list.devices.iter().map(|device| (device.id.clone(), device.health == "Healthy")).collect();
    shared.endpoint.send_modify(|endpoint| {
        if let Some(endpoint) = endpoint.as_mut().filter(|endpoint| endpoint.number == number) {
            let gone = endpoint.devices.keys().filter(|id| !devices.contains_key(*id));
            // A real kubelet crashes when an id vanishes whose Allocate is under way (kubernetes/kubernetes#95041).
            shared.vanished.send_modify(|vanished| vanished.extend(gone.cloned()));
            endpoint.devices = devices;
        }
    });
    shared.write_checkpoint();
    shared.checkpoints.send_modify(|count| *count += 1);
}
