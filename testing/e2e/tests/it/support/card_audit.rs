//! Owns the comparison of cards: the one that a pod claims, the one that its processes see, and the one whose device ids
//! the kubelet has recorded for it. It also adds up the units on each card.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use e2e::kernel::processes::{self, Pid};
use e2e::{Cluster, Node};
use k8s_openapi::api::core::v1::Pod;

use crate::env::TestEnv;
use crate::support::kubelet_checkpoint::{self, Held};
use crate::support::pods::{
    annotation, gpu_containers, list, name, node, phase, processes_of, uid, units,
};

/// The annotation that holds a pod's claim.
pub(crate) const CLAIM: &str = "plimsoll.dev/gpu-claim";
/// The units of each card; a unit is 1 GiB.
const CARD_UNITS: u64 = e2e::node::cards::CARD_MIB / 1024;

/// The result of one comparison.
#[derive(Debug, Default)]
struct Findings {
    mismatches: Vec<String>,
    /// Each card that processes see, with the units of their pods.
    units_by_card: BTreeMap<String, u64>,
}

/// Compares every running GPU pod, adds to the counts of the run, and returns how many pods were compared. Any
/// difference is an error.
pub(crate) fn audit(env: &TestEnv) -> Result<usize> {
    let pods: Vec<Pod> = list(env)?
        .into_iter()
        .filter(|pod| phase(pod) == "Running" && !gpu_containers(pod).is_empty())
        .collect();
    let findings = compare(env.cluster()?, &pods)?;
    let over: BTreeMap<&String, u64> = findings
        .units_by_card
        .iter()
        .map(|(card, units)| (card, units.saturating_sub(CARD_UNITS)))
        .collect();
    env.count(|counts| {
        counts.gpu_pods.extend(pods.iter().map(|pod| uid(pod).to_owned()));
        counts.mismatches += findings.mismatches.len();
        counts.overbooked_units += over.values().sum::<u64>();
    });
    ensure!(findings.mismatches.is_empty(), "{}", findings.mismatches.join("\n"));
    ensure!(over.values().all(|units| *units == 0), "overbooked: {:?}", findings.units_by_card);
    Ok(pods.len())
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
            let card = compare_pod(host, &held, pod, &mut findings.mismatches)
                .with_context(|| format!("pod {}", name(pod)))?;
            *findings.units_by_card.entry(card).or_default() += peak(pod);
        }
    }
    Ok(findings)
}

/// Compares one pod and returns the card that its processes see.
fn compare_pod(
    host: &Node,
    held: &[Held],
    pod: &Pod,
    mismatches: &mut Vec<String>,
) -> Result<String> {
    let claim = claim(pod)?;
    let mut card = String::new();
    for (container, units) in gpu_containers(pod) {
        let claimed = claim.get(container).with_context(|| format!("{container} has no claim"))?;
        let (uuid, claimed_units) = claimed.iter().next().context("an empty claim")?;
        let (_, processes) = (claimed_units, processes_of(pod, container)?);
        ensure!(!processes.is_empty(), "{container} has no process");
        for process in processes {
            card = visible_card(process)?;
            let mut wrong = |what: String| {
                mismatches.push(format!("{}/{container} claims {uuid}: {what}", name(pod)));
            };
            what_differs(host, process, uuid)?.into_iter().for_each(&mut wrong);
            if claimed.len() != 1 || *claimed_units != units {
                wrong(format!("the claim is {claimed:?}, the request {units}"));
            }
            if !recorded(held, pod, container, uuid, units) {
                wrong("the kubelet has recorded other devices for it".to_owned());
            }
        }
    }
    Ok(card)
}

/// Describes each way in which the process sees something else than the card `uuid`.
fn what_differs(host: &Node, process: Pid, uuid: &str) -> Result<Vec<String>> {
    let environment = processes::environ(process)?;
    let minor = host.cards().iter().find(|card| card.uuid == uuid).map(|card| card.minor);
    let minor = minor.with_context(|| format!("{} has no card {uuid}", host.name()))?;
    let mut wrong = Vec::new();
    for (variable, wanted) in [("PLIMSOLL_GPU_UUID", uuid), ("NVIDIA_VISIBLE_DEVICES", "void")] {
        let found = environment.get(variable).map(String::as_str);
        if found != Some(wanted) {
            wrong.push(format!("its process has {variable}={found:?}"));
        }
    }
    let nodes = processes::numbered_devices(process, "nvidia")?;
    if nodes != [(minor, (e2e::node::cards::MAJOR, u32::from(minor)))] {
        wrong.push(format!("its process has the device nodes {nodes:?}, not {minor}"));
    }
    let allowed = allowed_cards(process)?;
    if allowed.as_ref().is_some_and(|allowed| *allowed != [u32::from(minor)]) {
        wrong.push(format!("its device cgroup allows {allowed:?}, not {minor}"));
    }
    Ok(wrong)
}

/// The minor numbers of the cards that the device cgroup allows; `None` under cgroup version 2.
fn allowed_cards(process: Pid) -> Result<Option<Vec<u32>>> {
    let prefix = format!("c {}:", e2e::node::cards::MAJOR);
    let minor = |line: &String| line.strip_prefix(&prefix)?.split(' ').next()?.parse().ok();
    let minors = |lines: Vec<String>| -> Vec<u32> {
        lines
            .iter()
            .filter_map(minor)
            .filter(|minor| *minor != e2e::node::cards::CONTROL_MINOR)
            .collect()
    };
    Ok(processes::device_cgroup(process)?.map(minors))
}

fn recorded(held: &[Held], pod: &Pod, container: &str, uuid: &str, units: u64) -> bool {
    let mine = held.iter().find(|held| held.pod_uid == uid(pod) && held.container == container);
    mine.is_some_and(|mine| mine.all_on(uuid) && mine.ids.len() as u64 == units)
}

/// The card in the process's environment.
pub(crate) fn visible_card(process: Pid) -> Result<String> {
    let mut environment = processes::environ(process)?;
    environment.remove("PLIMSOLL_GPU_UUID").context("the process has no PLIMSOLL_GPU_UUID")
}

/// The pod's claim: units by container and card.
pub(crate) fn claim(pod: &Pod) -> Result<BTreeMap<String, BTreeMap<String, u64>>> {
    let text = annotation(pod, CLAIM).with_context(|| format!("{} has no claim", name(pod)))?;
    serde_json::from_str(text).with_context(|| format!("malformed claim: {text}"))
}

/// The units that the kubelet sets aside for the pod: the sum of its app containers, or a larger init container.
fn peak(pod: &Pod) -> u64 {
    let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let largest = init.map(units).max().unwrap_or(0);
    gpu_containers(pod).values().sum::<u64>().max(largest)
}
