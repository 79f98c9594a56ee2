//! The PodResources API: List and Get, with one rate limit.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kubelet_api::podresources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use kubelet_api::podresources::{
    ContainerDevices, ContainerResources, GetPodResourcesRequest, GetPodResourcesResponse,
    ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::account::{Part, PodKey, PodOnNode};
use super::device_manager::{Shared, lock};
use super::socket::{self, Served};

/// Calls at once (`DefaultPodResourcesBurstTokens`).
const BURST: f64 = 10.0;

/// Calls a second (`DefaultPodResourcesQPS`).
const PER_SECOND: f64 = 100.0;

/// The rate limit, a token bucket.
#[derive(Debug)]
pub(super) struct Limiter {
    tokens: f64,
    /// When it had them. `None`: at the next call, however late that comes.
    at: Option<Instant>,
    pub(super) turned_away: usize,
}

impl Limiter {
    pub(super) fn new() -> Self {
        Self { tokens: BURST, at: None, turned_away: 0 }
    }

    fn take(&mut self) -> bool {
        let now = Instant::now();
        let passed = self.at.map_or(Duration::ZERO, |at| now.duration_since(at));
        let refilled = passed.as_secs_f64() * PER_SECOND;
        (self.tokens, self.at) = ((self.tokens + refilled).min(BURST), Some(now));
        let allowed = self.tokens >= 1.0;
        self.tokens -= f64::from(u8::from(allowed));
        self.turned_away += usize::from(!allowed);
        allowed
    }

    pub(super) fn exhaust(&mut self) {
        (self.tokens, self.at) = (0.0, None);
    }
}

struct Records(Arc<Shared>);

pub(super) fn serve(socket: &Path, shared: Arc<Shared>) -> io::Result<Served> {
    let service = PodResourcesListerServer::new(Records(shared));
    socket::serve(socket, Server::builder().add_service(service))
}

impl Records {
    fn check_rate(&self) -> Result<(), Status> {
        let allowed = lock(&self.0.limiter).take();
        allowed.then_some(()).ok_or_else(|| Status::resource_exhausted("rejected by rate limit"))
    }

    /// A pod with one entry for each device, as the kubelet lists it. Init containers are left out.
    fn entry(&self, pod: &PodOnNode) -> PodResources {
        let listed = pod.spec.containers.iter().filter(|container| container.part != Part::Init);
        let containers = listed.map(|container| ContainerResources {
            name: container.name.clone(),
            devices: pod
                .held
                .get(&container.name)
                .into_iter()
                .flatten()
                .map(|id| ContainerDevices {
                    resource_name: self.0.resource.clone(),
                    device_ids: vec![id.clone()],
                })
                .collect(),
            dynamic_resources: self.0.dynamic_resources(&pod.spec.name, &container.name),
        });
        PodResources {
            name: pod.spec.name.clone(),
            namespace: pod.spec.namespace.clone(),
            containers: containers.collect(),
        }
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Records {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.check_rate()?;
        self.0.lists.fetch_add(1, Ordering::Relaxed);
        let mut account = self.0.account();
        account.collect();
        let alive = account.pods.iter().filter(|pod| !pod.dead);
        let pod_resources = alive.map(|pod| self.entry(pod)).collect();
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }

    async fn get(
        &self,
        request: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        self.check_rate()?;
        let GetPodResourcesRequest { pod_name: name, pod_namespace: namespace } = request.get_ref();
        let account = self.0.account();
        let pod = account.pod(&PodKey::new(namespace, name));
        let pod = pod.ok_or_else(|| {
            Status::unknown(format!("pod {name} in namespace {namespace} not found"))
        })?;
        Ok(Response::new(GetPodResourcesResponse { pod_resources: Some(self.entry(pod)) }))
    }
}
