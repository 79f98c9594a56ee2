//! What a metric's name says: which resource, which statistic, over which window.
//!
//! Names are the exporter's: `cpu_usage_avg_5m`, `mem_usage_max_avg_1h`, `cpu_usage_p95_15m`, `cpu_usage_stddev_15m`.

use jiff::SignedDuration;

use crate::resources::Resource;
use crate::units::MetricName;

/// How long a pod takes from its binding until its use shows in a sample: images are pulled, the containers start, and
/// the exporter samples each 15 s.
const UNTIL_SAMPLED: SignedDuration = SignedDuration::from_secs(20);

/// The means whose maximum crane's `max_avg_*` is.
const INNER_WINDOW: SignedDuration = SignedDuration::from_mins(5);

/// The statistic of a window's samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Measure {
    /// The last sample.
    Last,
    /// The mean.
    Mean,
    /// The largest mean of so long a time.
    MaxOfMeans(SignedDuration),
    /// The largest sample.
    Max,
    /// A quantile, 0 to 1.
    Quantile(f64),
    /// The standard deviation.
    Deviation,
    /// Another one, or none that the name tells.
    Other,
}

/// What a metric's name says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MetricMeaning {
    /// The resource whose use it is; `None` where pods' estimates do not bear on it.
    pub resource: Option<Resource>,
    /// The statistic.
    pub measure: Measure,
    /// The window of its samples; `None` where the name has none.
    pub window: Option<SignedDuration>,
    /// How long after its binding a pod's use shows fully; `None` where an estimate does not add to it.
    pub unseen_for: Option<SignedDuration>,
}

impl MetricMeaning {
    /// What `metric` means, by its name alone.
    ///
    /// # Examples
    ///
    /// ```
    /// use jiff::SignedDuration;
    /// use placement::policy::{Measure, MetricMeaning};
    /// use placement::resources::Resource;
    ///
    /// let meaning = MetricMeaning::of(&"cpu_usage_avg_5m".into());
    /// assert_eq!((meaning.resource, meaning.measure), (Some(Resource::Cpu), Measure::Mean));
    /// assert_eq!(meaning.window, Some(SignedDuration::from_mins(5)));
    /// assert_eq!(MetricMeaning::of(&"disk_usage_avg_5m".into()).resource, None);
    /// ```
    pub fn of(metric: &MetricName) -> Self {
        let name = metric.as_str();
        let (resource, rest) =
            match (name.strip_prefix("cpu_usage_"), name.strip_prefix("mem_usage_")) {
                (Some(rest), _) => (Some(Resource::Cpu), rest),
                (_, Some(rest)) => (Some(Resource::Memory), rest),
                _ => (None, name.split_once("_usage_").map_or("", |(_, rest)| rest)),
            };
        let (measure, window) = statistic(rest);
        let unseen_for = resource.and_then(|_| unseen_for(measure, window));
        Self { resource, measure, window, unseen_for }
    }
}

pub(super) fn statistic(text: &str) -> (Measure, Option<SignedDuration>) {
    if text == "active" {
        return (Measure::Last, None);
    }
    let Some((kind, last)) = text.rsplit_once('_') else { return (Measure::Other, None) };
    let window = duration(last);
    let measure = match (kind, window) {
        (_, None) => Measure::Other,
        ("avg", _) => Measure::Mean,
        ("max", _) => Measure::Max,
        ("stddev", _) => Measure::Deviation,
        ("max_avg", _) => Measure::MaxOfMeans(INNER_WINDOW),
        _ => match (kind.strip_prefix("max_avg_").and_then(duration), quantile(kind)) {
            (Some(inner), _) => Measure::MaxOfMeans(inner),
            (None, Some(quantile)) => Measure::Quantile(quantile),
            (None, None) => Measure::Other,
        },
    };
    (measure, window)
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

fn unseen_for(measure: Measure, window: Option<SignedDuration>) -> Option<SignedDuration> {
    let of_window = match (measure, window) {
        (Measure::Last | Measure::Max, _) => SignedDuration::ZERO,
        (Measure::MaxOfMeans(inner), _) => inner,
        (Measure::Mean, Some(window)) => window,
        // The share of the samples that lie above it.
        (Measure::Quantile(quantile), Some(window)) => {
            SignedDuration::from_secs_f64(window.as_secs_f64() * (1.0 - quantile))
        }
        (Measure::Deviation | Measure::Other, _) | (_, None) => return None,
    };
    Some(of_window.saturating_add(UNTIL_SAMPLED))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> MetricMeaning {
        MetricMeaning::of(&name.into())
    }

    #[test]
    fn a_pod_shows_fully_once_the_metrics_own_window_has_passed() {
        let seconds = |name: &str| of(name).unseen_for.map(|time| time.as_secs());
        for (name, expected) in [
            ("cpu_usage_active", Some(20)),
            ("cpu_usage_avg_5m", Some(320)),
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
        assert_eq!((disk.resource, disk.measure), (None, Measure::Quantile(0.9)));
    }
}
