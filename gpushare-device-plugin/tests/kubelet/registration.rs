//! Registration: dial back, ask for the options, follow the device list for as long as the stream
//! lasts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpushare_device_plugin::wire::v1beta1::device_plugin_client::DevicePluginClient;
use gpushare_device_plugin::wire::v1beta1::registration_server::{
    Registration, RegistrationServer,
};
use gpushare_device_plugin::wire::v1beta1::{Empty, ListAndWatchResponse, RegisterRequest};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status, Streaming};

use super::Shared;

/// A registered plugin.
#[derive(Clone)]
pub struct Endpoint {
    pub client: DevicePluginClient<Channel>,
    /// Ids with their health.
    pub devices: BTreeMap<String, bool>,
    number: usize,
}

struct Service {
    directory: PathBuf,
    shared: Arc<Shared>,
}

pub fn serve(directory: &Path, shared: Arc<Shared>) -> JoinHandle<()> {
    let listener = UnixListener::bind(directory.join("kubelet.sock")).unwrap();
    let service = RegistrationServer::new(Service { directory: directory.to_owned(), shared });
    tokio::spawn(async move {
        let _ = Server::builder()
            .add_service(service)
            .serve_with_incoming(UnixListenerStream::new(listener))
            .await;
    })
}

#[tonic::async_trait]
impl Registration for Service {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        if request.version != "v1beta1" || request.resource_name != self.shared.resource {
            return Err(Status::invalid_argument(format!("{request:?}")));
        }
        let socket = self.directory.join(&request.endpoint);
        let address = format!("unix://{}", socket.display());
        let dialled = tonic::transport::Endpoint::from_shared(address).unwrap();
        let channel =
            dialled.connect().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut client = DevicePluginClient::new(channel);
        let options = client.get_device_plugin_options(Empty {}).await?.into_inner();
        assert!(options.pre_start_required && options.get_preferred_allocation_available);
        let number = *self.shared.registrations.borrow() + 1;
        let endpoint = Endpoint { client: client.clone(), devices: BTreeMap::new(), number };
        self.shared.endpoint.send_replace(Some(endpoint));
        let devices = client.list_and_watch(Empty {}).await?.into_inner();
        tokio::spawn(follow(devices, self.shared.clone(), number));
        self.shared.registrations.send_replace(number);
        Ok(Response::new(Empty {}))
    }
}

/// Ends when the plugin ends the stream, or when the kubelet no longer keeps this registration.
async fn follow(mut stream: Streaming<ListAndWatchResponse>, shared: Arc<Shared>, number: usize) {
    let mut kept = shared.endpoint.subscribe();
    let is_kept = |endpoint: &Option<Endpoint>| {
        endpoint.as_ref().is_some_and(|endpoint| endpoint.number == number)
    };
    loop {
        tokio::select! {
            answer = stream.next() => match answer {
                Some(Ok(list)) => update(&shared, &list, number),
                Some(Err(_)) | None => break,
            },
            _ = kept.wait_for(|endpoint| !is_kept(endpoint)) => return,
        }
    }
    shared.endpoint.send_if_modified(|endpoint| is_kept(endpoint) && endpoint.take().is_some());
}

fn update(shared: &Shared, list: &ListAndWatchResponse, number: usize) {
    let devices: BTreeMap<String, bool> =
        list.devices.iter().map(|device| (device.id.clone(), device.health == "Healthy")).collect();
    shared.endpoint.send_modify(|endpoint| {
        if let Some(endpoint) = endpoint.as_mut().filter(|endpoint| endpoint.number == number) {
            let gone: Vec<&String> =
                endpoint.devices.keys().filter(|id| !devices.contains_key(*id)).collect();
            assert!(gone.is_empty(), "the kubelet crashes when an id vanishes: {gone:?}");
            endpoint.devices = devices;
        }
    });
    shared.account().write_checkpoint();
    shared.checkpoints.send_modify(|count| *count += 1);
}
