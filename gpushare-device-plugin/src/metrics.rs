//! What the plugin counts.

use daemon::Registry;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// Why something was refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Reason {
    /// A short name of it.
    pub reason: &'static str,
}

/// One card.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfCard {
    /// Its UUID.
    pub uuid: String,
}

/// All metrics; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Containers that were given their card.
    pub allocations: Counter,
    /// Allocate calls refused, by reason.
    pub refusals: Family<Reason, Counter>,
    /// Containers proven right by the kubelet's record before their start.
    pub verified: Counter,
    /// Containers started without anything to compare with.
    pub unverifiable: Counter,
    /// Containers held back because record and claim disagree.
    pub mismatches: Counter,
    /// Pods whose card by the kubelet's record is another than the claimed one.
    pub corrections: Counter,
    /// Calls to the kubelet's records that its rate limit turned away.
    pub record_retries: Counter,
    /// Registrations with the kubelet.
    pub registrations: Counter,
    /// 1 for a healthy card, 0 for one that takes no pods.
    pub card_healthy: Family<OfCard, Gauge>,
    /// Units of a card.
    pub card_units: Family<OfCard, Gauge>,
}

impl Metrics {
    /// Fresh ones, told to `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("gpu");
        let mut counter =
            |name, help, counter: &Counter| registry.register(name, help, counter.clone());
        counter("allocations", "Containers that were given their card", &metrics.allocations);
        counter(
            "starts_verified",
            "Container starts proven right by the kubelet's record",
            &metrics.verified,
        );
        counter(
            "starts_unverifiable",
            "Container starts with nothing to compare with",
            &metrics.unverifiable,
        );
        counter(
            "mismatches",
            "Container starts held back: record and claim disagree",
            &metrics.mismatches,
        );
        counter(
            "corrections",
            "Pods found on another card than their claim's",
            &metrics.corrections,
        );
        counter(
            "record_retries",
            "PodResources calls turned away by the rate limit",
            &metrics.record_retries,
        );
        counter("registrations", "Registrations with the kubelet", &metrics.registrations);
        registry.register("refusals", "Allocate calls refused", metrics.refusals.clone());
        registry.register(
            "card_healthy",
            "Whether a card takes pods",
            metrics.card_healthy.clone(),
        );
        registry.register("card_units", "Units of a card", metrics.card_units.clone());
        metrics
    }
}
