//! Owns shares of GPUs by ResourceClaims: nodes that give out their GPUs so, pods that ask for a share, and the
//! comparison of what was allocated with what processes see.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use e2e::command::wait_for;
use e2e::kernel::processes;
use e2e::node::gpus::{GPU_MIB, GPUS};
use e2e::progress::line;
use e2e::{Cluster, Node, quantity};
use k8s_openapi::api::core::v1::{Container, Node as NodeObject, Pod};
use k8s_openapi::api::resource::v1::{
    Device as ApiDevice, ResourceClaim, ResourceClaimTemplate, ResourceSlice,
};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::env::{NAMESPACE, TestEnv, parse};
use crate::gpu::gpus::closed;
use crate::support::callers::{Caller, Verb};
use crate::support::gpu_audit::what_differs;
use crate::support::pods::{START, gpu_container, list, name, node, pod, processes_of, runs, uid};

/// The driver that gives out shares.
pub(crate) const DRIVER: &str = "gpu.plimsoll.dev";
/// The DeviceClass of shares.
pub(crate) const CLASS: &str = "gpu-share.plimsoll.dev";
/// The taint of a GPU that takes no new claims, and that of one that has failed.
pub(crate) const CLOSED: &str = "plimsoll.dev/closed";
pub(crate) const UNHEALTHY: &str = "plimsoll.dev/unhealthy";
/// The label that says how a node's GPUs are given out.
pub(crate) const MODE: &str = "plimsoll.dev/gpu-mode";
pub(crate) const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
/// The variable that tells what its pod asks for, in MiB.
pub(crate) const ASKED: &str = "E2E_ASKED_MIB";

/// Runs the work while this node's GPUs are given out by claims, and none of the other's. Where the release has no
/// shares of devices, it says so instead.
pub(crate) fn with(env: &TestEnv, host: &Node, work: impl FnOnce() -> Result<()>) -> Result<()> {
    if !has_shares(env, host)? {
        line(&format!(
            "SKIPPED: Kubernetes {} has no shares of devices (DRAConsumableCapacity)",
            env.kubernetes()
        ));
        return Ok(());
    }
    let tried = set_by_claims(env, host, true)
        .and_then(|()| {
            wait_for("a ResourceSlice of open GPUs", START, || {
                let all = devices(env, host)?;
                ensure!(all.len() == usize::from(GPUS), "{all:?}");
                Ok(all.iter().all(|device| device.taints.is_empty()).then_some(()))
            })
        })
        .and_then(|()| closed(env, host, usize::from(GPUS)))
        .and_then(|()| work());
    if tried.is_err() {
        // The diagnostics show pods and claims, which the next reset removes.
        let offered = format!("{} offered {:?}", host.name(), devices(env, host));
        let unlabelled = label_none(env, env.cluster()?);
        return tried.context(offered).and(unlabelled);
    }
    env.delete_all_pods()?;
    forget(env, env.cluster()?)?;
    env.cluster()?.nodes().iter().try_for_each(|host| closed(env, host, 0))
}

/// Removes the claims that tests left, and has every node give out units.
pub(crate) fn forget(env: &TestEnv, cluster: &Cluster) -> Result<()> {
    let templates: Api<ResourceClaimTemplate> = Api::namespaced(env.client(), NAMESPACE);
    let (delete, all) = (DeleteParams::default(), ListParams::default());
    env.block_on(templates.delete_collection(&delete, &all))?;
    env.block_on(claims(env).delete_collection(&delete, &all))?;
    label_none(env, cluster)?;
    let slices: Api<ResourceSlice> = Api::all(env.client());
    wait_for("claims and ResourceSlices to be gone", START, || {
        let slices = env.block_on(slices.list(&all))?.items;
        let ours = slices.iter().any(|slice| slice.spec.driver == DRIVER);
        Ok((!ours && env.block_on(claims(env).list(&all))?.items.is_empty()).then_some(()))
    })
}

fn label_none(env: &TestEnv, cluster: &Cluster) -> Result<()> {
    cluster.nodes().iter().try_for_each(|host| set_by_claims(env, host, false))
}

