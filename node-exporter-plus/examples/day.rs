//! Writes a file for `--storage.file` that holds a whole day of samples of this boot, up to now.
//!
//! `day FILE SIGNALS [PROCFS]`: the first so many signals of the node itself, in the order of `collectors::KINDS`.
//! It prints a configuration for `--config.file` that keeps a day of each.

use std::env::args;
use std::time::Duration;

use anyhow::{Context as _, bail};
use node_exporter_plus::collectors::KINDS;
use node_exporter_plus::plan::Plan;
use node_exporter_plus::series::{Kind, Moment, Signal};
use node_exporter_plus::storage::{Boot, Storage};
use node_exporter_plus::{Store, app};

const INTERVAL: u64 = 10;
const DAY: u64 = 86_400;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = args().collect();
    let (file, count, procfs) = match &arguments[..] {
        [_, file, count] => (file, count, "/proc"),
        [_, file, count, procfs] => (file, count, procfs.as_str()),
        _ => bail!("usage: day FILE SIGNALS [PROCFS]"),
    };
    let whole = |kind: &&&'static Kind| kind.label.is_none();
    let kinds: Vec<&Kind> = KINDS.iter().filter(whole).copied().take(count.parse()?).collect();
    let config = config(&kinds);
    let interval = format!("{INTERVAL}s").parse()?;
    let mut store = Store::new(interval, Plan::parse(&config, interval)?);
    fill(&mut store, &kinds, app::now().boot);
    let boot = std::fs::read_to_string(format!("{procfs}/sys/kernel/random/boot_id"))
        .context("the boot's id")?;
    Storage::new(file.into(), Boot(boot.trim().to_owned())).save(&store)?;
    write_out(&config)
}

fn config(kinds: &[&'static Kind]) -> String {
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name).collect();
    let values = "avg_5m, max_avg_1h, max_avg_1d";
    format!("rules:\n- signals: [{}]\n  values: [{values}]\n", names.join(", "))
}

/// A day that ends now; on a machine that is younger than a day, as much of it as there has been.
fn fill(store: &mut Store, kinds: &[&'static Kind], now: Moment) {
    let seconds = now.0.as_secs();
    for second in (seconds.saturating_sub(DAY)..seconds).filter(|second| second % INTERVAL == 0) {
        let at = Moment(Duration::from_secs(second));
        for (index, kind) in kinds.iter().enumerate() {
            // From 10 to 20 percent: a scheduler that hears of it takes the node for neither idle nor full.
            let value = (second / INTERVAL * (index as u64 + 7)) % 1_009;
            store.record(&Signal::of_node(kind), at, 10.0 + value as f64 / 100.9);
        }
    }
}

fn write_out(text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}
