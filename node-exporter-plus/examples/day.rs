//! Writes a file for `--storage.file` that holds a whole day of samples of this boot, up to now.
//!
//! `day FILE SIGNALS [PROCFS [WAY]]`: the first so many signals of the node itself, in the order of
//! `collectors::KINDS`. WAY is how their values go: `mixed` as it comes, `rising`, `falling`. It prints a configuration
//! for `--config.file` that keeps a day of each, and asks for every aggregate.

use std::env::args;
use std::time::Duration;

use anyhow::{Context as _, bail};
use node_exporter_plus::collectors::KINDS;
use node_exporter_plus::config::Config;
use node_exporter_plus::series::{Kind, Moment, Signal};
use node_exporter_plus::storage::{BootId, Storage};
use node_exporter_plus::{Store, app};

const INTERVAL: u64 = 10;
const DAY: u64 = 86_400;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = args().collect();
    let [_, file, count, rest @ ..] = &arguments[..] else {
        bail!("usage: day FILE SIGNALS [PROCFS [mixed|rising|falling]]")
    };
    let procfs = rest.first().map_or("/proc", String::as_str);
    let way = way(rest.get(1).map_or("mixed", String::as_str))?;
    let kinds: Vec<&Kind> =
        KINDS.iter().filter(|kind| kind.label.is_none()).copied().take(count.parse()?).collect();
    let config = config(&kinds);
    let interval = format!("{INTERVAL}s").parse()?;
    let mut store = Store::new(interval, Config::parse(&config, interval)?);
    fill(&mut store, &kinds, app::now().boot, way);
    let boot = std::fs::read_to_string(format!("{procfs}/sys/kernel/random/boot_id"))
        .context("the boot's id")?;
    Storage::new(file.into(), BootId(boot.trim().to_owned())).save(&store)?;
    write_out(&config)
}

fn config(kinds: &[&'static Kind]) -> String {
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name).collect();
    let values = "avg_5m, max_avg_1h, max_avg_1d, avg_1d, max_1d, min_1d, p50_1d, p95_1d, p99_1h";
    format!("rules:\n- signals: [{}]\n  values: [{values}]\n", names.join(", "))
}

/// A signal's value at a slot: from 10 to 20 percent, so that a scheduler that hears of it takes the node for neither
/// idle nor full.
type Way = fn(slot: u64, signal: u64) -> f64;

fn way(name: &str) -> anyhow::Result<Way> {
    match name {
        "mixed" => Ok(|slot, signal| 10.0 + (slot * (signal + 7) % 1_009) as f64 / 100.9),
        "rising" => Ok(|slot, _| 10.0 + slot as f64 / 864.0),
        "falling" => Ok(|slot, _| 20.0 - slot as f64 / 864.0),
        other => bail!("{other:?} is no way for values to go: say mixed, rising or falling"),
    }
}

/// A day that ends now; on a machine that is younger than a day, as much of it as there has been.
fn fill(store: &mut Store, kinds: &[&'static Kind], now: Moment, way: Way) {
    let end = now.0.as_secs() / INTERVAL;
    let first = end.saturating_sub(DAY / INTERVAL);
    for slot in first..=end {
        let at = Moment(Duration::from_secs(slot * INTERVAL));
        for (index, kind) in (0..).zip(kinds) {
            store.record(&Signal::of_node(kind), at, way(slot - first, index));
        }
    }
}

fn write_out(text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}