/// Has the node give out its GPUs by claims, or by units.
pub(crate) fn set_by_claims(env: &TestEnv, host: &Node, by_claims: bool) -> Result<()> {
    let nodes: Api<NodeObject> = Api::all(env.client());
    let mode = by_claims.then_some("claims");
    let patch = Patch::Merge(json!({"metadata": {"labels": {MODE: mode}}}));
    env.block_on(nodes.patch(host.name(), &PatchParams::default(), &patch)).map(drop)
}

/// Whether the API server keeps what a shared device needs. One without the feature drops it.
pub(crate) fn has_shares(env: &TestEnv, host: &Node) -> Result<bool> {
    let mut slice = slice("shares", "shares.plimsoll-e2e.example", host.name());
    slice["spec"]["devices"] = json!([{"name": "shared", "allowMultipleAllocations": true}]);
    let path = format!("{SLICES}?dryRun=All");
    let made = Caller::administrator(env)?.done(env, Verb::Create, &path, &slice)?;
    Ok(made["spec"]["devices"][0]["allowMultipleAllocations"] == true)
}

/// A ResourceSlice of one device.
pub(crate) fn slice(name: &str, driver: &str, node: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
        "spec": {
            "driver": driver, "nodeName": node, "devices": [{"name": "device"}],
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        },
    })
}

/// The name of the node's ResourceSlice.
pub(crate) fn slice_name(node: &str) -> String {
    format!("{node}-{DRIVER}")
}

/// A GPU as its node's ResourceSlice offers it.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) uuid: String,
    pub(crate) mib: u64,
    /// The keys of its taints, all of which keep new claims off.
    pub(crate) taints: Vec<String>,
}

/// The node's ResourceSlice.
pub(crate) fn slice_of(env: &TestEnv, host: &Node) -> Result<ResourceSlice> {
    let slices: Api<ResourceSlice> = Api::all(env.client());
    env.block_on(slices.get(&slice_name(host.name())))
}

/// The devices of the node's ResourceSlice, in its order: kube-scheduler takes the first that fits.
pub(crate) fn devices(env: &TestEnv, host: &Node) -> Result<Vec<Device>> {
    let devices = slice_of(env, host)?.spec.devices.unwrap_or_default();
    devices.into_iter().map(device).collect()
}

fn device(device: ApiDevice) -> Result<Device> {
    let mut attributes = device.attributes.unwrap_or_default();
    let uuid = attributes.remove("uuid").and_then(|attribute| attribute.string);
    let uuid = uuid.with_context(|| format!("{} has no UUID", device.name))?;
    ensure!(device.name == uuid.to_lowercase(), "{uuid} is named {}", device.name);
    ensure!(device.allow_multiple_allocations == Some(true), "{uuid} cannot be shared");
    let capacity = device.capacity.unwrap_or_default();
    let memory = &capacity.get("memory").context("a GPU without memory")?.value.0;
    let taints = device.taints.unwrap_or_default();
    let soft = taints.iter().find(|taint| taint.effect != "NoSchedule");
    ensure!(soft.is_none(), "{uuid} has {soft:?}");
    let taints = taints.into_iter().map(|taint| taint.key).collect();
    Ok(Device { uuid, mib: mebibytes(memory)?, taints })
}

fn mebibytes(text: &str) -> Result<u64> {
    let bytes = quantity::whole(text).with_context(|| format!("{text} is no amount of memory"))?;
    Ok(bytes >> 20)
}

/// What pods ask for: memory of any GPU, or of this one.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    pub(crate) mib: u64,
    gpu: Option<String>,
    class: &'static str,
}

impl Share {
    /// Memory of any GPU.
    pub(crate) fn of(mib: u64) -> Self {
        Self { mib, gpu: None, class: CLASS }
    }

    /// Memory of the GPU with this UUID.
    pub(crate) fn of_gpu(mib: u64, uuid: &str) -> Self {
        Self { gpu: Some(uuid.to_owned()), ..Self::of(mib) }
    }

    /// The same by another DeviceClass.
    pub(crate) fn by_class(self, class: &'static str) -> Self {
        Self { class, ..self }
    }

