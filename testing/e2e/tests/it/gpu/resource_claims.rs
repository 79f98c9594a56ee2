//! Tests of GPU shares by ResourceClaims: each process sees the GPU that was allocated to its claim, and no GPU has
//! more than its memory, whatever is killed, deleted or relabelled.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use e2e::Node;
use e2e::command::wait_for;
use e2e::kernel::processes;
use e2e::node::gpus::{GPU_MIB, GPUS};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use super::aliyun::RECOVERED;
use super::forced_deletion::{
    NEXT, delete_by_force, ends_before_next, is_there, started_of, stubborn,
};
use super::gpu_evictions::evicting;
use super::gpus::closed;
use crate::cluster::admission::token;
use crate::env::{NAMESPACE, TestEnv, parse};
use crate::failures::chaos::setting;
use crate::support::callers::{Caller, Verb};
use crate::support::extender_client::{EXTENDER, explained_by_each};
use crate::support::gpu_audit;
use crate::support::pods::{
    GPU, START, all_running, create, create_all, delete_all, get, gpu_container, gpu_containers,
    gpu_pods, idle_container, list, message, name, node, on_node, phase, pod, running, runs, uid,
    unschedulable,
};
use crate::support::policy;
use crate::support::priorities::{self, HIGH, of_class};
use crate::support::resource_claims::{
    CLASS, CLOSED, DRIVER, Device, MODE, SLICES, Share, UNHEALTHY, allocated, asked_mib, asks,
    audit, audit_exactly, claims, devices, has_shares, most_left, no_gpu_is_over, set_by_claims,
    slice, slice_name, slice_of, with,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("a_claims_process_sees_the_gpu_that_was_allocated_and_no_other", one_pod)
        .takes(20)
        .smoke(),
    on_our_nodes("many_claims_of_mixed_sizes_are_each_on_their_gpu_and_no_gpu_is_over", many)
        .takes(120)
        .smoke(),
    on_our_nodes("sixteen_halves_on_eight_gpus_and_forty_shares_on_a_node_at_once", at_once)
        .takes(60),
    on_our_nodes("pods_with_claims_go_to_the_fullest_gpu_of_all_nodes", fullest).takes(30),
    on_our_nodes("the_less_important_pods_of_one_gpu_go_for_a_pod_with_a_claim", preempts)
        .takes(90),
    on_our_nodes("a_forced_deletion_holds_the_memory_until_the_process_has_ended", forced)
        .takes(60),
    on_our_nodes("claims_survive_restarts_of_the_device_plugin_and_the_kubelet", restarts)
        .takes(200),
    on_our_nodes("claims_are_carried_out_while_programs_are_killed_in_bursts", killed).takes(400),
    on_our_nodes("a_node_in_units_mode_and_one_in_claims_mode_side_by_side", side_by_side)
        .takes(100),
    on_our_nodes("an_unhealthy_gpu_is_tainted_within_ten_seconds_and_recovers", unhealthy)
        .takes(60),
    on_our_nodes("a_forged_claim_status_is_refused", forged).takes(5),
    on_our_nodes("units_of_a_labelled_namespace_become_claims", unedited).takes(30),
];

const GIB: u64 = 1024;
/// The variable of the number of pods of mixed sizes, and that of a run of all tests.
const PODS: (&str, u64) = ("CLAIMS_PODS", 40);
/// Their sizes are 1 GiB to this.
const LARGEST_GIB: u64 = 6;
/// From the end of the process that had a GPU to the next pod that runs on it.
const NEXT_RUNS: Duration = Duration::from_secs(60);
/// The driver finds out by itself that a pod is gone which its kubelet has forgotten.
const FORGOTTEN: Duration = Duration::from_secs(130);
/// The first look at a pod that waits comes after 10 s, and kube-scheduler tries it once the evicted have ended.
const EVICTED: Duration = Duration::from_secs(90);
const TAINTED: Duration = Duration::from_secs(10);
/// The kubelet's record of prepared claims, inside a node.
const KUBELET_RECORD: &str = "/var/lib/kubelet/dra_manager_state";
const PLUGIN: &str = "gpushare-device-plugin";
/// A policy by which the fullest GPU decides, and neither load, recent bindings nor the pods that were seen so far.
const FULLEST: &str = "\
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  metrics: []
  gpu: {placement: pack}
