//! The metrics of a process, and what the documents say of them: one call registers a metric with its name, labels and
//! help text, on the page of `/metrics` and in [`Registry::descriptions`].
//!
//! Invariant: every metric on the page has a description, and its samples have the labels of that description.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{self, Metric};

pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::gauge::Gauge;
pub use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::admin::text_of;
use crate::{ProcessMetrics, Program};

/// A gauge for fractions.
pub type Ratio = Gauge<f64, AtomicU64>;

/// A metric, as the documents describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Its name in PromQL: a counter's ends in `_total`. A histogram's samples add `_bucket`, `_sum` and `_count`.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// The names of its labels, in the order of its samples. Those of a histogram's buckets have `le` too.
    pub labels: Vec<&'static str>,
    /// What it counts, in which unit; without the last full stop.
    pub help: &'static str,
}

/// The metrics of one process.
///
/// # Examples
/// ```
/// let mut registry = daemon::metrics::Registry::default();
/// let polls = registry.counters("plimsoll_polls_total", ["outcome"], "Polls of exporters");
/// polls.with(["timeout"]).inc();
/// assert!(registry.page()?.contains("\nplimsoll_polls_total{outcome=\"timeout\"} 1\n"));
/// # Ok::<(), std::fmt::Error>(())
/// ```
#[derive(Default)]
pub struct Registry {
    page: registry::Registry,
    descriptions: Vec<Description>,
    before_scrapes: Vec<Box<dyn Fn() + Send>>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("descriptions", &self.descriptions).finish_non_exhaustive()
    }
}

impl Registry {
    /// The metrics that every program has: `plimsoll_build_info` and those of the process.
    #[must_use]
    pub fn of_program(program: Program) -> Self {
        let mut registry = Self::default();
        let build = [
            ("name", program.name),
            ("version", program.version),
            ("git", program.git.unwrap_or_default()),
        ];
        let labels = build.map(|(label, _)| label);
        let help = "1, with the name, version and commit of the program";
        registry.page.register("plimsoll_build", help, Info::new(build.to_vec()));
        registry.describe("plimsoll_build_info", "gauge", &labels, help);
        for (name, help) in ProcessMetrics::FIGURES {
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            registry.describe(name, kind, &[], help);
        }
        registry.page.register_collector(Box::new(ProcessMetrics::of_this_process()));
        registry
    }

    /// A counter; its name ends in `_total`.
    pub fn counter(&mut self, name: impl Into<String>, help: &'static str) -> Counter {
        self.add(name, &[], help, Counter::default())
    }

