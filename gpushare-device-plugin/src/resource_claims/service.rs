//! The gRPC that the kubelet calls: registration, the driver in both of its versions, and the health of devices.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use daemon::Condition;
use futures::future::join_all;
use futures::{Stream, stream};
use kubelet_api::dra_health::dra_resource_health_server::DraResourceHealth;
use kubelet_api::dra_health::{
    DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesRequest,
    NodeWatchResourcesResponse,
};
use kubelet_api::plugin_registration::registration_server::Registration;
use kubelet_api::plugin_registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use placement::units::NodeName;
use tokio::time::sleep;
use tonic::{Request, Response, Status};

use super::device_name;
use super::driver::{ClaimRef, Driver, PreparedDevice};
use crate::gpus::Gpus;
use crate::gpus::closed::ClosedGpus;

/// The services by which the kubelet knows the driver, the best first.
const SERVICES: [&str; 3] = ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"];
/// Pause between two reports of health without a change. The kubelet takes one for true for 30 s.
const HEALTH_EVERY: Duration = Duration::from_secs(10);

/// The services of one socket.
#[derive(Clone)]
pub(crate) struct DriverService {
    /// Prepares claims.
    pub driver: Arc<Driver>,
    /// Whether the kubelet has registered the driver.
    pub registered: Condition,
    /// Ends the streams.
    pub end: daemon::Shutdown,
}

#[tonic::async_trait]
impl Registration for DriverService {
    /// Without an endpoint: the kubelet calls the driver on this very socket, by whatever path it has there.
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: self.driver.name.clone(),
            endpoint: String::new(),
            supported_versions: SERVICES.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        if plugin_registered {
            self.registered.set(daemon::Status::ok("the kubelet has registered the driver"));
        } else {
            tracing::error!("the kubelet refuses the driver: {error}");
            let remedy = "is another driver of this name on the node?";
            self.registered
                .set(daemon::Status::failed(format!("the kubelet refuses it: {error}"), remedy));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

impl DriverService {
    async fn prepared(&self, claim: &ClaimRef) -> Result<Vec<PreparedDevice>, String> {
        self.driver.prepare(claim).await.map_err(|error| error.to_string())
    }
}

/// The driver in one version of its interface: both have the same messages but for the id of a share.
macro_rules! serve {
    ($api:ident, $device:expr) => {
        #[tonic::async_trait]
        impl kubelet_api::$api::dra_plugin_server::DraPlugin for DriverService {
            async fn node_prepare_resources(
                &self,
                request: Request<kubelet_api::$api::NodePrepareResourcesRequest>,
            ) -> Result<Response<kubelet_api::$api::NodePrepareResourcesResponse>, Status> {
                use kubelet_api::$api::{
                    NodePrepareResourceResponse, NodePrepareResourcesResponse,
                };
                // Together: each may wait for as long as a call may take.
                let prepared =
                    join_all(request.into_inner().claims.into_iter().map(async |claim| {
                        let claim = claim_ref(claim.namespace, claim.name, &claim.uid);
                        let answer = match self.prepared(&claim).await {
                            Ok(devices) => NodePrepareResourceResponse {
                                devices: devices.into_iter().map($device).collect(),
                                error: String::new(),
                            },
                            Err(error) => {
                                NodePrepareResourceResponse { devices: Vec::new(), error }
                            }
                        };
                        (claim.uid.to_string(), answer)
                    }));
                let claims = HashMap::from_iter(prepared.await);
                Ok(Response::new(NodePrepareResourcesResponse { claims }))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<kubelet_api::$api::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<kubelet_api::$api::NodeUnprepareResourcesResponse>, Status> {
                use kubelet_api::$api::{
                    NodeUnprepareResourceResponse, NodeUnprepareResourcesResponse,
                };
                let mut claims = HashMap::new();
                for claim in request.into_inner().claims {
                    let claim = claim_ref(claim.namespace, claim.name, &claim.uid);
                    self.driver.unprepare(&claim);
                    claims.insert(claim.uid.to_string(), NodeUnprepareResourceResponse::default());
                }
                Ok(Response::new(NodeUnprepareResourcesResponse { claims }))
            }
        }
    };
}

serve!(dra_v1, |device: PreparedDevice| kubelet_api::dra_v1::Device {
    request_names: vec![device.request],
    pool_name: device.pool,
    device_name: device.device,
    cdi_device_ids: device.cdi,
    share_id: device.share_id,
});
serve!(dra_v1beta1, |device: PreparedDevice| kubelet_api::dra_v1beta1::Device {
    request_names: vec![device.request],
    pool_name: device.pool,
    device_name: device.device,
    cdi_device_ids: device.cdi,
});

fn claim_ref(namespace: String, name: String, uid: &str) -> ClaimRef {
    ClaimRef { namespace, name, uid: uid.into() }
}

type HealthStream = Pin<Box<dyn Stream<Item = Result<NodeWatchResourcesResponse, Status>> + Send>>;

#[tonic::async_trait]
impl DraResourceHealth for DriverService {
    type NodeWatchResourcesStream = HealthStream;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<HealthStream>, Status> {
        let driver = &self.driver;
        let state = (self.clone(), driver.gpus.clone(), driver.closed.clone(), true);
        let reports =
            stream::unfold(state, |(service, mut gpus, mut closed, is_first)| async move {
                if !is_first {
                    tokio::select! {
                        () = service.end.cancelled() => return None,
                        changed = gpus.changed() => changed.ok()?,
                        changed = closed.changed() => changed.ok()?,
                        () = sleep(HEALTH_EVERY) => {}
                    }
                }
                let (all, taking_none) =
                    (gpus.borrow_and_update().clone(), closed.borrow_and_update().clone());
                let devices = health(&service.driver.node, &all, &taking_none);
                Some((Ok(NodeWatchResourcesResponse { devices }), (service, gpus, closed, false)))
            });
        Ok(Response::new(Box::pin(reports)))
    }
}

/// The health of each GPU. One that takes no new claims for another reason than a fault of its own is healthy.
fn health(node: &NodeName, gpus: &Gpus, closed: &ClosedGpus) -> Vec<DeviceHealth> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut devices = Vec::new();
    for gpu in gpus.iter() {
        let Some(device_name) = device_name(&gpu.uuid) else { continue };
        let fault = match (gpu.unhealthy, closed.gpus.get(&gpu.uuid)) {
            (Some(why), _) if !why.is_set_by_operators() => Some(why.to_string()),
            (_, Some(placement::gpu::Closed::Context)) => {
                Some("CUDA opens no context on it".to_owned())
            }
            _ => None,
        };
        let status = if fault.is_some() { HealthStatus::Unhealthy } else { HealthStatus::Healthy };
        devices.push(DeviceHealth {
            device: Some(DeviceIdentifier { pool_name: node.to_string(), device_name }),
            health: status.into(),
            last_updated_time: i64::try_from(now).unwrap_or(i64::MAX),
            health_check_timeout_seconds: 0,
            message: fault.unwrap_or_default(),
        });
    }
    devices
}
