//! What a ResourceClaim was allocated, checked against this node: from the object to shares of GPUs and their limit.
//! Pure.

use std::collections::BTreeMap;

use api::share_config::{ShareConfig, ShareConfigError};
use cluster::{Allocated, DeviceResult, ResourceClaimFacts};
use placement::gpu::{Closed, Isolation};
use placement::units::{Cores, GpuId, MiB, NodeName, PodUid};

use super::device_name;
use crate::gpus::closed::ClosedGpus;
use crate::gpus::{Gpu, Gpus, Unhealthy};
use crate::isolation::limit::{Limit, MpsLimit};
use crate::isolation::support::{IsolationSupport, Missing};
use crate::isolation::{IsolationError, Policy, compute_by_mps};
use crate::records::resource_claims::{BookedClaim, ClaimedShare};

/// Why a claim is not prepared.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum ClaimFault {
    /// It is not allocated, or not any more.
    #[error("it is not allocated")]
    NotAllocated,
    /// It has no device of this driver.
    #[error("it has no device of {0}")]
    NoDevice(String),
    /// A device is another node's.
    #[error("its request {request} has a device of pool {pool}, and this node's is {node}")]
    OtherNode {
        /// The request.
        request: String,
        /// The device's pool.
        pool: String,
        /// This node.
        node: NodeName,
    },
    /// The node has no such device.
    #[error("its request {request} has device {device}, which this node does not have now")]
    NoSuchDevice {
        /// The request.
        request: String,
        /// The device.
        device: String,
    },
    /// A pod of it is not known here yet.
    #[error("its pod {0} is not known on this node yet")]
    NoSuchPod(PodUid),
    /// It asks for access beside other claims' shares, which this driver has not.
    #[error(
        "its request {0} has adminAccess, which this driver does not give: take it off, and make the claim again"
    )]
    AdminAccess(String),
    /// The GPU does not work.
    #[error("GPU {gpu} takes no pods: {why}")]
    Unhealthy {
        /// The GPU.
        gpu: GpuId,
        /// Why.
        why: Unhealthy,
    },
    /// The GPU takes no new pods.
    #[error("GPU {gpu} takes no pods now (closed: {why:?}): the node's events say why")]
    Closed {
        /// The GPU.
        gpu: GpuId,
        /// Why.
        why: Closed,
    },
    /// Its configuration has a fault.
    #[error("a ShareConfig of it: {0}")]
    Config(ShareConfigError),
    /// The ShareConfig requires what the node cannot enforce.
    #[error(
        "its ShareConfig requires isolation `{required}`, which this node cannot enforce: {missing}. Or take \
         `isolation` off, and make the claim again"
    )]
    Required {
        /// The mode.
        required: Isolation,
        /// What the node lacks.
        missing: Missing,
    },
    /// The node's policy requires what it cannot enforce, or that is not known yet.
    #[error("{0}")]
    Isolation(IsolationError),
    /// Its containers have one limit for all GPUs that they see.
    #[error(
        "isolation `{0}` holds a container to one amount of memory on each GPU, and the claim has different ones: make \
         a claim for each request"
    )]
    MixedMemory(Isolation),
}

/// What a claim wants of this node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    /// Its shares, one for each result.
    pub shares: Vec<ClaimedShare>,
    /// The weakest isolation that its configuration allows.
    pub isolation: Isolation,
    /// Memory of each GPU that it may grow to.
    pub memory_limit: Option<MiB>,
}

/// The node that a claim is compared with.
pub(crate) struct ThisNode<'n> {
    /// Its name, which is its pool's.
    pub name: &'n NodeName,
    /// The driver.
    pub driver: &'n str,
    /// Its GPUs.
    pub gpus: &'n Gpus,
    /// Those that take no new claims.
    pub closed: &'n ClosedGpus,
}

impl Wanted {
    /// What a claim has whose containers run, as far as it is known here.
    pub(crate) fn of_running(claim: &ResourceClaimFacts, gpus: &Gpus) -> Self {
        let mut shares = Vec::new();
        let allocated = claim.allocated.clone().unwrap_or_default();
        for result in &allocated.results {
            shares.extend(gpu_of(result, gpus).map(|gpu| share_of(result, gpu)));
        }
        let (isolation, memory_limit) = configured(&allocated).unwrap_or_default();
        Self { shares, isolation, memory_limit }
    }

