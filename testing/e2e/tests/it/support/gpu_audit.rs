//! Owns the comparison of GPUs: those that a pod claims, those that its processes see, and those whose device ids
//! the kubelet has recorded for it. It also adds up the units on each GPU.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use e2e::kernel::processes::{self, Pid};
use e2e::{Cluster, Node};
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;

use crate::env::TestEnv;
use crate::support::kubelet_checkpoint::{self, Held};
use crate::support::pods::{
    annotation, gpu_containers, list, name, node, phase, processes_of, uid, units,
};

/// The annotation that holds a pod's claim.
pub(crate) const CLAIM: &str = "plimsoll.dev/gpu-claim";
/// The units of each GPU; a unit is 1 GiB.
const GPU_UNITS: u64 = e2e::node::gpus::GPU_MIB / 1024;

/// The result of one comparison.
#[derive(Debug, Default)]
struct Findings {
    mismatches: Vec<String>,
    /// Each GPU that processes see, with the units of their pods.
    units_by_gpu: BTreeMap<String, u64>,
}

/// What a pod claims of one GPU: units, or units and more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Share {
    Units(u64),
    Detailed {
        units: u64,
        #[serde(default)]
        exclusive: bool,
    },
}

impl Share {
    fn units(self) -> u64 {
        match self {
            Self::Units(units) | Self::Detailed { units, .. } => units,
        }
    }

    fn is_exclusive(self) -> bool {
        matches!(self, Self::Detailed { exclusive: true, .. })
    }
}

/// Units by container and GPU.
pub(crate) type Claim = BTreeMap<String, BTreeMap<String, Share>>;

/// Compares every running GPU pod, adds to the counts of the run, and returns how many pods were compared. Any
/// difference is an error.
pub(crate) fn audit(env: &TestEnv) -> Result<usize> {
    let pods: Vec<Pod> = list(env)?
        .into_iter()
        .filter(|pod| phase(pod) == "Running" && !gpu_containers(pod).is_empty())
        .collect();
    audit_pods(env, &pods).map(|_| pods.len())
}

/// As [`audit`], of these running GPU pods, and returns the units that each of their GPUs is charged.
pub(crate) fn audit_pods(env: &TestEnv, pods: &[Pod]) -> Result<BTreeMap<String, u64>> {
    audit_on_gpus_of(env, pods, GPU_UNITS)
}

/// As [`audit_pods`], where each GPU has so many units. No pod may want a GPU for itself.
pub(crate) fn audit_on_gpus_of(
    env: &TestEnv,
    pods: &[Pod],
    gpu_units: u64,
) -> Result<BTreeMap<String, u64>> {
    let findings = compare(env.cluster()?, pods)?;
    let over: BTreeMap<&String, u64> = findings
        .units_by_gpu
        .iter()
        .map(|(gpu, units)| (gpu, units.saturating_sub(gpu_units)))
        .collect();
    env.count(|counts| {
        counts.gpu_pods.extend(pods.iter().map(|pod| uid(pod).to_owned()));
        counts.mismatches += findings.mismatches.len();
        counts.overbooked_units += over.values().sum::<u64>();
    });
    ensure!(findings.mismatches.is_empty(), "{}", findings.mismatches.join("\n"));
    ensure!(over.values().all(|units| *units == 0), "overbooked: {:?}", findings.units_by_gpu);
    Ok(findings.units_by_gpu)
}

/// As [`audit`], and an error unless exactly `expected` pods were compared.
pub(crate) fn audit_exactly(env: &TestEnv, expected: usize) -> Result<()> {
    let compared = audit(env)?;
    ensure!(compared == expected, "{compared} GPU pods were compared, not {expected}");
    Ok(())
}

fn compare(cluster: &Cluster, pods: &[Pod]) -> Result<Findings> {
    let mut findings = Findings::default();
    for host in cluster.nodes() {
        let held = kubelet_checkpoint::read(host)?;
        let here = pods.iter().filter(|pod| node(pod) == Some(host.name()));
        for pod in here {
            compare_pod(host, &held, pod, &mut findings.mismatches)
                .with_context(|| format!("pod {}", name(pod)))?;
            for (gpu, units) in charges(pod)? {
                *findings.units_by_gpu.entry(gpu).or_default() += units;
            }
        }
    }
    Ok(findings)
}

/// Compares one pod.
fn compare_pod(host: &Node, held: &[Held], pod: &Pod, mismatches: &mut Vec<String>) -> Result<()> {
    let claim = claim(pod)?;
    for (container, units) in gpu_containers(pod) {
        let claimed = claim.get(container).with_context(|| format!("{container} has no claim"))?;
        let processes = processes_of(pod, container)?;
        ensure!(!processes.is_empty(), "{container} has no process");
        let gpus: BTreeSet<&str> = claimed.keys().map(String::as_str).collect();
        for process in processes {
            let mut wrong = what_differs(host, process, &gpus)?;
            if claimed.values().map(|share| share.units()).sum::<u64>() != units {
                wrong.push(format!("the request is {units}"));
            }
            if !recorded(held, pod, container, claimed) {
                wrong.push("the kubelet has recorded other devices for it".to_owned());
            }
            for what in wrong {
                mismatches.push(format!("{}/{container} claims {claimed:?}: {what}", name(pod)));
            }
        }
    }
    Ok(())
}