";

/// The node whose GPUs are given out by claims. The control plane is on the other one.
fn host(env: &TestEnv) -> Result<&Node> {
    env.cluster()?.nodes().get(1).context("not two nodes")
}

/// Which GPU it is, a selector says: without one it would be the first of all.
fn one_pod(env: &TestEnv) -> Result<()> {
    let host = host(env)?;
    with(env, host, || {
        let last = &host.gpus()[usize::from(GPUS) - 1].uuid;
        let share = Share::of_gpu(4 * GIB, last);
        share.create(env)?;
        create(env, on_node(host, share.pod("one")))?;
        running(env, "one", START)?;
        let by_gpu = audit_exactly(env, 1)?;
        ensure!(by_gpu == [(last.clone(), 4 * GIB)].into(), "{by_gpu:?}");
        is_first(env, host, last)?;
        let devices = devices(env, host)?;
        for gpu in host.gpus() {
            // These nodes keep nothing back.
            let whole = |device: &Device| device.uuid == gpu.uuid && device.mib == GPU_MIB;
            ensure!(devices.iter().any(whole), "{}: {devices:?}", gpu.uuid);
        }
        Ok(())
    })
}

/// Waits until the node's ResourceSlice has this GPU first: it is the fullest.
fn is_first(env: &TestEnv, host: &Node, gpu: &str) -> Result<()> {
    wait_for("the fullest GPU to be first in the ResourceSlice", START, || {
        let devices = devices(env, host)?;
        ensure!(devices.len() == usize::from(GPUS), "{devices:?}");
        Ok((devices[0].uuid == gpu).then_some(()))
    })
}

/// More than fit, until each has run: of those that run half are deleted again and again, and others follow.
fn many(env: &TestEnv) -> Result<()> {
    let count = setting(PODS)?;
    let host = host(env)?;
    with(env, host, || {
        let began = Instant::now();
        let shares: Vec<Share> = (1..=LARGEST_GIB).map(|gib| Share::of(gib * GIB)).collect();
        shares.iter().try_for_each(|share| share.create(env))?;
        let pods = shares.iter().cycle().zip(0..count);
        let pods = pods.map(|(share, n)| on_node(host, share.pod(&format!("many-{n}"))));
        create_all(env, pods.collect())?;
        let mut seen = BTreeSet::new();
        loop {
            let waiting = as_many_as_fit_run(env, host)?;
            let (compared, _) = audit(env)?;
            let half: Vec<String> = compared.iter().step_by(2).cloned().collect();
            seen.extend(compared);
            if waiting == 0 {
                break;
            }
            delete_all(env, half.iter().map(String::as_str))?;
        }
        ensure!(seen.len() as u64 == count, "{} of {count} pods were compared", seen.len());
        env.figure(
            &format!("seconds_of_{count}_pods_with_claims"),
            began.elapsed().as_secs().to_string(),
        );
        Ok(())
    })
}

/// Waits until each pod that has a node runs and no other fits on a GPU, and returns how many wait. An error if
/// processes have more of a GPU than it has at any look.
fn as_many_as_fit_run(env: &TestEnv, host: &Node) -> Result<usize> {
    wait_for("as many pods as fit to run", START, || {
        if let Err(over) = no_gpu_is_over(env) {
            return Ok(Some(Err(over)));
        }
        let allocated = allocated(env)?;
        let pods = list(env)?;
        if let Some(failed) = pods.iter().find(|pod| phase(pod) == "Failed") {
            return Ok(Some(Err(anyhow!("{} failed: {}", name(failed), message(failed)))));
        }
        let gone = allocated.iter().find(|share| !pods.iter().any(|pod| uid(pod) == share.pod));
        ensure!(gone.is_none(), "{gone:?} has no pod");
        let (placed, waiting): (Vec<_>, Vec<_>) = pods.iter().partition(|pod| node(pod).is_some());
        let late = placed.iter().find(|pod| !runs(pod));
        ensure!(late.is_none(), "{:?} does not run", late.map(|pod| name(pod)));
        let most = most_left(&devices(env, host)?, &allocated);
        let fits = waiting.iter().find(|pod| asked_mib(pod).is_some_and(|asked| asked <= most));
        ensure!(fits.is_none(), "{:?} has room", fits.map(|pod| name(pod)));
        Ok(Some(Ok(waiting.len())))
    })?
}