    /// What this claim wants.
    ///
    /// # Errors
    /// If it is not allocated on this node, or a part of it is unknown here or not allowed.
    pub(crate) fn of(claim: &ResourceClaimFacts, node: &ThisNode<'_>) -> Result<Self, ClaimFault> {
        let allocated = claim.allocated.as_ref().ok_or(ClaimFault::NotAllocated)?;
        if allocated.results.is_empty() {
            return Err(ClaimFault::NoDevice(node.driver.to_owned()));
        }
        let mut shares = Vec::new();
        for result in &allocated.results {
            shares.push(node.share(result)?);
        }
        let (isolation, memory_limit) = configured(allocated)?;
        Ok(Self { shares, isolation, memory_limit })
    }

    /// The entry of the claim, held to this limit.
    pub(crate) fn booked(self, claim: &ResourceClaimFacts, limit: Option<Limit>) -> BookedClaim {
        BookedClaim {
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            shares: self.shares,
            limit,
            pods: claim.reserved_for.iter().cloned().collect(),
            prepared: true,
        }
    }

    /// The limit of each container with the claim; `None` if it has none. The second is why a mode is not in force that
    /// the node's policy wants.
    ///
    /// # Errors
    /// If the node cannot enforce what the claim or its policy requires.
    pub(crate) fn limit(
        &self,
        gpus: &Gpus,
        policy: Policy,
        support: &IsolationSupport,
    ) -> Result<(Option<Limit>, Option<Missing>), ClaimFault> {
        let asked = (self.isolation != Isolation::None).then(|| self.isolation.name());
        let decided = policy.decide(asked, support).map_err(|error| match error {
            IsolationError::Required { required, missing } => {
                ClaimFault::Required { required, missing }
            }
            other => ClaimFault::Isolation(other),
        })?;
        let isolation = decided.isolation;
        let missing = decided.instead_of.map(|(_, missing)| missing);
        if isolation == Isolation::None {
            return Ok((None, missing));
        }
        // A container sees each GPU once, however many of the claim's shares are on it.
        let mut on_each: BTreeMap<&GpuId, MiB> = BTreeMap::new();
        for share in &self.shares {
            let sum = on_each.entry(&share.gpu).or_default();
            *sum = MiB(sum.0.saturating_add(share.memory.0));
        }
        let Some(memory) = on_each.values().next().copied() else { return Ok((None, missing)) };
        if on_each.values().any(|other| *other != memory) {
            return Err(ClaimFault::MixedMemory(isolation));
        }
        let cores = self.shares.iter().map(|share| share.cores).max().unwrap_or_default();
        let compute = cores > Cores::ZERO && compute_by_mps(isolation, support).is_ok();
        let of_gpu = |gpu: &&GpuId| gpus.get(gpu).map(|gpu| gpu.memory);
        let most = on_each.keys().filter_map(of_gpu).min().unwrap_or(memory);
        let limit = memory.max(self.memory_limit.unwrap_or_default()).min(most);
        let threads = if cores == Cores::ZERO { Cores::ALL } else { cores.min(Cores::ALL) };
        let gpus = u32::try_from(on_each.len()).unwrap_or(u32::MAX);
        let mps = MpsLimit { gpus, limit, threads: threads.0 };
        Ok((Limit::of(isolation, compute, mps), missing))
    }
}

/// The strongest isolation of a claim's configurations, and the limit that the claim sets, or else its class.
fn configured(allocated: &Allocated) -> Result<(Isolation, Option<MiB>), ClaimFault> {
    let mut isolation = Isolation::None;
    let (mut of_class, mut of_claim) = (None, None);
    for config in &allocated.configs {
        let read = ShareConfig::from_value(&config.parameters).map_err(ClaimFault::Config)?;
        isolation = isolation.max(read.isolation.unwrap_or_default());
        let limit = if config.from_class { &mut of_class } else { &mut of_claim };
        *limit = (*limit).max(read.memory_limit);
    }
    Ok((isolation, of_claim.or(of_class)))
}

