//! Readings as JSON: the flat `/statistics`, and `/v1/statistics` with the time, coverage and window of each value.

use std::fmt::{self, Write};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde_json::Value;

use super::Shortest;
use crate::series::{Function, Now, Reading};

/// One flat JSON object, the readings' names without `node_` to their values.
#[must_use]
pub fn statistics(readings: impl Iterator<Item = Reading>) -> String {
    object(readings, |text, reading| write!(text, "{}", Shortest(reading.value)))
}

/// The node, as `/v1/statistics` describes it.
#[derive(Debug, Clone)]
pub struct Node {
    /// The kernel's id of this boot, if known. Samples of different boots cannot be combined.
    pub boot_id: Option<String>,
    /// The time since that boot, in whole seconds on the wire; unknown where `/proc/uptime` cannot be read.
    pub uptime: Option<Duration>,
    /// The time between two samples.
    pub sample_interval: Duration,
}

/// The readings with their timestamp, coverage and window.
///
/// ```json
/// {"bootId":"…","uptime_seconds":86400,"sampleIntervalSeconds":10,"values":{"cpu_usage_avg_5m":
///   {"value":20.5,"timestamp":"2026-11-20T09:00:00.017Z","coverage":1,"windowSeconds":300}}}
/// ```
///
/// `uptime_seconds` is the time since the boot: a reader needs it to tell a young window from one that lacks samples,
/// since `coverage` is a part of the whole window either way. The timestamp is that of the newest sample in the window,
/// by the node's clock, as is the answer's `Date`.
#[must_use]
pub fn statistics_v1(node: &Node, readings: impl Iterator<Item = Reading>, now: Now) -> String {
    let boot_id = node.boot_id.clone().map_or(Value::Null, Value::String);
    let uptime = node.uptime.map_or(Value::Null, |uptime| uptime.as_secs().into());
    let interval = node.sample_interval.as_secs();
    let values = object(readings, |text, reading| detail(text, reading, now));
    format!(
        "{{\"bootId\":{boot_id},\"uptime_seconds\":{uptime},\"sampleIntervalSeconds\":{interval},\"values\":{values}}}"
    )
}

fn detail(text: &mut String, reading: &Reading, now: Now) -> fmt::Result {
    let value = Shortest(reading.value);
    let coverage = Shortest(reading.coverage.into());
    let timestamp = timestamp(now.wall_at(reading.time));
    write!(text, "{{\"value\":{value},\"timestamp\":\"{timestamp}\",\"coverage\":{coverage}")?;
    if reading.aggregate.function != Function::Newest {
        write!(text, ",\"windowSeconds\":{}", reading.aggregate.window.duration().as_secs())?;
    }
    if let Some(instance) = reading.signal.device() {
        write!(text, ",\"instance\":{}", Value::from(instance))?;
    }
    text.push('}');
    Ok(())
}

pub(super) fn timestamp(time: SystemTime) -> String {
    let timestamp = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{timestamp:.3}")
}

fn object(
    readings: impl Iterator<Item = Reading>,
    write_value: impl Fn(&mut String, &Reading) -> fmt::Result,
) -> String {
    let mut text = String::with_capacity(512);
    text.push('{');
    for (index, reading) in readings.enumerate() {
        let comma = if index == 0 { "" } else { "," };
        // Writing to a String cannot fail; names hold nothing that JSON escapes.
        let _ = write!(text, "{comma}\"{}_{}\":", reading.signal.name(), reading.aggregate);
        let _ = write_value(&mut text, &reading);
    }
    text.push('}');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::{Kind, Moment, Signal};

    static MOUNT: Kind = Kind { name: "fs_mountpoint_usage", help: "", label: Some("mountpoint") };

    #[test]
    fn nothing_known_is_an_empty_object() {
        assert_eq!(statistics(std::iter::empty()), "{}");
    }

    #[test]
    fn a_detailed_value_has_time_coverage_and_window() {
        let time = Moment(Duration::from_secs(90));
        let reading = |aggregate: &str| Reading {
            signal: Signal::of_device(&MOUNT, "/a\"b"),
            aggregate: aggregate.parse().unwrap(),
            value: 12.5,
            coverage: 0.75,
            time,
        };
        let wall = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_010_250);
        let now = Now { boot: Moment(Duration::from_secs(100)), wall };
        let node = Node {
            boot_id: Some("b".to_owned()),
            uptime: Some(Duration::from_millis(100_999)),
            sample_interval: Duration::from_secs(10),
        };
        let readings = [reading("active"), reading("avg_1h")].into_iter();
        let expected = concat!(
            r#"{"bootId":"b","uptime_seconds":100,"sampleIntervalSeconds":10,"#,
            r#""values":{"fs_a_b_usage_active":{"value":12.5,"#,
            r#""timestamp":"2023-11-14T22:13:20.250Z","coverage":0.75,"instance":"/a\"b"},"#,
            r#""fs_a_b_usage_avg_1h":{"value":12.5,"timestamp":"2023-11-14T22:13:20.250Z","coverage":0.75,"#,
            r#""windowSeconds":3600,"instance":"/a\"b"}}}"#,
        );
        assert_eq!(statistics_v1(&node, readings, now), expected);
    }

    #[test]
    fn a_clock_that_is_set_moves_timestamps_and_no_value() {
        let reading = || Reading {
            signal: Signal::of_device(&MOUNT, "/"),
            aggregate: "avg_1h".parse().unwrap(),
            value: 12.5,
            coverage: 1.0,
            time: Moment(Duration::from_secs(100)),
        };
        let node = Node { boot_id: None, uptime: None, sample_interval: Duration::from_secs(10) };
        let at = |seconds: u64| {
            let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            let now = Now { boot: Moment(Duration::from_secs(100)), wall };
            statistics_v1(&node, [reading()].into_iter(), now)
        };
        let before = at(1_700_000_000);
        assert!(before.contains("2023-11-14T22:13:20.000Z"), "{before}");
        assert_eq!(at(1_700_003_600), before.replace("22:13:20", "23:13:20"));
        // A board without a battery wakes up in 1970.
        assert_eq!(at(0), before.replace("2023-11-14T22:13:20", "1970-01-01T00:00:00"));
    }
}
