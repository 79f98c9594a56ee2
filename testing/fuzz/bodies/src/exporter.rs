//! The exporter's own files, and its answers as the annotator reads them.

use std::io::Cursor;
use std::time::{Duration, UNIX_EPOCH};

use annotator::exporter::statistics::{AnswerContext, Format, MetricValue, Statistics};
use jiff::{SignedDuration, Timestamp};
use node_exporter_plus::Store;
use node_exporter_plus::collectors::{KINDS, cpu, disk};
use node_exporter_plus::config::Config;
use node_exporter_plus::render::{Node, statistics_v1};
use node_exporter_plus::series::{Aggregate, Interval, Moment, Now, Signal};
use node_exporter_plus::storage::{BootId, read, write};

use crate::text;

fn interval() -> Option<Interval> {
    "10s".parse().ok()
}

/// `--config.file`: either an error that names a line of the file, or a configuration whose aggregates' names parse to
/// the same aggregates.
pub(crate) fn config(input: &[u8]) {
    let (Some(text), Some(interval)) = (text(input), interval()) else { return };
    match Config::parse(text, interval) {
        Err(error) => {
            // YAML 1.1 ends a line at each of these characters.
            let breaks = text.chars().filter(|c| "\n\r\u{85}\u{2028}\u{2029}".contains(*c));
            assert!(error.line <= breaks.count() as u64 + 1, "{error}");
            assert!(!error.field.is_empty() && !error.problem.is_empty(), "{error}");
        }
        Ok(config) => KINDS.iter().for_each(|kind| {
            for aggregate in config.aggregates(&Signal::of_device(kind, "sda")) {
                assert_eq!(aggregate.to_string().parse::<Aggregate>(), Ok(aggregate));
            }
        }),
    }
}

pub(crate) fn configs() -> Vec<Vec<u8>> {
    let texts = [
        "rules: [{signals: [\"cpu_*\", load1], values: [avg_5m, max_1h, min_1d, max_avg_10m_1d, p95_1d]}]",
        "metrics:\n- name: cpu_usage_max_avg_1h\n  period: 15m\n- {name: disk_sda_usage_avg, period: 10m}\n",
    ];
    texts.map(Vec::from).into()
}

/// The time since the boot at which files are read: 50 minutes. A longer one would have more slots in each file, and so
/// fewer inputs in a second.
const NOW: Moment = Moment(Duration::from_secs(3_000));

fn boot() -> BootId {
    BootId("b".to_owned())
}

/// `--storage.file`: the file is refused, or its readings are finite, the annotator can parse them as `/v1/statistics`,
/// and the store can be written and read again. Each input is tried as it is and with a beginning and a checksum that
/// fit, so that the code behind those checks is reached.
pub(crate) fn samples(input: &[u8]) {
    for file in [input, &with_checksum(input)] {
        let Some(mut store) = store() else { return };
        let now = NOW;
        let _ = read(&mut Cursor::new(file), &boot(), &mut store, now);
        for reading in store.readings(now) {
            assert!(reading.value.is_finite() && (0.0..=1.0).contains(&reading.coverage));
        }
        let node = Node { boot_id: None, uptime: None, sample_interval: Duration::from_secs(10) };
        let wall = Now { boot: now, wall: UNIX_EPOCH };
        let json = statistics_v1(&node, store.readings(now), wall);
        let read_back =
            Statistics::parse(Format::Detailed, json.as_bytes(), AnswerContext::default());
        assert!(read_back.is_ok(), "{json}");
        check_written(&store, now);
    }
}

/// Asserts that the store can be written, and what was written can be read.
fn check_written(store: &Store, now: Moment) {
    let mut bytes = Vec::new();
    let wrote = write(&mut bytes, &boot(), store);
    assert!(wrote.is_ok(), "{wrote:?}");
    let again =
        self::store().map(|mut again| read(&mut Cursor::new(bytes), &boot(), &mut again, now));
    assert!(again.is_none_or(|again| again.is_ok()));
}

fn store() -> Option<Store> {
    Some(Store::new(interval()?, Config::default()))
}

const HEAD: &[u8] = b"plimsoll-samples\x01\0\0\0";

/// A file with this content between the right beginning and checksum.
fn with_checksum(content: &[u8]) -> Vec<u8> {
    let mut file = [HEAD, content].concat();
    file.extend(crc32fast::hash(&file).to_le_bytes());
    file
}

/// Files without beginning and checksum, which [`samples`] adds.
pub(crate) fn samples_files() -> Vec<Vec<u8>> {
    let mut bare = Vec::new();
    for file in [1, 20].into_iter().filter_map(saved) {
        let end = file.len().saturating_sub(4);
        bare.push(file.get(HEAD.len()..end).unwrap_or_default().to_vec());
    }
    bare
}

/// A file of `count` slots of two signals, with gaps.
fn saved(count: u32) -> Option<Vec<u8>> {
    let mut store = store()?;
    for slot in (1..=count).filter(|slot| slot % 7 != 3) {
        let at = Moment(NOW.0 - Duration::from_secs(10 * u64::from(count - slot)));
        store.record(&Signal::of_node(&cpu::USAGE), at, f64::from(slot));
        store.record(&Signal::of_device(&disk::DEVICE_USAGE, "sda"), at, 5.0);
    }
    let mut file = Vec::new();
    write(&mut file, &boot(), &store).ok()?;
    Some(file)
}

/// The annotator's reading of `/statistics` and `/v1/statistics`: either an error, or values each of which is a
/// fraction from 0 to 1e13 or held back with a reason.
pub(crate) fn statistics(input: &[u8]) {
    let date: Option<Timestamp> = "2023-11-14T23:48:20Z".parse().ok();
    let dated = AnswerContext { date, since_creation: Some(SignedDuration::from_secs(200)) };
    let undated = AnswerContext::default();
    for (format, context) in
        [(Format::Detailed, dated), (Format::Detailed, undated), (Format::Flat, undated)]
    {
        let Ok(statistics) = Statistics::parse(format, input, context) else { continue };
        assert!(statistics.uptime().is_none_or(|uptime| !uptime.is_negative()));
        for (metric, value) in statistics.iter() {
            match value {
                MetricValue::Usable(ratio) => {
                    assert!((0.0..1e13).contains(&ratio.get()), "{metric}")
                }
                MetricValue::HeldBack(reason) => {
                    assert_eq!(format, Format::Detailed, "{metric}");
                    assert!(!reason.to_string().is_empty());
                }
            }
        }
    }
}
