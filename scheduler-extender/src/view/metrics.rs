//! The metrics of what the view contains. They are set before each scrape.

use daemon::metrics::{
    Counter, Gauge, Labelled, Registry, WatchCounters, WatchMetrics, set_counter,
};
use jiff::Timestamp;
use settings::policy_warnings;

use super::{Index, View, WatchState};

/// The contents of the view.
#[derive(Debug, Clone)]
pub(crate) struct ViewMetrics {
    nodes: Gauge,
    gpu_nodes: Gauge,
    gpus: Gauge,
    gpus_unhealthy: Gauge,
    gpu_units: Gauge,
    gpu_units_used: Gauge,
    gpu_units_overbooked: Gauge,
    gpu_reservations: Gauge,
    gpu_nodes_backed_off: Gauge,
    refused_gpu_pods: Counter,
    refused_objects: Counter,
    policy_warnings: Gauge,
    without_reading: Labelled<Gauge, 1>,
    refused_readings: Labelled<Counter, 1>,
    watches: WatchMetrics,
}

impl ViewMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        Self {
            nodes: registry.gauge("plimsoll_extender_nodes", "Nodes known"),
            gpu_nodes: registry.gauge("plimsoll_extender_gpu_nodes", "Nodes that report GPUs"),
            gpus: registry.gauge("plimsoll_extender_gpu_cards", "GPUs reported"),
            gpus_unhealthy: registry
                .gauge("plimsoll_extender_gpu_cards_unhealthy", "GPUs reported as unhealthy"),
            gpu_units: registry.gauge("plimsoll_extender_gpu_units", "Units of all GPUs"),
            gpu_units_used: registry.gauge("plimsoll_extender_gpu_units_used", "Units that pods hold"),
            gpu_units_overbooked: registry.gauge(
                "plimsoll_extender_gpu_units_overbooked",
                "Units that pods hold beyond those of their GPUs",
            ),
            gpu_reservations: registry.gauge(
                "plimsoll_extender_gpu_reservations",
                "Reservations of GPUs that the API server has not confirmed",
            ),
            gpu_nodes_backed_off: registry.gauge(
                "plimsoll_extender_gpu_nodes_backed_off",
                "Nodes that take no GPU pods of some namespace for a while, since they refused several",
            ),
            refused_gpu_pods: registry.counter(
                "plimsoll_extender_refused_gpu_pods_total",
                "GPU pods that Bind had given a GPU and that their node refused, or could not start, by its own fault",
            ),
            refused_objects: registry.counter(
                "plimsoll_extender_refused_objects_total",
                "Events of pods and nodes whose GPU request, claim or GPUs could not be read",
            ),
            policy_warnings: policy_warnings(registry),
            without_reading: registry.gauges(
                "plimsoll_extender_nodes_without_fresh_reading",
                ["metric"],
                "Nodes without a fresh reading of a metric of the policy",
            ),
            refused_readings: registry.counters(
                "plimsoll_extender_refused_readings_total",
                ["cause"],
                "Readings that were not believed and count as missing, by cause",
            ),
            watches: WatchMetrics::register(registry),
        }
    }

    /// Sets them to what the view contains at `now`.
    pub(crate) fn set(&self, view: &View, now: Timestamp) {
        let snapshot = view.read();
        let totals = snapshot.totals();
        self.nodes.set(count(snapshot.loads().count() as u64));
        self.gpu_nodes.set(count(totals.nodes));
        self.gpus.set(count(totals.gpus));
        self.gpus_unhealthy.set(count(totals.unhealthy));
        self.gpu_units.set(count(totals.units));
        self.gpu_units_used.set(count(totals.used));
        self.gpu_units_overbooked.set(count(totals.overbooked));
        self.gpu_reservations.set(count(totals.reserved));
        let backed_off = snapshot.back_offs.values().filter(|node| node.is_on(now)).count();
        self.gpu_nodes_backed_off.set(count(backed_off as u64));
        set_counter(&self.refused_gpu_pods, view.ask(Index::refused_pods));
        set_counter(&self.refused_objects, view.ask(Index::refused_objects));
        set_counter(&self.watches.read_in_part, cluster::objects_read_in_part());
        let warnings = snapshot.policy.policy.warnings_of_any_source().len();
        self.policy_warnings.set(count(warnings as u64));
        // Another policy may have other metrics.
        self.without_reading.clear();
        for (metric, nodes) in snapshot.nodes_without_reading(now) {
            self.without_reading.with([metric.to_string()]).set(count(nodes));
        }
        for (cause, readings) in view.ask(Index::refused_readings) {
            set_counter(&self.refused_readings.with([cause]), readings);
        }
        set_watch(&self.watches.of("nodes"), &view.nodes);
        set_watch(&self.watches.of("pods"), &view.pods);
        if let Some(claims) = &view.claims {
            set_watch(&self.watches.of("resourceclaims"), claims);
        }
    }
}

/// Sets the metrics of a watch to what the watch itself counted.
fn set_watch(metrics: &WatchCounters, watch: &WatchState) {
    set_counter(&metrics.events, watch.health.events());
    set_counter(&metrics.lists, watch.health.lists());
    set_counter(&metrics.errors, watch.health.errors());
}

fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
