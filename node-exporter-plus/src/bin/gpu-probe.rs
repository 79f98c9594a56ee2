//! `gpu-probe LIBRARY SECONDS`: loads NVML and reports the cards on standard output every so many seconds, until that
//! is closed. The exporter starts it; see `node_exporter_plus::gpu`.

use std::env::args_os;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use node_exporter_plus::gpu::{CardReading, CardReport, END, NO_LIBRARY};
use nvml::{Card, Error, Library, Probe};

fn main() -> ExitCode {
    let arguments: Vec<_> = args_os().skip(1).collect();
    let [library, seconds] = &arguments[..] else {
        return complain("usage: gpu-probe LIBRARY SECONDS");
    };
    let Some(seconds) = seconds.to_str().and_then(|text| text.parse().ok()).filter(|s| *s > 0)
    else {
        return complain("SECONDS is no whole number above 0");
    };
    match Library::open(Path::new(library)) {
        Err(Error::LibraryAbsent { .. }) => ExitCode::from(NO_LIBRARY),
        Err(error) => complain(&error.to_string()),
        Ok(library) => report_forever(&library, Duration::from_secs(seconds)),
    }
}

fn complain(why: &str) -> ExitCode {
    // An error here cannot be reported anywhere.
    let _ = writeln!(io::stderr(), "gpu-probe: {why}");
    ExitCode::FAILURE
}

fn report_forever(probe: &dyn Probe, interval: Duration) -> ExitCode {
    loop {
        let cards = match probe.cards() {
            Ok(cards) => cards,
            Err(error) => return complain(&error.to_string()),
        };
        let report: String =
            cards.iter().map(|card| format!("{}\n", report(probe, card))).collect();
        let mut out = io::stdout().lock();
        if writeln!(out, "{report}{END}").and_then(|()| out.flush()).is_err() {
            // The exporter is gone.
            return ExitCode::SUCCESS;
        }
        drop(out);
        sleep(interval);
    }
}

fn report(probe: &dyn Probe, card: &Card) -> CardReport {
    let reading = probe.status(&card.uuid).ok().map(|status| CardReading {
        usage: status.utilisation.map(u64::from),
        used: status.used_mib,
        total: card.memory_mib,
        temperature: status.temperature.map(u64::from),
        power: status.power_milliwatt.map(u64::from),
    });
    CardReport { index: card.index, uuid: card.uuid.clone(), reading }
}