/// What each of the pod's GPUs is charged, by its claim.
pub(crate) fn charges(pod: &Pod) -> Result<BTreeMap<String, u64>> {
    let mut charges: BTreeMap<String, u64> = BTreeMap::new();
    let mut whole = BTreeSet::new();
    for (gpu, share) in claim(pod)?.into_values().flatten() {
        if share.is_exclusive() {
            whole.insert(gpu.clone());
        }
        *charges.entry(gpu).or_default() += share.units();
    }
    // An init container's devices are all on one GPU.
    if let (1, Some(units)) = (charges.len(), charges.values_mut().next()) {
        *units = peak(pod);
    }
    for gpu in whole {
        charges.insert(gpu, GPU_UNITS);
    }
    Ok(charges)
}

/// Describes each way in which the process sees something else than these GPUs.
pub(crate) fn what_differs(
    host: &Node,
    process: Pid,
    gpus: &BTreeSet<&str>,
) -> Result<Vec<String>> {
    let environment = processes::environ(process)?;
    let all = host.gpus();
    let mine: Vec<_> = all.iter().filter(|gpu| gpus.contains(gpu.uuid.as_str())).collect();
    ensure!(mine.len() == gpus.len(), "{} has not all GPUs of {gpus:?}", host.name());
    let uuids: Vec<&str> = mine.iter().map(|gpu| gpu.uuid.as_str()).collect();
    let several = (uuids.len() > 1).then(|| uuids.join(","));
    let mut wrong = Vec::new();
    for (variable, wanted) in [
        ("PLIMSOLL_GPU_UUID", uuids.first().copied()),
        ("PLIMSOLL_GPU_UUIDS", several.as_deref()),
        ("NVIDIA_VISIBLE_DEVICES", Some("void")),
    ] {
        let found = environment.get(variable).map(String::as_str);
        if found != wanted {
            wrong.push(format!("its process has {variable}={found:?}"));
        }
    }
    let mut nodes = processes::numbered_devices(process, "nvidia")?;
    nodes.sort_unstable();
    let minors: Vec<u32> = mine.iter().map(|gpu| u32::from(gpu.minor)).collect();
    let wanted: Vec<_> = mine
        .iter()
        .map(|gpu| (gpu.minor, (e2e::node::gpus::MAJOR, u32::from(gpu.minor))))
        .collect();
    if nodes != wanted {
        wrong.push(format!("its process has the device nodes {nodes:?}, not {minors:?}"));
    }
    let allowed = allowed_gpus(process)?;
    if allowed.as_ref().is_some_and(|allowed| *allowed != minors) {
        wrong.push(format!("its device cgroup allows {allowed:?}, not {minors:?}"));
    }
    Ok(wrong)
}

/// The minor numbers of the GPUs that the device cgroup allows; `None` under cgroup version 2.
fn allowed_gpus(process: Pid) -> Result<Option<Vec<u32>>> {
    let prefix = format!("c {}:", e2e::node::gpus::MAJOR);
    let Some(lines) = processes::device_cgroup(process)? else { return Ok(None) };
    let rules = lines.iter().filter_map(|line| line.strip_prefix(&prefix));
    let mut minors: Vec<u32> =
        rules.filter_map(|rule| rule.split(' ').next()?.parse().ok()).collect();
    let of_all = [e2e::node::gpus::CONTROL_MINOR, e2e::node::gpus::UVM_MINOR];
    minors.retain(|minor| !of_all.contains(minor));
    minors.sort_unstable();
    Ok(Some(minors))
}

fn recorded(held: &[Held], pod: &Pod, container: &str, claimed: &BTreeMap<String, Share>) -> bool {
    let mine = held.iter().find(|held| held.pod_uid == uid(pod) && held.container == container);
    mine.is_some_and(|mine| {
        let units: u64 = claimed.values().map(|share| share.units()).sum();
        mine.ids.len() as u64 == units
            && claimed.iter().all(|(gpu, share): (&String, &Share)| mine.on(gpu) == share.units())
    })
}

/// The GPU in the process's environment; of several the first.
pub(crate) fn visible_gpu(process: Pid) -> Result<String> {
    let mut environment = processes::environ(process)?;
    environment.remove("PLIMSOLL_GPU_UUID").context("the process has no PLIMSOLL_GPU_UUID")
}

/// The pod's claim: units by container and GPU.
pub(crate) fn claim(pod: &Pod) -> Result<Claim> {
    let text = annotation(pod, CLAIM).with_context(|| format!("{} has no claim", name(pod)))?;
    serde_json::from_str(text).with_context(|| format!("malformed claim: {text}"))
}

/// The units that the kubelet sets aside for the pod: the sum of its app containers, or a larger init container.
fn peak(pod: &Pod) -> u64 {
    let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let largest = init.map(units).max().unwrap_or(0);
    gpu_containers(pod).values().sum::<u64>().max(largest)
}
