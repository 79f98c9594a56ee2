//! What the annotator's answers with readings take: bytes, and its CPU.

use std::time::Duration;

use anyhow::Context as _;
use api::readings::PolledReadings;

use crate::Running;

/// How often an extender asks.
const PERIOD: Duration = Duration::from_secs(15);

/// Answers of each kind whose CPU is measured: `/proc` counts hundredths of a second.
const ANSWERS: u32 = 100;

/// Prints rows of the table of a round.
#[expect(clippy::print_stdout, reason = "the table is what it is for")]
pub(crate) async fn report(running: &Running) -> anyhow::Result<()> {
    let first = running.annotator.readings(None).await?;
    let version = PolledReadings::from_json(&first).context("an answer")?.version;
    tokio::time::sleep(PERIOD).await;
    for (what, since) in [("all readings", None), ("those of 15 s", Some(version.as_str()))] {
        let before = running.sample().await?.cpu();
        let mut bytes = 0;
        for _ in 0..ANSWERS {
            bytes += running.annotator.readings(since).await?.len();
        }
        // Polls go on meanwhile, so this is at most so much.
        let cpu = running.sample().await?.cpu() - before;
        let (kilobytes, milliseconds) = (bytes as f64 / 1e3, cpu * 1e3);
        println!(
            "| an answer with {what} | {:.0} kB, {:.2} ms of CPU |",
            kilobytes / f64::from(ANSWERS),
            milliseconds / f64::from(ANSWERS),
        );
    }
    Ok(())
}