/// Runs the work while the GPUs of both nodes are given out by claims.
fn on_both(env: &TestEnv, work: impl FnOnce(&Node, &Node) -> Result<()>) -> Result<()> {
    let [first, last] = env.cluster()?.nodes() else { bail!("not two nodes") };
    with(env, first, || {
        set_by_claims(env, last, true)?;
        closed(env, last, usize::from(GPUS))?;
        work(first, last)
    })
}

fn at_once(env: &TestEnv) -> Result<()> {
    let gpus = 2 * usize::from(GPUS);
    on_both(env, |_, last| {
        let [half, little] = [GPU_MIB / 2, GIB].map(Share::of);
        [&half, &little].into_iter().try_for_each(|share| share.create(env))?;
        let pods = (0..2 * gpus).map(|n| half.pod(&format!("half-{n}")));
        let halves = run_at_once(env, "halves_of_gpus_by_claims_s", pods.collect())?;
        ensure!(halves.len() == gpus && halves.values().all(|mib| *mib == GPU_MIB), "{halves:?}");
        env.delete_all_pods()?;
        let pods = (0..40).map(|n| on_node(last, little.pod(&format!("share-{n}"))));
        let shares = run_at_once(env, "forty_shares_of_a_node_by_claims_s", pods.collect())?;
        ensure!(shares.values().sum::<u64>() == 40 * GIB, "{shares:?}");
        Ok(())
    })
}

/// Creates pods with claims, waits until all run, and returns what they have of each GPU, in MiB.
fn run_at_once(env: &TestEnv, figure: &str, pods: Vec<Value>) -> Result<BTreeMap<String, u64>> {
    let (began, count) = (Instant::now(), pods.len());
    create_all(env, pods)?;
    all_running(env, START)?;
    env.figure(figure, format!("{:.1}", began.elapsed().as_secs_f64()));
    audit_exactly(env, count)
}

/// Where kube-scheduler asks nobody, it takes the node with the fewest pods. What fills a GPU is best whatever earlier
/// pods asked for.
fn fullest(env: &TestEnv) -> Result<()> {
    let by_gpus = || on_both(env, |first, last| fullest_first(env, [last, first]));
    policy::with(env, FULLEST, by_gpus)
}

fn fullest_first(env: &TestEnv, hosts: [&Node; 2]) -> Result<()> {
    let [large, little] = [GPU_MIB - GIB, GIB].map(Share::of);
    [&large, &little].into_iter().try_for_each(|share| share.create(env))?;
    for host in hosts {
        create(env, on_node(host, large.pod("large")))?;
        running(env, "large", START)?;
        create(env, little.pod("little"))?;
        let on = running(env, "little", START)?;
        if node(&on) != Some(host.name()) {
            bail!("little is on {:?}: {:?}", node(&on), explained_by_each(env, "little")?);
        }
        let by_gpu = audit_exactly(env, 2)?;
        ensure!(by_gpu.values().eq([&GPU_MIB]), "{by_gpu:?}");
        env.delete_all_pods()?;
    }
    Ok(())
}

/// kube-scheduler itself evicts nobody for a claim. All GPUs are full: of halves the first, of important pods the
/// others.
fn preempts(env: &TestEnv) -> Result<()> {
    let host = host(env)?;
    let in_full = || {
        let gpus = host.gpus();
        let [first, others @ ..] = &gpus[..] else { bail!("no GPU") };
        let half = Share::of_gpu(GPU_MIB / 2, &first.uuid);
        half.create(env)?;
        create_all(
            env,
            vec![on_node(host, half.pod("half-0")), on_node(host, half.pod("half-1"))],
        )?;
        for (n, gpu) in others.iter().enumerate() {
            let whole = Share::of_gpu(GPU_MIB, &gpu.uuid);
            whole.create(env)?;
            create(env, of_class(on_node(host, whole.pod(&format!("whole-{n}"))), HIGH))?;
        }
        all_running(env, START)?;
        let any = Share::of(GPU_MIB);
        any.create(env)?;
        create(env, of_class(on_node(host, any.pod("train")), HIGH))?;
        running(env, "train", EVICTED)?;
        wait_for("the less important pods to be gone, and no others", START, || {
            let left: BTreeSet<String> = list(env)?.iter().map(|it| name(it).to_owned()).collect();
            ensure!(!left.iter().any(|name| name.starts_with("half")), "{left:?} are left");
            Ok((left.len() == usize::from(GPUS)).then_some(()))
        })?;
        audit_exactly(env, usize::from(GPUS)).map(drop)
    };
    evicting(env, || priorities::with(env, || with(env, host, in_full)))
}

