//! Shares of the GPU by ResourceClaims: what a claim's program sees, what waits, and the limit under MPS.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use e2e::kernel::processes;
use e2e::quantity;
use serde_json::{Value, json};

use super::mps::start_daemon;
use super::shares::sees_the_gpu_alone;
use super::{HELD, seconds};
use crate::lab::{Lab, TOLD};
use crate::node::NODE;
use crate::pods::pod;
use crate::table::{Answer, promise};

const API: &str = "/apis/resource.k8s.io/v1";
const DRIVER: &str = "gpu.plimsoll.dev";
const CLASS: &str = "gpu-share.plimsoll.dev";
/// The label that says how a node's GPUs are given out.
const MODE: &str = "plimsoll.dev/gpu-mode";
/// Of the claim whose program wants more, in GiB.
const LIMITED: u64 = 8;

pub(super) fn ask(lab: &mut Lab) {
    lab.ask("claims-offered", "a node in claims mode offers its GPU by them alone", offered);
    lab.ask("claim-sees-gpu", "a claim's program sees its GPU and no other", sees_its_gpu);
    lab.ask("claim-waits", "a claim that does not fit waits until another has ended", waits);
    lab.ask("claim-mps", "a claim's program under MPS is a client, with the claim's limit", by_mps);
    lab.ask_cuda("claim-mps-memory", "such a client gets its claim's memory at most", limited);
    lab.ask("claims-end", "a node that leaves claims mode offers units again", back);
}

fn offered(lab: &mut Lab) -> Result<Answer> {
    lab.clear()?;
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": CLASS},
        "spec": {"selectors": [{"cel": {"expression": format!("device.driver == '{DRIVER}'")}}]},
    });
    lab.node.call("POST", &format!("{API}/deviceclasses"), Some(&class))?;
    let begin = Instant::now();
    set_mode(lab, &json!("claims"))?;
    let mib = wait_for("the GPU in a ResourceSlice alone", TOLD, || {
        let units = lab.allocatable()?;
        ensure!(units == 0, "the node offers {units} units");
        let device = device(lab)?;
        ensure!(device["taints"].is_null(), "{device}");
        let memory = device["capacity"]["memory"]["value"].as_str().context("no memory")?;
        Ok(Some(quantity::whole(memory).with_context(|| format!("{memory} is no size"))? >> 20))
    })?;
    let wanted = lab.gpu.memory_mib - lab.gpu.reserved_mib;
    let text = format!("{mib} MiB of {wanted} after {}", seconds(begin.elapsed()));
    Ok(promise(mib == wanted, text))
}

fn sees_its_gpu(lab: &mut Lab) -> Result<Answer> {
    let took = start(lab, "claim-a", 4, false, "hold 1024 900")?;
    let line = lab.said("claim-a", "held", HELD)?;
    let holds = sees_the_gpu_alone(lab, "claim-a", &line)?;
    Ok(promise(holds, format!("runs {} after its creation; {line}", seconds(took))))
}

/// Of all but 6 GiB: 4 are the first pod's, and nobody has 2.
fn waits(lab: &mut Lab) -> Result<Answer> {
    let all = (lab.gpu.memory_mib - lab.gpu.reserved_mib) >> 10;
    start(lab, "claim-b", all - 6, false, "hold 1024 900")?;
    create(lab, "claim-c", 4, false, "hold 1024 900")?;
    let why = lab.until_refused("claim-c")?;
    let begin = Instant::now();
    lab.delete("claim-a")?;
    lab.until_running("claim-c")?;
    let took = seconds(begin.elapsed());
    Ok(promise(true, format!("{why}; it runs {took} after the other's deletion")))
}