    /// A counter for each set of values of `labels`.
    pub fn counters<const N: usize>(
        &mut self,
        name: impl Into<String>,
        labels: [&'static str; N],
        help: &'static str,
    ) -> Labelled<Counter, N> {
        self.add_labelled(name, labels, help, Counter::default)
    }

    /// A gauge.
    pub fn gauge(&mut self, name: impl Into<String>, help: &'static str) -> Gauge {
        self.add(name, &[], help, Gauge::default())
    }

    /// A gauge for each set of values of `labels`.
    pub fn gauges<const N: usize>(
        &mut self,
        name: impl Into<String>,
        labels: [&'static str; N],
        help: &'static str,
    ) -> Labelled<Gauge, N> {
        self.add_labelled(name, labels, help, Gauge::default)
    }

    /// A gauge of a fraction for each set of values of `labels`.
    pub fn ratios<const N: usize>(
        &mut self,
        name: impl Into<String>,
        labels: [&'static str; N],
        help: &'static str,
    ) -> Labelled<Ratio, N> {
        self.add_labelled(name, labels, help, Ratio::default)
    }

    /// A histogram with the buckets of `histogram`.
    pub fn histogram(
        &mut self,
        name: impl Into<String>,
        help: &'static str,
        histogram: Histogram,
    ) -> Histogram {
        self.add(name, &[], help, histogram)
    }

    /// A histogram for each set of values of `labels`; `histogram` makes an empty one.
    pub fn histograms<const N: usize>(
        &mut self,
        name: impl Into<String>,
        labels: [&'static str; N],
        help: &'static str,
        histogram: fn() -> Histogram,
    ) -> Labelled<Histogram, N> {
        self.add_labelled(name, labels, help, histogram)
    }

    /// Calls `set` before each scrape, with the registry locked.
    pub fn before_scrape(&mut self, set: impl Fn() + Send + 'static) {
        self.before_scrapes.push(Box::new(set));
    }

    /// All metrics, in the order of their registration.
    #[must_use]
    pub fn descriptions(&self) -> &[Description] {
        &self.descriptions
    }

    /// All metrics with a sample, in Prometheus's text format.
    ///
    /// # Errors
    /// When a metric fails to encode itself.
    pub fn page(&self) -> Result<String, fmt::Error> {
        for set in &self.before_scrapes {
            set();
        }
        let mut page = String::new();
        encode(&mut page, &self.page)?;
        Ok(text_of(&page))
    }

    fn add_labelled<M, const N: usize>(
        &mut self,
        name: impl Into<String>,
        labels: [&'static str; N],
        help: &'static str,
        new: fn() -> M,
    ) -> Labelled<M, N>
    where
        Family<Labels<N>, M>: Metric,
        M: Clone,
    {
        let family = Family::new_with_constructor(new);
        Labelled { labels, family: self.add(name, &labels, help, family) }
    }

    fn add<M: Metric + Clone>(
        &mut self,
        name: impl Into<String>,
        labels: &[&'static str],
        help: &'static str,
        metric: M,
    ) -> M {
        let full = name.into();
        // The page's encoder adds `_total` to the names of counters.
        let (kind, family) = match metric.metric_type() {
            MetricType::Counter => ("counter", full.strip_suffix("_total").unwrap_or(&full)),
            MetricType::Histogram => ("histogram", &*full),
            _ => ("gauge", &*full),
        };
        self.page.register(family, help, metric.clone());
        self.describe(&full, kind, labels, help);
        metric
    }

    fn describe(
        &mut self,
        name: &str,
        kind: &'static str,
        labels: &[&'static str],
        help: &'static str,
    ) {
        let (name, labels) = (name.to_owned(), labels.to_vec());
        self.descriptions.push(Description { name, kind, labels, help });
    }
}

type Labels<const N: usize> = [(&'static str, Cow<'static, str>); N];

/// A metric for each set of values of `N` labels. It has no sample until the first [`with`](Self::with). Clones share
/// all samples.
#[derive(Debug, Clone)]
pub struct Labelled<M, const N: usize> {
    labels: [&'static str; N],
    family: Family<Labels<N>, M>,
}

impl<M: Clone, const N: usize> Labelled<M, N> {
    /// The metric with these values of the labels, in the order of the registration.
    pub fn with<V: Into<Cow<'static, str>>>(&self, values: [V; N]) -> M {
        self.family.get_or_create_owned(&self.labels(values))
    }

    /// Removes the sample with these values of the labels.
    pub fn remove<V: Into<Cow<'static, str>>>(&self, values: [V; N]) {
        self.family.remove(&self.labels(values));
    }

    /// Removes all samples.
    pub fn clear(&self) {
        self.family.clear();
    }

    fn labels<V: Into<Cow<'static, str>>>(&self, values: [V; N]) -> Labels<N> {
        let mut left = values.into_iter();
        self.labels.map(|label| (label, left.next().map(Into::into).unwrap_or_default()))
    }
}

/// The metrics of the files that a program follows; clones share them.
#[derive(Debug, Clone)]
pub struct FileMetrics {
    refused: Labelled<Gauge, 1>,
    reads: Labelled<Counter, 2>,
}

impl FileMetrics {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            refused: registry.gauges(
                "plimsoll_files_refused",
                ["file"],
                "1 while a changed file is faulty and what it held before is in force, else 0, by what it holds",
            ),
            reads: registry.counters(
                "plimsoll_file_changes_total",
                ["file", "outcome"],
                "Changes of files that are followed, by what they hold and by outcome",
            ),
        }
    }

    /// Those of the files that hold `name`.
    #[must_use]
    pub fn of(&self, name: &'static str) -> FileChanges {
        FileChanges {
            refused: self.refused.with([name]),
            outcomes: [self.reads.with([name, "refused"]), self.reads.with([name, "changed"])],
        }
    }
}

/// The metrics of files that hold one thing together.
#[derive(Debug, Clone)]
pub struct FileChanges {
    refused: Gauge,
    outcomes: [Counter; 2],
}

impl FileChanges {
    /// Counts a change. A refused one leaves what the files held before in force.
    pub fn count(&self, good: bool) {
        self.refused.set((!good).into());
        self.outcomes[usize::from(good)].inc();
    }
}

/// The counters of one watch of the API server; clones share them.
#[derive(Debug, Clone)]
pub struct WatchCounters {
    /// Objects that it delivered.
    pub events: Counter,
    /// Complete lists.
    pub lists: Counter,
    /// Failed calls and broken streams.
    pub errors: Counter,
}

/// The counters of all watches of a program, by the resource that is watched.
#[derive(Debug, Clone)]
pub struct WatchMetrics {
    events: Labelled<Counter, 1>,
    lists: Labelled<Counter, 1>,
    errors: Labelled<Counter, 1>,
    /// Objects of which not every field could be read.
    pub read_in_part: Counter,
}

impl WatchMetrics {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            events: registry.counters(
                "plimsoll_watch_events_total",
                ["resource"],
                "Objects that the watch of the API server delivered, those of lists included",
            ),
            lists: registry.counters(
                "plimsoll_watch_lists_total",
                ["resource"],
                "Complete lists of the watch; each after the first is of a watch that could not be resumed",
            ),
            errors: registry.counters(
                "plimsoll_watch_errors_total",
                ["resource"],
                "Failed calls and broken streams of the watch",
            ),
            read_in_part: registry.counter(
                "plimsoll_objects_read_in_part_total",
                "Objects in lists and watches of which not every field could be read",
            ),
        }
    }

    /// Those of the watch of `resource`, such as `nodes`.
    #[must_use]
    pub fn of(&self, resource: &'static str) -> WatchCounters {
        WatchCounters {
            events: self.events.with([resource]),
            lists: self.lists.with([resource]),
            errors: self.errors.with([resource]),
        }
    }
}

/// Sets a counter to what was counted elsewhere.
pub fn set_counter(counter: &Counter, value: u64) {
    counter.inner().store(value, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description(
        name: &str,
        kind: &'static str,
        labels: &[&'static str],
        help: &'static str,
    ) -> Description {
        Description { name: name.to_owned(), kind, labels: labels.to_vec(), help }
    }

    #[test]
    fn a_metric_is_described_before_its_first_sample() {
        let mut registry = Registry::default();
        registry.counters("polls_total", ["outcome"], "Polls");
        registry.gauges("nodes", ["pool"], "Nodes");
        registry.ratios("used_ratio", ["card", "pod"], "Use");
        registry.histograms("took_seconds", ["verb"], "Time", || Histogram::new([1.0]));
        let expected = [
            description("polls_total", "counter", &["outcome"], "Polls"),
            description("nodes", "gauge", &["pool"], "Nodes"),
            description("used_ratio", "gauge", &["card", "pod"], "Use"),
            description("took_seconds", "histogram", &["verb"], "Time"),
        ];
        assert_eq!(registry.descriptions(), expected);
        assert_eq!(registry.page().unwrap(), "");
    }

    #[test]
    fn the_page_has_the_names_labels_and_help_texts_of_the_descriptions() {
        let mut registry = Registry::default();
        registry.counter("late_total", "Late jobs").inc();
        registry.gauge("jobs", "Jobs").set(2);
        registry.histogram("took_seconds", "Time", Histogram::new([1.0])).observe(0.5);
        let taints = registry.counters("taints_total", ["effect", "outcome"], "Taints");
        taints.with(["none", "ok"]).inc_by(3);
        registry.ratios("used_ratio", ["card"], "Use").with(["GPU-1"]).set(0.25);
        let expected = "# HELP late_total Late jobs.\n# TYPE late_total counter\nlate_total 1\n\
            # HELP jobs Jobs.\n# TYPE jobs gauge\njobs 2\n\
            # HELP took_seconds Time.\n# TYPE took_seconds histogram\ntook_seconds_sum 0.5\n\
            took_seconds_count 1\ntook_seconds_bucket{le=\"1.0\"} 1\ntook_seconds_bucket{le=\"+Inf\"} 1\n\
            # HELP taints_total Taints.\n# TYPE taints_total counter\ntaints_total{effect=\"none\",outcome=\"ok\"} 3\n\
            # HELP used_ratio Use.\n# TYPE used_ratio gauge\nused_ratio{card=\"GPU-1\"} 0.25\n";
        assert_eq!(registry.page().unwrap(), expected);
    }

    #[test]
    fn a_removed_sample_is_not_on_the_page() {
        let mut registry = Registry::default();
        let nodes = registry.gauges("nodes", ["pool"], "Nodes");
        nodes.with(["a"]).set(1);
        nodes.with(["b"]).set(2);
        nodes.remove(["a"]);
        let page = registry.page().unwrap();
        assert!(!page.contains("pool=\"a\"") && page.contains("pool=\"b\""), "{page}");
        nodes.clear();
        assert_eq!(registry.page().unwrap(), "");
    }

    #[test]
    fn what_is_counted_elsewhere_is_set_before_each_scrape() {
        let mut registry = Registry::default();
        let errors = registry.counter("errors_total", "Errors");
        let counted = errors.clone();
        registry.before_scrape(move || set_counter(&counted, counted.get() + 7));
        for expected in ["errors_total 7\n", "errors_total 14\n"] {
            assert!(registry.page().unwrap().contains(expected));
        }
    }

    #[test]
    fn the_metrics_of_every_program_are_described() {
        let program = Program { name: "annotator", version: "1.2.3", git: None };
        let registry = Registry::of_program(program);
        let page = registry.page().unwrap();
        let described = registry.descriptions().iter();
        let described =
            described.map(|Description { name, kind, .. }| format!("# TYPE {name} {kind}"));
        let described: Vec<String> = described.collect();
        let typed: Vec<&str> = page.lines().filter(|line| line.starts_with("# TYPE")).collect();
        assert_eq!(typed, described);
    }
}