/// Kubernetes frees the claim of a pod that is deleted by force at once, and kube-scheduler gives its GPU to the next.
fn forced(env: &TestEnv) -> Result<()> {
    let host = host(env)?;
    with(env, host, || {
        let whole = Share::of_gpu(GPU_MIB, &host.gpus()[1].uuid);
        whole.create(env)?;
        create(env, on_node(host, whole.given_to(stubborn("stubborn"))))?;
        let processes = started_of(&running(env, "stubborn", START)?)?;
        ensure!(!processes.is_empty(), "the pod has no process");
        delete_by_force(env, "stubborn")?;
        create(env, on_node(host, whole.pod(NEXT)))?;
        ends_before_next(env, &processes)?;
        running(env, NEXT, NEXT_RUNS)?;
        audit_exactly(env, 1).map(drop)
    })
}

fn restarts(env: &TestEnv) -> Result<()> {
    let host = host(env)?;
    with(env, host, || {
        let gpu = &host.gpus()[2].uuid;
        let [whole, little] = [GPU_MIB, GIB].map(|mib| Share::of_gpu(mib, gpu));
        [&whole, &little].into_iter().try_for_each(|share| share.create(env))?;
        create(env, on_node(host, whole.pod("holds")))?;
        let processes = started_of(&running(env, "holds", START)?)?;
        create(env, on_node(host, little.pod("waits")))?;
        unschedulable(env, "waits", START)?;
        let stays = || {
            is_first(env, host, gpu)?;
            ensure!(!processes.is_empty() && processes.iter().all(is_there), "it was ended");
            ensure!(node(&get(env, "waits")?).is_none(), "waits was placed");
            audit_exactly(env, 1).map(drop)
        };
        stays().context("before")?;
        restart_plugins(env)?;
        stays().context("after a restart of the device plugin")?;
        restart_kubelet(env, host, || Ok(()))?;
        stays().context("after a restart of the kubelet")?;
        restart_kubelet(env, host, || Ok(fs::remove_file(host.path(KUBELET_RECORD))?))?;
        stays().context("after the kubelet has lost its record")?;
        delete_all(env, ["holds"])?;
        running(env, "waits", FORGOTTEN)?;
        audit_exactly(env, 1).map(drop)
    })
}

/// While claims come and go, each program that has to do with them is killed as soon as it is back.
fn killed(env: &TestEnv) -> Result<()> {
    let host = host(env)?;
    with(env, host, || {
        let shares: Vec<Share> = (1..=LARGEST_GIB).map(|gib| Share::of(gib * GIB)).collect();
        shares.iter().try_for_each(|share| share.create(env))?;
        for program in [PLUGIN, "kubelet", EXTENDER] {
            let pods = shares.iter().cycle().zip(0..2 * LARGEST_GIB);
            let name = |n| format!("{program}-{n}");
            create_all(env, pods.map(|(share, n)| on_node(host, share.pod(&name(n)))).collect())?;
            for _ in 0..3 {
                kill(env, host, program)?;
            }
            as_many_as_fit_run(env, host)?;
            let (compared, _) = audit(env)?;
            ensure!(!compared.is_empty(), "no pod runs");
            delete_all(env, compared.iter().map(String::as_str))?;
        }
        Ok(())
    })
}

/// Kills a program, and waits until it is there again.
fn kill(env: &TestEnv, host: &Node, program: &str) -> Result<()> {
    let find = || match program {
        "kubelet" => Ok(host.service(program)?.into_iter().collect()),
        _ => env.programs(program),
    };
    let before = find()?;
    ensure!(!before.is_empty(), "{program} does not run");
    processes::kill_all(&before)?;
    wait_for(&format!("{program} to be back"), START, || {
        let now = find()?;
        Ok((now.len() == before.len() && !now.iter().any(|pid| before.contains(pid))).then_some(()))
    })
}