fn by_mps(lab: &mut Lab) -> Result<Answer> {
    lab.clear()?;
    start_daemon(lab)?;
    wait_for("the ResourceSlice to tell of MPS", TOLD, || {
        let offers = &device(lab)?["attributes"]["isolationMps"]["bool"];
        Ok((*offers == true).then_some(()))
    })?;
    start(lab, "claim-mps", LIMITED, true, "hold 1024 900")?;
    lab.said("claim-mps", "held", HELD)?;
    let told = processes::environ(lab.pid("claim-mps")?)?;
    let mps: BTreeMap<_, _> = told.iter().filter(|(name, _)| name.contains("_MPS_")).collect();
    let limit = told.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    let holds = limit.is_some_and(|limit| limit.contains(&format!("{}M", LIMITED << 10)));
    Ok(promise(holds && told.contains_key("CUDA_MPS_PIPE_DIRECTORY"), format!("{mps:?}")))
}

fn limited(lab: &mut Lab) -> Result<Answer> {
    lab.clear()?;
    start(lab, "claim-over", LIMITED, true, "hold 16384 900")?;
    let line = lab.said("claim-over", "held", HELD)?;
    let got = line["gotMib"].as_u64().unwrap_or_default();
    let holds = ((LIMITED - 1) << 10..=LIMITED << 10).contains(&got);
    let text = format!("{got} MiB of {} beside a context, then {}", LIMITED << 10, line["refused"]);
    Ok(promise(holds, text))
}

fn back(lab: &mut Lab) -> Result<Answer> {
    let last = (lab.gpu.memory_mib - lab.gpu.reserved_mib) >> 10;
    set_mode(lab, &Value::Null)?;
    lab.create(&pod("units-next", last, "hold 1024 900"))?;
    let why = lab.until_refused("units-next")?;
    let begin = Instant::now();
    lab.pods()?.iter().try_for_each(|it| match it["metadata"]["name"].as_str() {
        Some(name) if name != "units-next" => lab.delete(name),
        _ => Ok(()),
    })?;
    lab.until_running("units-next")?;
    let took = seconds(begin.elapsed());
    Ok(promise(
        true,
        format!("a pod with units waited: {why}; it runs {took} after the claims' end"),
    ))
}

/// The GPU as the node's ResourceSlice has it.
fn device(lab: &Lab) -> Result<Value> {
    let slices = lab.node.call("GET", &format!("{API}/resourceslices"), None)?;
    let device = slices["items"][0]["spec"]["devices"][0].clone();
    ensure!(device["name"] == lab.gpu.uuid.to_lowercase(), "{device} in {slices}");
    Ok(device)
}

fn set_mode(lab: &Lab, mode: &Value) -> Result<()> {
    let labels = json!({"metadata": {"labels": {MODE: mode}}});
    lab.node.call("PATCH", &format!("/api/v1/nodes/{NODE}"), Some(&labels)).map(drop)
}

/// Creates a pod with a claim of so much memory, in GiB, and waits until it runs.
fn start(lab: &Lab, name: &str, gib: u64, mps: bool, words: &str) -> Result<Duration> {
    let begin = Instant::now();
    create(lab, name, gib, mps, words)?;
    lab.until_running(name)?;
    Ok(begin.elapsed())
}

fn create(lab: &Lab, name: &str, gib: u64, mps: bool, words: &str) -> Result<()> {
    let capacity = json!({"requests": {"memory": format!("{gib}Gi")}});
    let mut devices = json!({"requests": [{
        "name": "gpu", "exactly": {"deviceClassName": CLASS, "capacity": capacity},
    }]});
    if mps {
        let share = json!({
            "apiVersion": "plimsoll.dev/v1", "kind": "ShareConfig", "isolation": "mps",
        });
        devices["config"] = json!([{"opaque": {"driver": DRIVER, "parameters": share}}]);
    }
    let template = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": name}, "spec": {"spec": {"devices": devices}},
    });
    let path = format!("{API}/namespaces/default/resourceclaimtemplates");
    lab.node.call("POST", &path, Some(&template))?;
    let pod = pod(name, 0, words).with_claim(name);
    lab.create(&if mps { pod.mps() } else { pod })
}