impl ThisNode<'_> {
    fn share(&self, result: &DeviceResult) -> Result<ClaimedShare, ClaimFault> {
        let request = result.request.clone();
        if result.pool != self.name.as_str() {
            let (pool, node) = (result.pool.clone(), self.name.clone());
            return Err(ClaimFault::OtherNode { request, pool, node });
        }
        if result.admin_access {
            return Err(ClaimFault::AdminAccess(request));
        }
        let Some(gpu) = gpu_of(result, self.gpus) else {
            return Err(ClaimFault::NoSuchDevice { request, device: result.device.clone() });
        };
        if let Some(why) = gpu.unhealthy {
            return Err(ClaimFault::Unhealthy { gpu: gpu.uuid.clone(), why });
        }
        if let Some(why) = self.closed.to_claims(&gpu.uuid) {
            return Err(ClaimFault::Closed { gpu: gpu.uuid.clone(), why });
        }
        Ok(share_of(result, gpu))
    }
}

fn gpu_of<'g>(result: &DeviceResult, gpus: &'g Gpus) -> Option<&'g Gpu> {
    gpus.iter().find(|gpu| device_name(&gpu.uuid).as_deref() == Some(result.device.as_str()))
}

/// The share of a result. One without an amount has all of the GPU.
fn share_of(result: &DeviceResult, gpu: &Gpu) -> ClaimedShare {
    ClaimedShare {
        request: result.request.clone(),
        device: result.device.clone(),
        share_id: result.share_id.clone(),
        gpu: gpu.uuid.clone(),
        memory: result.memory.unwrap_or(gpu.offered),
        cores: result.cores.unwrap_or(Cores::ALL),
    }
}

#[cfg(test)]
mod tests {
    use cluster::OpaqueConfig;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{A, B, gpus, with_unhealthy};
    use crate::isolation::{MinIsolation, UnavailableAction};

    const POLICY: Policy =
        Policy { minimum: MinIsolation::Auto, unavailable: UnavailableAction::Downgrade };

    fn result(gpu: &str, memory: u64, cores: u32) -> DeviceResult {
        DeviceResult {
            request: "gpu".to_owned(),
            pool: "node-1".to_owned(),
            device: gpu.to_lowercase(),
            share_id: None,
            memory: Some(MiB(memory)),
            cores: Some(Cores(cores)),
            admin_access: false,
        }
    }

    fn config(from_class: bool, fields: serde_json::Value) -> OpaqueConfig {
        let mut parameters = fields;
        parameters["apiVersion"] = json!("plimsoll.dev/v1");
        parameters["kind"] = json!("ShareConfig");
        OpaqueConfig { from_class, requests: Vec::new(), parameters }
    }

    fn wanted(
        results: Vec<DeviceResult>,
        configs: Vec<OpaqueConfig>,
        closed: &ClosedGpus,
        gpus: &Gpus,
    ) -> Result<Wanted, ClaimFault> {
        let claim = ResourceClaimFacts {
            namespace: "ml".to_owned(),
            name: "a".to_owned(),
            uid: "u".into(),
            deleting: false,
            reserved_for: Vec::new(),
            node: None,
            allocated: Some(Allocated { results, configs }),
        };
        let name = "node-1".into();
        Wanted::of(&claim, &ThisNode { name: &name, driver: "gpu.plimsoll.dev", gpus, closed })
    }

    fn open(results: Vec<DeviceResult>, configs: Vec<OpaqueConfig>) -> Wanted {
        wanted(results, configs, &ClosedGpus::default(), &gpus(&[(A, 4), (B, 4)])).unwrap()
    }

    fn limit(wanted: &Wanted, support: &IsolationSupport) -> Result<Option<Limit>, ClaimFault> {
        Ok(wanted.limit(&gpus(&[(A, 4), (B, 4)]), POLICY, support)?.0)
    }