fn restart_plugins(env: &TestEnv) -> Result<()> {
    let before = env.programs(PLUGIN)?;
    processes::kill_all(&before)?;
    wait_for("the device plugins to be back", START, || {
        let now = env.programs(PLUGIN)?;
        let new = now.len() == before.len() && !now.iter().any(|pid| before.contains(pid));
        Ok((new && env.program_ready(PLUGIN)?).then_some(()))
    })
}

/// A kubelet that starts deletes its node's ResourceSlices, so the driver has to notice it.
fn restart_kubelet(
    env: &TestEnv,
    host: &Node,
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let before = slice_of(env, host)?.metadata.uid;
    host.hold("kubelet")?;
    let done = meanwhile();
    host.release("kubelet")?;
    done.context("while the kubelet was down")?;
    wait_for("a new ResourceSlice", START, || {
        Ok((slice_of(env, host)?.metadata.uid != before).then_some(()))
    })
}

/// Pods go where what they ask for is given out. Then the label of each node changes while pods run: what they are on
/// is given out in the other way only after they have ended.
fn side_by_side(env: &TestEnv) -> Result<()> {
    let [by_units, by_claims] = env.cluster()?.nodes() else { bail!("not two nodes") };
    let units = GPU_MIB / GIB;
    let gpus = usize::from(GPUS);
    with(env, by_claims, || {
        let whole = Share::of(GPU_MIB);
        whole.create(env)?;
        // One more than fit, of each kind.
        let with_claims: Vec<String> = (0..=gpus).map(|n| format!("claim-{n}")).collect();
        create_all(env, gpu_pods("units", gpus + 1, units))?;
        create_all(env, with_claims.iter().map(|name| whole.pod(name)).collect())?;
        let (units_wait, claim_waits) = wait_for("both nodes to be full", START, || {
            let (placed, waiting): (Vec<_>, Vec<_>) = list(env)?.into_iter().partition(runs);
            ensure!(placed.len() == 2 * gpus, "{} run", placed.len());
            let find = |claims: bool| {
                let found = waiting.iter().find(|pod| asked_mib(pod).is_some() == claims);
                found.map(|pod| name(pod).to_owned()).context("none waits")
            };
            Ok(Some((find(false)?, find(true)?)))
        })?;
        unschedulable(env, &units_wait, START)?;
        unschedulable(env, &claim_waits, START)?;
        for pod in list(env)?.iter().filter(|pod| runs(pod)) {
            let wanted = if asked_mib(pod).is_some() { by_claims } else { by_units };
            ensure!(node(pod) == Some(wanted.name()), "{} is on {:?}", name(pod), node(pod));
        }
        gpu_audit::audit_exactly(env, gpus)?;
        audit_exactly(env, gpus)?;
        delete_all(env, [&*units_wait, &*claim_waits])?;
        to_claims(env, by_units, &whole)?;
        to_units(env, by_claims)
    })
}

/// The label of a node whose GPUs are full of units, but for one pod's.
fn to_claims(env: &TestEnv, host: &Node, whole: &Share) -> Result<()> {
    let of_units: Vec<String> = pods_on(env, host)?;
    let (ends, stay) = of_units.split_first().context("no pod has units")?;
    delete_all(env, [ends.as_str()])?;
    set_by_claims(env, host, true)?;
    wait_for("all but one of the GPUs to be closed for claims", START, || {
        let devices = devices(env, host)?;
        let closed = devices.iter().filter(|device| device.taints == [CLOSED]).count();
        let open = devices.iter().filter(|device| device.taints.is_empty()).count();
        ensure!((closed, open) == (stay.len(), 1), "{devices:?}");
        Ok(Some(()))
    })?;
    create(env, on_node(host, whole.pod("beside-units")))?;
    running(env, "beside-units", START)?;
    create(env, on_node(host, whole.pod("after-units")))?;
    unschedulable(env, "after-units", START)?;
    gpu_audit::audit_exactly(env, stay.len())?;
    delete_all(env, stay.iter().map(String::as_str))?;
    running(env, "after-units", START)?;
    audit_exactly(env, usize::from(GPUS) + 2).map(drop)
}

