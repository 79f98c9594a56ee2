//! The plugin's metrics.

use daemon::Registry;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// Labels of a refusal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Reason {
    /// One word for the cause, such as `card_full`: `Refusal::label`.
    pub reason: &'static str,
}

/// Labels of a card.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfCard {
    /// NVML's UUID, `GPU-…`.
    pub uuid: String,
}

/// Labels of an error of a card.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ErrorOfCard {
    /// NVML's UUID, `GPU-…`.
    pub uuid: String,
    /// NVIDIA's number of the error, or `unknown`.
    pub xid: String,
}

/// Labels of a problem of NVIDIA's CDI specification.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ProblemLabel {
    /// One word, such as `card_missing`: `Problem::label`.
    pub problem: &'static str,
}

/// Labels of a mode of isolation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ModeLabel {
    /// `driver`, `mps` or `none`.
    pub mode: &'static str,
}

/// Labels of a finding of the audit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FindingLabel {
    /// The kind, such as `claim_elsewhere`: `audit::Kind::label`.
    pub kind: &'static str,
}

/// All metrics. Clones share the same counters.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Allocate calls granted.
    pub allocations: Counter,
    /// Allocate calls refused, by reason.
    pub refusals: Family<Reason, Counter>,
    /// Container starts whose card record and claim agree on.
    pub verified: Counter,
    /// Container starts without a record or a claim to compare with.
    pub unverifiable: Counter,
    /// Container starts refused because record and claim contradict each other.
    pub mismatches: Counter,
    /// Pods that are on another card by the kubelet's record than by their claim.
    pub corrections: Counter,
    /// Containers of pods without a claim that were put on a card with room.
    pub unclaimed_placed: Counter,
    /// Deleted pods whose processes still run.
    pub lingering: Gauge,
    /// 1 while the file of grants cannot be read or written.
    pub state_behind: Gauge,
    /// Reads of control groups that did not show all pods.
    pub cgroup_failures: Counter,
    /// Claims written from the kubelet's records.
    pub claims_written: Counter,
    /// Failed writes of the number of cards.
    pub count_failures: Counter,
    /// PodResources calls that the kubelet's rate limit rejected.
    pub record_retries: Counter,
    /// Registrations with the kubelet.
    pub registrations: Counter,
    /// 1 for a healthy card, 0 for an unhealthy one.
    pub card_healthy: Family<OfCard, Gauge>,
    /// Units of a card.
    pub card_units: Family<OfCard, Gauge>,
    /// Critical errors (XIDs) that a card raised, those that applications cause included.
    pub card_errors: Family<ErrorOfCard, Counter>,
    /// Current problems of NVIDIA's CDI specification.
    pub cdi_problems: Family<ProblemLabel, Gauge>,
    /// 1 for the mode of isolation of this node, unless a pod's annotation is stronger.
    pub isolation: Family<ModeLabel, Gauge>,
    /// Containers by the mode that they were granted with.
    pub isolated: Family<ModeLabel, Counter>,
    /// Containers that were granted with a weaker mode than required.
    pub isolation_downgrades: Counter,
    /// Audits.
    pub audits: Counter,
    /// Findings that the last two audits have; kinds that could not be compared are absent.
    pub audit_findings: Family<FindingLabel, Gauge>,
    /// Findings that were repaired.
    pub audit_repairs: Family<FindingLabel, Counter>,
}

impl Metrics {
    /// New metrics, registered with `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("gpu");
        for (name, help, counter) in [
            ("allocations", "Containers that were given their card", &metrics.allocations),
            (
                "starts_verified",
                "Container starts whose card the kubelet's record and the claim agree on",
                &metrics.verified,
            ),
            (
                "starts_unverifiable",
                "Container starts without a record or claim to compare with",
                &metrics.unverifiable,
            ),
            (
                "mismatches",
                "Container starts refused: record and claim contradict each other",
                &metrics.mismatches,
            ),
            ("corrections", "Pods found on another card than their claim's", &metrics.corrections),
            (
                "unclaimed_placed",
                "Containers of pods without a claim that were put on a card with room",
                &metrics.unclaimed_placed,
            ),
            (
                "claims_written",
                "Claims that were written anew from the kubelet's records",
                &metrics.claims_written,
            ),
            (
                "count_failures",
                "Failed writes of the number of cards into the Node's status",
                &metrics.count_failures,
            ),
            (
                "cgroup_failures",
                "Looks at the host's control groups that failed or did not show all pods",
                &metrics.cgroup_failures,
            ),
            (
                "record_retries",
                "PodResources calls turned away by the rate limit",
                &metrics.record_retries,
            ),
            ("registrations", "Registrations with the kubelet", &metrics.registrations),
            (
                "isolation_downgrades",
                "Containers held to their share in a weaker way than wanted",
                &metrics.isolation_downgrades,
            ),
            ("audits", "Comparisons of claims, records and processes", &metrics.audits),
        ] {
            registry.register(name, help, counter.clone());
        }
        registry.register(
            "audit_findings",
            "What does not agree between claims, the kubelet's records and processes, by kind",
            metrics.audit_findings.clone(),
        );
        registry.register(
            "audit_repairs",
            "Findings of the audit that were repaired",
            metrics.audit_repairs.clone(),
        );
        registry.register(
            "lingering_pods",
            "Pods that are gone while their processes run and their units stay taken",
            metrics.lingering.clone(),
        );
        registry.register(
            "state_behind",
            "Whether what was granted could not be read from --state-dir, or not written there",
            metrics.state_behind.clone(),
        );
        registry.register(
            "isolation",
            "Whether this mode holds containers to their share on this node",
            metrics.isolation.clone(),
        );
        registry.register(
            "isolated_containers",
            "Containers given their card, by the mode that holds them to their share",
            metrics.isolated.clone(),
        );
        registry.register("refusals", "Allocate calls refused", metrics.refusals.clone());
        registry.register(
            "card_healthy",
            "Whether a card takes pods",
            metrics.card_healthy.clone(),
        );
        registry.register("card_units", "Units of a card", metrics.card_units.clone());
        registry.register(
            "card_errors",
            "Errors (XIDs) that a card raised",
            metrics.card_errors.clone(),
        );
        registry.register(
            "cdi_problems",
            "What is wrong with NVIDIA's CDI specification now, by cause",
            metrics.cdi_problems.clone(),
        );
        metrics
    }
}
