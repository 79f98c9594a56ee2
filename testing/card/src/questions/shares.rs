//! Pods that share the GPU without isolation: their place, their memory, the audit, and restarts below them.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use e2e::command::wait_for;
use e2e::kernel::processes::{self, Pid};
use serde_json::Value;

use super::{HELD, is_near, seconds};
use crate::http;
use crate::lab::{Lab, TOLD, value_in};
use crate::node::{EXPORTER, PLUGIN};
use crate::pods::pod;
use crate::table::promise;

/// The fewest units with which the pods below have room and do not fit.
const FEWEST: u64 = 16;

pub(super) fn ask(lab: &mut Lab) {
    // Pods a, b and c leave 2 units, and d asks for 4.
    let units = lab.allocatable().unwrap_or_default();
    let (a, b) = (units / 4, units * 3 / 8);
    let c = units.saturating_sub(a + b + 2);
    lab.ask("claimed-gpu", "a pod's program sees the GPU of its claim and no other", |lab| {
        anyhow::ensure!(units >= FEWEST, "{units} units: {FEWEST} are needed for what follows");
        let begin = Instant::now();
        lab.start_pod(&pod("a", a, &format!("hold {} 900", a * 256)))?;
        let line = lab.said("a", "held", HELD)?;
        let took = begin.elapsed();
        let claim = lab.claim("a")?;
        let holds = claim.contains(&lab.gpu.uuid) && sees_the_gpu_alone(lab, "a", &line)?;
        let text = format!("output {} after its creation; {claim}; {line}", seconds(took));
        Ok(promise(holds, text))
    });
    lab.ask("too-large-waits", "a pod that does not fit waits, with the reason", |lab| {
        lab.start_pod(&pod("b", b, &format!("hold {} 900", b * 512)))?;
        lab.start_pod(&pod("c", c, "hold 1024 900"))?;
        lab.create(&pod("d", 4, "hold 512 900"))?;
        let why = lab.until_refused("d")?;
        Ok(promise(why.contains("aliyun.com/gpu-mem") || why.to_lowercase().contains("gpu"), why))
    });
    lab.ask("memory-by-pod", "each pod's memory is told as the driver has it, within 1%", |lab| {
        for name in ["b", "c"] {
            lab.said(name, "held", HELD)?;
        }
        lab.tell_driver(None)?;
        let text = wait_for("each pod's memory", TOLD, || memory_by_pod(lab, &["a", "b", "c"]))?;
        Ok(promise(true, text))
    });
    lab.ask(
        "exporter-memory",
        "the exporter tells the GPU's memory as the driver, within 1%",
        |lab| {
            let text = wait_for("the exporter's value", TOLD, || {
                let page = http::page(EXPORTER, "/metrics")?;
                let name = "node_gpu_card_mem_bytes_active";
                let bytes = value_in(&page, name, &[]).with_context(|| format!("no {name}"))?;
                let (told, used) = (bytes / f64::from(1 << 20), lab.gpu.used_mib()?);
                let text = format!("{told:.0} MiB, by the driver {used}");
                if is_near(told, used as f64, 0.01) { Ok(Some(text)) } else { bail!("{text}") }
            })?;
            Ok(promise(true, text))
        },
    );
    lab.ask("audit-over-share", "a pod that takes more than its units is found and named", |lab| {
        lab.start_pod(&pod("thief", 2, "hold 6144 900"))?;
        lab.said("thief", "held", HELD)?;
        lab.tell_driver(None)?;
        let text = lab.event("GPUMemoryOverShare")?;
        Ok(promise(true, text))
    });
    lab.ask("audit-unmanaged", "a process outside of all pods on the GPU is found", |lab| {
        let mut command = lab.node.command(lab.parts.bin("card-client"));
        command.args(["hold", "512", "900"]).env("LD_LIBRARY_PATH", crate::gpu::LIBRARIES);
        if lab.gpu.fake {
            command.env("CARD_FAKE", "1").env("LD_LIBRARY_PATH", lab.work.join("nvidia"));
        }
        let mut outside = lab.node.spawn("outside", &mut command)?;
        let told = lab.tell_driver_also(&[(i32::try_from(outside.id())?, 512)], None);
        let text = told.and_then(|()| lab.event("GPUUnmanagedProcess"));
        outside.kill()?;
        outside.wait()?;
        lab.tell_driver(None)?;
        Ok(promise(true, text?))
    });
    lab.ask("room-by-deletion", "a pod that waits starts when another has ended", |lab| {
        let begin = Instant::now();
        lab.delete("a")?;
        lab.until_running("d")?;
        lab.said("d", "held", HELD)?;
        Ok(promise(true, format!("{} from the deletion to its output", seconds(begin.elapsed()))))
    });
    lab.ask("restarts", "pods run on while device plugin and kubelet are killed", restarts);
}