/// The label of a node whose GPUs are full by claims goes.
fn to_units(env: &TestEnv, host: &Node) -> Result<()> {
    let of_claims = pods_on(env, host)?;
    set_by_claims(env, host, false)?;
    create(env, on_node(host, pod("after-claims", &[gpu_container("main", GPU_MIB / GIB)])))?;
    unschedulable(env, "after-claims", START)?;
    delete_all(env, [of_claims.first().context("no pod has a claim")?.as_str()])?;
    running(env, "after-claims", START)?;
    gpu_audit::audit_exactly(env, 1)?;
    audit_exactly(env, usize::from(GPUS) - 1 + 2).map(drop)
}

fn pods_on(env: &TestEnv, host: &Node) -> Result<Vec<String>> {
    let pods = list(env)?;
    let here = pods.iter().filter(|pod| node(pod) == Some(host.name()));
    Ok(here.map(|pod| name(pod).to_owned()).collect())
}

fn unhealthy(env: &TestEnv) -> Result<()> {
    let host = host(env)?;
    with(env, host, || {
        let gpu = &host.gpus()[0].uuid;
        let tainted = |wanted: &[&str], limit| {
            wait_for(&format!("{gpu} to have the taints {wanted:?}"), limit, || {
                let devices = devices(env, host)?;
                let others = devices.iter().filter(|device| device.uuid != *gpu);
                ensure!(others.clone().all(|device| device.taints.is_empty()), "{devices:?}");
                let found = devices.iter().find(|device| device.uuid == *gpu);
                Ok((found.with_context(|| format!("{devices:?}"))?.taints == wanted).then_some(()))
            })
        };
        let share = Share::of_gpu(GIB, gpu);
        share.create(env)?;
        host.set_gpu_health(gpu, false)?;
        let tried = tainted(&[UNHEALTHY], TAINTED).and_then(|()| {
            create(env, on_node(host, share.pod("waits")))?;
            unschedulable(env, "waits", START).map(drop)
        });
        let mended = host.set_gpu_health(gpu, true);
        tried.and(mended)?;
        tainted(&[], RECOVERED)?;
        running(env, "waits", START)?;
        audit_exactly(env, 1).map(drop)
    })
}

/// A controller that may write the status of claims, and the device plugin of a node.
fn forged(env: &TestEnv) -> Result<()> {
    let [other, own] = env.cluster()?.nodes() else { bail!("not two nodes") };
    with(env, own, || {
        let _ = remove_forger(env);
        let tried = forged_status(env, own);
        tried.and(remove_forger(env))
    })?;
    if !has_shares(env, own)? {
        return Ok(());
    }
    // Now that no node has a slice.
    let [of_own, of_other] = [own, other].map(|node| (slice_name(node.name()), node.name()));
    let path = format!("{SLICES}?dryRun=All");
    let plugin = Caller::with_token(env, &token(env, Some(own.name()))?)?;
    plugin.done(env, Verb::Create, &path, &slice(&of_own.0, DRIVER, of_own.1))?;
    let unbound = Caller::with_token(env, &token(env, None)?)?;
    for (caller, slice) in [
        (&plugin, slice(&of_other.0, DRIVER, of_other.1)),
        (&plugin, slice(&of_own.0, DRIVER, of_other.1)),
        (&plugin, slice(&of_own.0, "gpu.nvidia.com", of_own.1)),
        (&unbound, slice(&of_own.0, DRIVER, of_own.1)),
    ] {
        let (status, answer) = caller.call(env, Verb::Create, &path, &slice)?;
        let text = answer["message"].as_str().unwrap_or_default();
        ensure!(status == 403 && text.contains("ValidatingAdmissionPolicy"), "{status}: {text}");
    }
    Ok(())
}

const FORGER: &str = "forger";

fn remove_forger(env: &TestEnv) -> Result<()> {
    let words = ["-n", NAMESPACE, "delete", "serviceaccount,role,rolebinding", FORGER];
    env.cluster()?.kubectl_run(&[&words[..], &["--ignore-not-found"]].concat()).map(drop)
}

