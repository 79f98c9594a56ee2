//! Pods that end by force or by a fault.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::command::wait_for;
use e2e::kernel::processes::{Signal, signal};

use super::seconds;
use crate::lab::{Lab, TOLD};
use crate::pods::pod;
use crate::table::{Answer, figure, promise};

pub(super) fn ask(lab: &mut Lab) {
    lab.ask(
        "forced-deletion",
        "a pod deleted by force holds its units while its processes live",
        forced_deletion,
    );
    lab.ask("xid", "an error that an application causes is counted, and closes no GPU", xid);
    lab.ask_cuda("memory-after-death", "memory of a killed program is free at once", |lab| {
        lab.start_pod(&pod("dies", 12, "hold 8192 900"))?;
        lab.said("dies", "held", TOLD)?;
        let (before, pid) = (lab.gpu.used_mib()?, lab.pid("dies")?);
        signal(pid, Signal::KILL)?;
        let begin = Instant::now();
        while lab.gpu.used_mib()? + 8192 > before {
            ensure!(begin.elapsed() < TOLD, "{} MiB in use of {before}", lab.gpu.used_mib()?);
        }
        Ok(figure(format!("{} ms after the kill", begin.elapsed().as_millis())))
    });
}

/// With the kubelet down, everything that would end the processes is.
fn forced_deletion(lab: &mut Lab) -> Result<Answer> {
    let half = lab.allocatable()? / 2 + 1;
    lab.start_pod(&pod("lingers", half, "hold 1024 900"))?;
    lab.said("lingers", "held", TOLD)?;
    let pid = lab.pid("lingers")?;
    lab.node.kill("kubelet")?;
    lab.delete_by_force("lingers")?;
    lab.create(&pod("next", half, "hold 256 900"))?;
    let refused = lab.until_refused("next");
    let lingering = wait_for("the plugin to tell of it", TOLD, || {
        Ok((lab.metric("plimsoll_gpu_lingering_pods", &[])? == Some(1.0)).then_some(()))
    });
    let lives = e2e::kernel::processes::alive(pid);
    lab.node.launch("kubelet")?;
    let begin = Instant::now();
    wait_for("the deleted pod's process to end", Duration::from_secs(60), || {
        Ok((!e2e::kernel::processes::alive(pid)).then_some(()))
    })?;
    let ended = begin.elapsed();
    lab.until_running("next")?;
    let text = format!(
        "the next pod waited: {}; its process ended {} after the kubelet's start, the next pod runs after {}",
        refused?,
        seconds(ended),
        seconds(begin.elapsed())
    );
    lingering?;
    Ok(promise(lives, text))
}

fn xid(lab: &mut Lab) -> Result<Answer> {
    let errors = |lab: &Lab| lab.metric("plimsoll_gpu_card_errors_total", &[]);
    let before = errors(lab)?.unwrap_or_default();
    if lab.gpu.fake {
        lab.tell_driver(Some(31))?;
    } else {
        lab.start_pod(&pod("faults", 2, "fault"))?;
    }
    wait_for("the error to be counted", TOLD, || {
        Ok((errors(lab)?.unwrap_or_default() > before).then_some(()))
    })?;
    let healthy = lab.metric("plimsoll_gpu_card_healthy", &[])?;
    Ok(promise(healthy == Some(1.0), format!("counted; plimsoll_gpu_card_healthy {healthy:?}")))
}
