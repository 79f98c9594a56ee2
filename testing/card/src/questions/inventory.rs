//! What the node says of its GPU before there is a pod.

use std::time::Instant;

use anyhow::ensure;
use e2e::command::wait_for;

use super::seconds;
use crate::lab::Lab;
use crate::node::START;
use crate::table::promise;

/// MiB of a unit.
const UNIT_MIB: u64 = 1024;

pub(super) fn ask(lab: &mut Lab) {
    lab.ask(
        "units",
        "a node offers the GPU's memory in units, less what the driver keeps",
        |lab| {
            let wanted = (lab.gpu.memory_mib - lab.gpu.reserved_mib) / UNIT_MIB;
            let begin = Instant::now();
            wait_for("the node's units", START, || {
                let units = lab.allocatable()?;
                ensure!(units == wanted, "the node offers {units} units, not {wanted}");
                Ok(Some(()))
            })?;
            let gpus = lab.annotation("plimsoll.dev/gpu-cards")?;
            let named = gpus.contains(&lab.gpu.uuid);
            let took = seconds(begin.elapsed());
            Ok(promise(named, format!("{wanted} units after {took}; the report: {gpus}")))
        },
    );
    lab.ask("isolation-reported", "a node reports no isolation that it cannot enforce", |lab| {
        let mode = |mode| lab.metric("plimsoll_gpu_isolation", &[("mode", mode)]);
        let modes = [mode("none")?, mode("mps")?, mode("driver")?];
        let text = format!("none, mps, driver: {modes:?} with driver {}", lab.gpu.driver);
        Ok(promise(modes == [Some(1.0), Some(0.0), Some(0.0)], text))
    });
}