fn forged_status(env: &TestEnv, host: &Node) -> Result<()> {
    let kubectl = |words: &[&str]| {
        env.cluster()?.kubectl_run(&[&["-n", NAMESPACE, "create"], words].concat())
    };
    kubectl(&["serviceaccount", FORGER])?;
    let resources =
        "--resource=resourceclaims.resource.k8s.io,resourceclaims.resource.k8s.io/status";
    kubectl(&["role", FORGER, "--verb=get,update,patch", resources])?;
    let account = format!("--serviceaccount={NAMESPACE}:{FORGER}");
    kubectl(&["rolebinding", FORGER, "--role=forger", &account])?;
    let forger = Caller::with_token(env, kubectl(&["token", FORGER])?.trim())?;
    let claim = parse(json!({
        "metadata": {"name": "forged"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": CLASS}}]}},
    }))?;
    let claim = env.block_on(claims(env).create(&PostParams::default(), &claim))?;
    let mut claim = serde_json::to_value(claim)?;
    let devices = devices(env, host)?;
    let gpu = devices.first().context("no device")?.uuid.to_lowercase();
    claim["status"]["allocation"] = json!({"devices": {"results": [{
        "request": "gpu", "driver": DRIVER, "pool": host.name(), "device": gpu,
        "shareID": "00000000-0000-4000-8000-000000000001",
        "consumedCapacity": {"memory": "1Gi"},
    }]}});
    let path =
        format!("/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims/forged/status");
    let dry = format!("{path}?dryRun=All");
    // It is the right to bind that lacks, and nothing else.
    Caller::administrator(env)?.done(env, Verb::Replace, &dry, &claim)?;
    let (status, answer) = forger.call(env, Verb::Replace, &path, &claim)?;
    let text = answer["message"].as_str().unwrap_or_default();
    ensure!(
        (400..500).contains(&status) && text.contains("resourceclaims/binding"),
        "{status}: {text}"
    );
    let left = env.block_on(claims(env).get("forged"))?;
    ensure!(left.status.and_then(|status| status.allocation).is_none(), "it is allocated");
    Ok(())
}

/// By the sample, whose template is the tests' namespace's here.
fn unedited(env: &TestEnv) -> Result<()> {
    let host = host(env)?;
    let sources = &env.cluster()?.settings().sources;
    let sample = fs::read_to_string(sources.join("deploy/samples/claims/units-as-claims.yaml"))?;
    let file = tempfile::NamedTempFile::new()?;
    fs::write(&file, sample.replace("team-a", NAMESPACE))?;
    let path = file.path().to_string_lossy();
    with(env, host, || {
        env.cluster()?.kubectl_run(&["apply", "-f", &path])?;
        let tried = label(env, &format!("{MODE}=claims")).and_then(|_| become_claims(env, host));
        let removed = env.cluster()?.kubectl_run(&["delete", "-f", &path]);
        let unlabelled = label(env, &format!("{MODE}-"));
        tried.and(removed).and(unlabelled).map(drop)
    })
}

/// Labels the tests' namespace, or with `KEY-` takes a label from it.
fn label(env: &TestEnv, label: &str) -> Result<String> {
    env.cluster()?.kubectl_run(&["label", "--overwrite", "namespace", NAMESPACE, label])
}

/// The pod as the API server would create it.
fn as_created(env: &TestEnv, wanted: &Value) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(env.client(), NAMESPACE);
    let only_tried = PostParams { dry_run: true, ..PostParams::default() };
    env.block_on(pods.create(&only_tried, &parse(wanted.clone())?))
}

fn become_claims(env: &TestEnv, host: &Node) -> Result<()> {
    let mut main = gpu_container("main", 4);
    asks(&mut main, 4 * GIB);
    // Zero units ask for nothing.
    let mut beside = idle_container("beside");
    beside["resources"] = json!({"limits": {GPU: "0"}});
    let wanted = on_node(host, pod("unedited", &[beside, main]));
    wait_for("the policy to be in force", START, || {
        let claims = as_created(env, &wanted)?.spec.and_then(|spec| spec.resource_claims);
        Ok(claims.map(drop))
    })?;
    create(env, wanted.clone())?;
    let units = gpu_containers(&running(env, "unedited", START)?).len();
    ensure!(units == 0, "{units} containers have units");
    audit_exactly(env, 1)?;
    let mut annotated = wanted;
    annotated["metadata"]["name"] = json!("annotated");
    annotated["metadata"]["annotations"] = json!({"plimsoll.dev/gpu-model": "*"});
    let kept = as_created(env, &annotated)?;
    ensure!(gpu_containers(&kept).len() == 1, "{kept:?} has lost its units");
    Ok(())
}
