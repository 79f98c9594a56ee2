//! The questions, in order. Each is asked on a node without other pods, or says which pods it goes on with.

mod claims;
mod ends;
mod inventory;
mod mps;
pub(crate) mod serving;
mod shares;
mod without_mps;

use std::time::Duration;

use anyhow::Result;
use e2e::command::wait_for;

use crate::lab::Lab;
use crate::table::promise;

/// How long a program may take until it has its memory.
const HELD: Duration = Duration::from_secs(60);

/// Asks all.
pub(crate) fn ask(lab: &mut Lab) {
    let before = lab.gpu.used_mib();
    inventory::ask(lab);
    for subject in [shares::ask, ends::ask, without_mps::ask, serving::alone, mps::ask, claims::ask]
    {
        subject(lab);
        if let Err(error) = lab.clear() {
            lab.table.add("pods-end", "pods end when they are deleted", Duration::ZERO, Err(error));
        }
    }
    lab.ask("nothing-left", "when the last pod has ended, no process has the GPU", |lab| {
        let before = before?;
        let left = wait_for("the GPU to be free", Duration::from_secs(20), || {
            Ok(lab.gpu.processes()?.is_empty().then_some(()))
        });
        let used = lab.gpu.used_mib()?;
        let text = format!("{} MiB in use, {before} before; {:?}", used, lab.gpu.processes()?);
        Ok(promise(left.is_ok() && used <= before + before / 10 + 16, text))
    });
}

/// A duration in seconds, as text.
fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

/// Whether a value is within this part of another.
fn is_near(value: f64, other: f64, part: f64) -> bool {
    (value - other).abs() <= other.abs() * part
}

/// The line that a spinning pod says last, as rounds a second.
fn rounds_a_second(lab: &Lab, name: &str) -> Result<f64> {
    let line = lab.said(name, "roundsPerSecond", Duration::from_secs(60))?;
    Ok(line["roundsPerSecond"].as_f64().unwrap_or_default())
}
