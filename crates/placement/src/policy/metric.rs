//! What a metric's name means: its resource, statistic and window.
//!
//! Names are the exporter's: `cpu_busy_avg_5m`, `cpu_usage_avg_5m`, `mem_usage_max_avg_1h`, `cpu_usage_stddev_15m`.

use jiff::SignedDuration;

use crate::resources::Resource;
use crate::units::MetricName;

/// The time from the start of a pod's containers until samples include its use: programs start, and the exporter
/// samples every 10 s.
const START_TO_SAMPLE: SignedDuration = SignedDuration::from_secs(20);

/// The window of the means whose maximum crane's `max_avg_*` is.
const MAX_AVG_INNER_WINDOW: SignedDuration = SignedDuration::from_mins(5);

/// A statistic of the samples in a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WindowStatistic {
    /// The newest sample.
    Last,
    /// The mean.
    Mean,
    /// The largest mean over a window of this length.
    MaxOfMeans(SignedDuration),
    /// The largest sample.
    Max,
    /// A quantile, 0 to 1.
    Quantile(f64),
    /// The standard deviation.
    Deviation,
    /// Another one, or one that the name does not say.
    Other,
}

/// What a metric's name means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MetricMeaning {
    /// The resource that it measures; `None` if estimates of pods do not count for it.
    pub resource: Option<Resource>,
    /// The statistic.
    pub statistic: WindowStatistic,
    /// The window of its samples; `None` if the name has none.
    pub window: Option<SignedDuration>,
    /// How long after the start of a pod's containers the metric shows its whole use; `None` if estimates do not count
    /// for it.
    pub visible_after: Option<SignedDuration>,
}

impl MetricMeaning {
    /// What the name `metric` means.
    ///
    /// # Examples
    ///
    /// ```
    /// use jiff::SignedDuration;
    /// use placement::policy::{WindowStatistic, MetricMeaning};
    /// use placement::resources::Resource;
    ///
    /// let meaning = MetricMeaning::of(&"cpu_usage_avg_5m".into());
    /// assert_eq!((meaning.resource, meaning.statistic), (Some(Resource::Cpu), WindowStatistic::Mean));
    /// assert_eq!(meaning.window, Some(SignedDuration::from_mins(5)));
    /// assert_eq!(MetricMeaning::of(&"disk_usage_avg_5m".into()).resource, None);
    /// ```
    pub fn of(metric: &MetricName) -> Self {
        let name = metric.as_str();
        let (device, rest) = split(name).unwrap_or((name, ""));
        let resource = match device {
            "cpu" => Some(Resource::Cpu),
            "mem" => Some(Resource::Memory),
            _ => None,
        };
        let (statistic, window) = parse_aggregate(rest);
        let visible_after = resource.and_then(|_| visible_after(statistic, window));
        Self { resource, statistic, window, visible_after }
    }
}

/// Signals of the use of CPU beside `cpu_usage`: without waiting for IO, and what of that pods compete for.
const CPU_BUSY: [&str; 3] = ["cpu_busy_", "cpu_shared_busy_", "cpu_foreground_busy_"];

/// What a metric measures, and its aggregate: `cpu` and `avg_5m` of `cpu_usage_avg_5m` and of `cpu_busy_avg_5m`. `None`
/// for a metric that is no share of a resource's use.
pub(crate) fn split(metric: &str) -> Option<(&str, &str)> {
    let busy = CPU_BUSY.iter().find_map(|signal| Some(("cpu", metric.strip_prefix(signal)?)));
    busy.or_else(|| metric.split_once("_usage_"))
}

pub(super) fn parse_aggregate(text: &str) -> (WindowStatistic, Option<SignedDuration>) {
    if text == "active" {
        return (WindowStatistic::Last, None);
    }
    let Some((kind, last)) = text.rsplit_once('_') else { return (WindowStatistic::Other, None) };
    let window = duration(last);
    let statistic = match (kind, window) {
        (_, None) => WindowStatistic::Other,
        ("avg", _) => WindowStatistic::Mean,
        ("max", _) => WindowStatistic::Max,
        ("stddev", _) => WindowStatistic::Deviation,
        ("max_avg", _) => WindowStatistic::MaxOfMeans(MAX_AVG_INNER_WINDOW),
        _ => match (kind.strip_prefix("max_avg_").and_then(duration), quantile(kind)) {
            (Some(inner), _) => WindowStatistic::MaxOfMeans(inner),
            (None, Some(quantile)) => WindowStatistic::Quantile(quantile),
            (None, None) => WindowStatistic::Other,
        },
    };
    (statistic, window)
}

fn quantile(text: &str) -> Option<f64> {
    let percent: u8 = text.strip_prefix('p')?.parse().ok()?;
    (percent <= 100).then(|| f64::from(percent) / 100.0)
}

/// `90s`, `5m`, `1h`, `1d`.
fn duration(text: &str) -> Option<SignedDuration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    let count: i64 = digits.parse().ok().filter(|count| (1..=10_000).contains(count))?;
    Some(SignedDuration::from_secs(count * seconds))
}

pub(super) fn visible_after(
    statistic: WindowStatistic,
    window: Option<SignedDuration>,
) -> Option<SignedDuration> {
    let of_window = match (statistic, window) {
        (WindowStatistic::Last | WindowStatistic::Max, _) => SignedDuration::ZERO,
        (WindowStatistic::MaxOfMeans(inner), _) => inner,
        (WindowStatistic::Mean, Some(window)) => window,
        // The share of the samples that lie above it.
        (WindowStatistic::Quantile(quantile), Some(window)) => {
            SignedDuration::from_secs_f64(window.as_secs_f64() * (1.0 - quantile))
        }
        (WindowStatistic::Deviation | WindowStatistic::Other, _) | (_, None) => return None,
    };
    Some(of_window.saturating_add(START_TO_SAMPLE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> MetricMeaning {
        MetricMeaning::of(&name.into())
    }

    #[test]
    fn a_pod_shows_fully_once_the_metrics_own_window_has_passed() {
        let seconds = |name: &str| of(name).visible_after.map(|time| time.as_secs());
        for (name, expected) in [
            ("cpu_usage_active", Some(20)),
            ("cpu_usage_avg_5m", Some(320)),
            ("cpu_busy_avg_5m", Some(320)),
            ("cpu_shared_busy_avg_5m", Some(320)),
            ("cpu_foreground_busy_active", Some(20)),
            ("cpu_iowait_avg_5m", None),
            ("mem_usage_max_avg_1h", Some(320)),
            ("cpu_usage_max_avg_15m_6h", Some(920)),
            ("cpu_usage_max_1h", Some(20)),
            ("cpu_usage_p95_1h", Some(200)),
            ("cpu_usage_stddev_15m", None),
            ("disk_sda_usage_avg_5m", None),
            ("cpu_usage_avg", None),
            ("cpu_usage_avg_99999999999999999999h", None),
            ("anything", None),
        ] {
            assert_eq!(seconds(name), expected, "{name}");
        }
    }

    #[test]
    fn other_signals_have_a_statistic_and_no_resource() {
        let disk = of("disk_sda_usage_p90_1h");
        assert_eq!((disk.resource, disk.statistic), (None, WindowStatistic::Quantile(0.9)));
    }
}