/// Whether the pod's process has the GPU and no other: by its device nodes, its environment and what its program says.
pub(super) fn sees_the_gpu_alone(lab: &Lab, name: &str, said: &Value) -> Result<bool> {
    let pid = lab.pid(name)?;
    let devices = processes::numbered_devices(pid, "nvidia")?;
    let minors: Vec<u32> = devices.iter().map(|(minor, _)| u32::from(*minor)).collect();
    let told = processes::environ(pid)?.remove("PLIMSOLL_GPU_UUID").unwrap_or_default();
    let sees_one = lab.gpu.fake || (said["uuid"] == lab.gpu.uuid && said["devices"] == 1);
    Ok(told == lab.gpu.uuid && minors == [lab.gpu.minor] && sees_one)
}

fn memory_by_pod(lab: &Lab, names: &[&str]) -> Result<Option<String>> {
    let by_driver = lab.gpu.processes()?;
    let mut told = Vec::new();
    for name in names {
        let pid = lab.pid(name)?.as_raw_nonzero().get();
        let driver = *by_driver.get(&pid).with_context(|| format!("the driver has no {name}"))?;
        let metric = "plimsoll_gpu_memory_used_bytes";
        let bytes = lab.metric(metric, &[("pod", name)])?;
        let mib = bytes.with_context(|| format!("no {metric} of {name}"))? / f64::from(1 << 20);
        told.push(format!("{name} {mib:.0} of {driver}"));
        if !is_near(mib, driver as f64, 0.01) {
            bail!("{}", told.join(", "));
        }
    }
    Ok(Some(format!("MiB told, of the driver's: {}", told.join(", "))))
}

/// A process, and its start, by which it is told from a later one of the same number; and the claim of its pod.
type Running = BTreeMap<&'static str, (Pid, Option<u64>, String)>;

fn running(lab: &Lab) -> Result<Running> {
    let mut found = Running::new();
    for name in ["b", "c", "d"] {
        let pid = lab.pid(name)?;
        found.insert(name, (pid, processes::started(pid), lab.claim(name)?));
    }
    Ok(found)
}

fn restarts(lab: &mut Lab) -> Result<crate::table::Answer> {
    let before = running(lab)?;
    let units = lab.allocatable()?;
    lab.node.kill("kubelet")?;
    lab.node.kill_and_start("gpushare-device-plugin")?;
    lab.node.launch("kubelet")?;
    let begin = Instant::now();
    // A kubelet without the plugin's registration refuses pods, whatever the node offered before.
    wait_for("the registration", TOLD, || http::page(PLUGIN, "/readyz").map(Some))?;
    wait_for("the node's units", TOLD, || Ok((lab.allocatable()? == units).then_some(())))?;
    let next = pod("e", 2, "hold 256 900");
    lab.start_pod(&next)?;
    let claim = lab.claim("e")?;
    let took = seconds(begin.elapsed());
    let same = running(lab)? == before;
    let text = format!(
        "b, c and d are the same processes and claims: {same}; the next pod runs after {took}"
    );
    Ok(promise(same && claim.contains(&lab.gpu.uuid), text))
}