    fn all_modes() -> IsolationSupport {
        IsolationSupport { driver: Ok(()), mps: Ok(()), drains_clients: None }
    }

    #[test]
    fn a_result_without_amounts_has_all_of_its_gpu() {
        let bare = DeviceResult { memory: None, cores: None, ..result(A, 0, 0) };
        let share = &open(vec![bare], Vec::new()).shares[0];
        assert_eq!((share.memory, share.cores), (MiB(4096), Cores::ALL));
    }

    #[test]
    fn a_gpu_that_takes_no_claims_refuses_with_its_reason() {
        let two = gpus(&[(A, 4), (B, 4)]);
        let closed =
            ClosedGpus { gpus: [(A.into(), Closed::Context)].into(), ..ClosedGpus::default() };
        let fault = wanted(vec![result(A, 1, 0)], Vec::new(), &closed, &two).unwrap_err();
        assert_eq!(fault, ClaimFault::Closed { gpu: A.into(), why: Closed::Context });
        let lost = with_unhealthy(&two, A, Unhealthy::Lost);
        let fault =
            wanted(vec![result(A, 1, 0)], Vec::new(), &ClosedGpus::default(), &lost).unwrap_err();
        assert!(fault.to_string().contains("it does not answer"), "{fault}");
        let gone = wanted(vec![result("GPU-gone", 1, 0)], Vec::new(), &ClosedGpus::default(), &two)
            .unwrap_err();
        assert!(matches!(gone, ClaimFault::NoSuchDevice { .. }), "{gone}");
    }

    #[test]
    fn the_strongest_isolation_counts_and_the_claims_own_limit_before_its_classs() {
        let of_class = config(true, json!({"isolation": "mps", "memoryLimit": "3Gi"}));
        let weaker = config(false, json!({"isolation": "none"}));
        let both = open(vec![result(A, 1024, 30)], vec![of_class.clone(), weaker]);
        let mps = MpsLimit { gpus: 1, limit: MiB(3072), threads: 30 };
        assert_eq!(limit(&both, &all_modes()), Ok(Some(Limit::Mps(mps))));
        let own = config(false, json!({"memoryLimit": "2Gi"}));
        let both = open(vec![result(A, 1024, 0)], vec![of_class, own]);
        let mps = MpsLimit { gpus: 1, limit: MiB(2048), threads: 100 };
        assert_eq!(limit(&both, &all_modes()), Ok(Some(Limit::Mps(mps))));
    }

    #[test]
    fn a_limit_is_at_least_the_share_and_at_most_the_gpu() {
        let driver = |memory: &str| {
            let config = config(false, json!({"isolation": "driver", "memoryLimit": memory}));
            limit(&open(vec![result(A, 1024, 0)], vec![config]), &all_modes()).unwrap().unwrap()
        };
        assert_eq!(driver("1Mi"), Limit::Driver { limit: MiB(1024) });
        assert_eq!(driver("64Gi"), Limit::Driver { limit: MiB(4096) });
    }

    #[test]
    fn what_the_node_cannot_enforce_or_one_limit_cannot_express_is_refused() {
        let none = IsolationSupport {
            driver: Err(Missing::NotByCdi),
            mps: Err(Missing::NoMps),
            drains_clients: None,
        };
        let required = config(false, json!({"isolation": "driver"}));
        let one = open(vec![result(A, 1024, 0)], vec![required.clone()]);
        let fault = limit(&one, &none).unwrap_err();
        assert!(fault.to_string().contains("ShareConfig requires isolation `driver`"), "{fault}");
        let plain = open(vec![result(A, 1024, 0)], Vec::new());
        assert_eq!(limit(&plain, &none), Ok(None));
        let mixed = open(vec![result(A, 1024, 0), result(B, 2048, 0)], vec![required.clone()]);
        assert!(matches!(limit(&mixed, &all_modes()), Err(ClaimFault::MixedMemory(_))));
        let on_one = open(vec![result(A, 1024, 0), result(A, 2048, 0)], vec![required]);
        assert_eq!(limit(&on_one, &all_modes()), Ok(Some(Limit::Driver { limit: MiB(3072) })));
    }
}