    /// The name of its ResourceClaimTemplate.
    fn template(&self) -> String {
        let gpu = self.gpu.as_deref().unwrap_or("any");
        format!("mib-{}-of-{}", self.mib, gpu.to_lowercase())
    }

    /// Creates its ResourceClaimTemplate.
    pub(crate) fn create(&self, env: &TestEnv) -> Result<()> {
        let templates: Api<ResourceClaimTemplate> = Api::namespaced(env.client(), NAMESPACE);
        let spec = json!({"spec": self.spec(), "metadata": {"name": self.template()}});
        env.block_on(templates.create(&PostParams::default(), &parse(spec)?)).map(drop)
    }

    fn spec(&self) -> Value {
        let mut exactly = json!({"deviceClassName": self.class});
        // A claim without a capacity gets all of it.
        if self.mib != GPU_MIB {
            exactly["capacity"] = json!({"requests": {"memory": format!("{}Mi", self.mib)}});
        }
        if let Some(gpu) = &self.gpu {
            let wanted = format!("device.attributes['{DRIVER}'].uuid == '{gpu}'");
            exactly["selectors"] = json!([{"cel": {"expression": wanted}}]);
        }
        json!({"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}})
    }

    /// A pod of one container that waits for its end, with this share.
    pub(crate) fn pod(&self, name: &str) -> Value {
        self.given_to(pod(name, &[gpu_container("main", 1)]))
    }

    /// The same pod with this share in place of units.
    pub(crate) fn given_to(&self, mut pod: Value) -> Value {
        let spec = &mut pod["spec"];
        spec["resourceClaims"] =
            json!([{"name": "gpu", "resourceClaimTemplateName": self.template()}]);
        spec["containers"][0]["resources"] = json!({"claims": [{"name": "gpu"}]});
        asks(&mut spec["containers"][0], self.mib);
        pod
    }
}

/// Tells the comparison what the container asks for.
pub(crate) fn asks(container: &mut Value, mib: u64) {
    container["env"] = json!([{"name": ASKED, "value": mib.to_string()}]);
}

/// The memory that a pod asks for by [`asks`], in MiB; `None` for other pods.
pub(crate) fn asked_mib(pod: &Pod) -> Option<u64> {
    let mut variables = asking(pod)?.env.iter().flatten();
    variables.find(|variable| variable.name == ASKED)?.value.as_ref()?.parse().ok()
}

/// The container for which [`asks`] was called.
fn asking(pod: &Pod) -> Option<&Container> {
    let asks = |it: &&Container| it.env.iter().flatten().any(|variable| variable.name == ASKED);
    pod.spec.as_ref()?.containers.iter().find(asks)
}

/// The API of the tests' claims.
pub(crate) fn claims(env: &TestEnv) -> Api<ResourceClaim> {
    Api::namespaced(env.client(), NAMESPACE)
}

/// What was allocated to a claim.
#[derive(Debug, Clone)]
pub(crate) struct Allocated {
    /// The pod's UID.
    pub(crate) pod: String,
    /// The GPU's UUID, in lower case.
    pub(crate) device: String,
    pub(crate) mib: u64,
}

/// What was allocated to the tests' claims.
pub(crate) fn allocated(env: &TestEnv) -> Result<Vec<Allocated>> {
    let mut all = Vec::new();
    for claim in env.block_on(claims(env).list(&ListParams::default()))?.items {
        let Some(status) = claim.status else { continue };
        let Some(devices) = status.allocation.and_then(|it| it.devices) else { continue };
        let pod = status.reserved_for.unwrap_or_default().into_iter().next();
        let pod = pod.map(|pod| pod.uid).unwrap_or_default();
        for result in devices.results.unwrap_or_default() {
            ensure!(result.driver == DRIVER, "{} gave out {}", result.driver, result.device);
            let consumed = result.consumed_capacity.unwrap_or_default();
            let memory = &consumed.get("memory").context("no memory was allocated")?.0;
            let mib = mebibytes(memory)?;
            all.push(Allocated { pod: pod.clone(), device: result.device, mib });
        }
    }
    Ok(all)
}

/// The most memory that one of the devices has left, in MiB.
pub(crate) fn most_left(devices: &[Device], allocated: &[Allocated]) -> u64 {
    let left = devices.iter().map(|device| {
        let here = allocated.iter().filter(|share| share.device == device.uuid.to_lowercase());
        device.mib.saturating_sub(here.map(|share| share.mib).sum())
    });
    left.max().unwrap_or(0)
}

/// Compares every running pod that has a share with its allocation, adds to the counts of the run, and returns the
/// pods' names and what they have of each GPU, in MiB.
pub(crate) fn audit(env: &TestEnv) -> Result<(BTreeSet<String>, BTreeMap<String, u64>)> {
    let allocated = allocated(env)?;
    let mut wrong = Vec::new();
    let (mut compared, mut uids, mut by_gpu) = (BTreeSet::new(), Vec::new(), BTreeMap::new());
    for pod in list(env)?.iter().filter(|pod| runs(pod)) {
        let Some(asked) = asked_mib(pod) else { continue };
        let host = env.cluster()?.node(node(pod).unwrap_or_default())?;
        let mine: Vec<_> = allocated.iter().filter(|share| share.pod == uid(pod)).collect();
        let [share] = mine[..] else { bail!("{} has {mine:?}", name(pod)) };
        let gpus = host.gpus();
        let gpu = gpus.iter().find(|gpu| gpu.uuid.to_lowercase() == share.device);
        let gpu = &gpu.with_context(|| format!("{} has no {}", host.name(), share.device))?.uuid;
        let mut found = Vec::new();
        if share.mib != asked {
            found.push(format!("it asks for {asked} MiB"));
        }
        let processes = processes_of(pod, &asking(pod).context("no container asks")?.name)?;
        ensure!(!processes.is_empty(), "{} has no process", name(pod));
        for process in processes {
            found.extend(what_differs(host, process, &BTreeSet::from([gpu.as_str()]))?);
        }
        wrong.extend(found.into_iter().map(|what| format!("{}, {share:?}: {what}", name(pod))));
        *by_gpu.entry(gpu.clone()).or_default() += share.mib;
        compared.insert(name(pod).to_owned());
        uids.push(uid(pod).to_owned());
    }
    env.count(|counts| {
        counts.gpu_pods.extend(uids);
        counts.mismatches += wrong.len();
    });
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    no_gpu_is_over(env)?;
    Ok((compared, by_gpu))
}

/// As [`audit`], and an error unless exactly `expected` pods were compared.
pub(crate) fn audit_exactly(env: &TestEnv, expected: usize) -> Result<BTreeMap<String, u64>> {
    let (compared, by_gpu) = audit(env)?;
    ensure!(compared.len() == expected, "{compared:?} were compared, not {expected}");
    Ok(by_gpu)
}

/// An error if processes that run at this moment have more of a GPU by claims than it has, whatever the API says of
/// their pods.
pub(crate) fn no_gpu_is_over(env: &TestEnv) -> Result<()> {
    let mut held = Vec::new();
    for process in processes::all()? {
        let (Some(at), Ok(environment)) =
            (processes::started(process), processes::environ(process))
        else {
            continue;
        };
        let asked = environment.get(ASKED).and_then(|text| text.parse::<u64>().ok());
        if let (Some(gpu), Some(mib)) = (environment.get("PLIMSOLL_GPU_UUID"), asked) {
            held.push((process, at, gpu.clone(), mib));
        }
    }
    let mut by_gpu = BTreeMap::<String, u64>::new();
    // All that are still there were there together.
    for (_, _, gpu, mib) in held.into_iter().filter(|(pid, at, ..)| processes::runs(*pid, *at)) {
        *by_gpu.entry(gpu).or_default() += mib;
    }
    let over: u64 = by_gpu.values().map(|mib| mib.saturating_sub(GPU_MIB)).sum();
    env.count(|counts| counts.overbooked_units += over.div_ceil(1024));
    ensure!(over == 0, "overbooked, in MiB: {by_gpu:?}");
    Ok(())
}
