//! The plugin's metrics.

use daemon::metrics::{Counter, Gauge, Labelled, Ratio, Registry};

/// The labels of the use of a GPU: those of NVIDIA's dcgm-exporter, and `owner`.
const OF_USE: [&str; 9] =
    ["gpu", "UUID", "device", "modelName", "Hostname", "container", "namespace", "pod", "owner"];

/// All metrics. Clones share the same counters.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Allocate calls refused, by `Refusal::label`; and container starts refused for another reason than a mismatch, of
    /// which `record` is a record of the kubelet that cannot be read.
    pub refusals: Labelled<Counter, 1>,
    /// Container starts by how the kubelet's record compares with the claim: `verified`, `unverifiable` without a
    /// record or a claim, `mismatch` where they contradict each other, and the start is refused.
    pub starts: Labelled<Counter, 1>,
    /// ResourceClaims that were not prepared, by `PrepareError::label`.
    pub claim_refusals: Labelled<Counter, 1>,
    /// ResourceClaims that hold GPU memory: `prepared`, and `ending` while processes of theirs run.
    pub claims: Labelled<Gauge, 1>,
    /// Pods that are on another GPU by the kubelet's record than by their claim.
    pub corrections: Counter,
    /// Containers of pods without a claim that were put on a GPU with room.
    pub unclaimed_placed: Counter,
    /// 1 while no unit or only a few are offered, since pods come without a claim.
    pub units_withheld: Gauge,
    /// How often units were withheld.
    pub withheld: Counter,
    /// Claims written from the kubelet's records.
    pub claims_written: Counter,
    /// Registrations with the kubelet.
    pub registrations: Counter,
    /// 1 while no GPU was found, so that nothing else of the plugin runs.
    pub idle: Gauge,
    /// 1 for a healthy GPU, 0 for an unhealthy one, by UUID.
    pub gpu_healthy: Labelled<Gauge, 1>,
    /// Units of a GPU, by UUID.
    pub gpu_units: Labelled<Gauge, 1>,
    /// Critical errors that a GPU raised, those that applications cause included, by UUID and by NVIDIA's number of
    /// the error (XID) or `unknown`.
    pub gpu_errors: Labelled<Counter, 2>,
    /// Failed writes of the number of GPUs.
    pub count_failures: Counter,
    /// Deleted pods whose processes still run.
    pub lingering: Gauge,
    /// Reads of control groups that did not show all pods.
    pub cgroup_failures: Counter,
    /// 1 while the file of grants cannot be read or written.
    pub state_behind: Gauge,
    /// Current problems of NVIDIA's CDI specification, by `Problem::label`.
    pub cdi_problems: Labelled<Gauge, 1>,
    /// 1 for the mode of isolation of this node (`driver`, `mps` or `none`), unless a pod's annotation is stronger.
    pub isolation: Labelled<Gauge, 1>,
    /// Containers by the mode that they were granted with.
    pub isolated: Labelled<Counter, 1>,
    /// Containers that were granted with a weaker mode than required.
    pub isolation_downgrades: Counter,
    /// 1 while MPS's clients are terminated before their processes are killed.
    pub mps_drain: Gauge,
    /// Pods whose MPS clients were to be terminated, by whether that could be asked for (`asked`, `failed`).
    pub mps_drains: Labelled<Counter, 1>,
    /// Audits.
    pub audits: Counter,
    /// Findings that the last two audits have, by `audit::Kind::label`; kinds that could not be compared are absent.
    pub audit_findings: Labelled<Gauge, 1>,
    /// Findings that were repaired, by the same label.
    pub audit_repairs: Labelled<Counter, 1>,
    /// Memory of a GPU that processes use, by the labels [`OF_USE`].
    pub(crate) memory_used: Labelled<Gauge, 9>,
    /// Part of the time in which processes run on a GPU's SMs, by the labels [`OF_USE`].
    pub(crate) sm_used: Labelled<Ratio, 9>,
    /// 1 for a GPU whose processes are unknown, by UUID and `processes::Unknown::label`.
    pub(crate) processes_unknown: Labelled<Gauge, 2>,
}

/// Metrics that are served nowhere.
impl Default for Metrics {
    fn default() -> Self {
        Self::register(&mut Registry::default())
    }
}

impl Metrics {
    /// New metrics, registered with `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            refusals: registry.counters(
                "plimsoll_gpu_refusals_total",
                ["reason"],
                "Containers that were refused a GPU, by reason",
            ),
            starts: registry.counters(
                "plimsoll_gpu_starts_total",
                ["result"],
                "Container starts, by how the kubelet's record of the GPU compares with the claim",
            ),
            claim_refusals: registry.counters(
                "plimsoll_gpu_resource_claim_refusals_total",
                ["reason"],
                "ResourceClaims that were not prepared, by reason",
            ),
            claims: registry.gauges(
                "plimsoll_gpu_resource_claims",
                ["state"],
                "ResourceClaims that hold GPU memory: prepared, or ending while their processes run",
            ),
            corrections: registry.counter(
                "plimsoll_gpu_corrections_total",
                "Pods found on another GPU than their claim's",
            ),
            unclaimed_placed: registry.counter(
                "plimsoll_gpu_unclaimed_placed_total",
                "Containers of pods without a claim that were put on a GPU with room",
            ),
            units_withheld: registry.gauge(
                "plimsoll_gpu_units_withheld",
                "1 while no unit or only a few are offered, since pods are bound without the extender, else 0",
            ),
            withheld: registry.counter(
                "plimsoll_gpu_withheld_total",
                "Times that no unit was offered for a while, since pods are bound without the extender",
            ),
            claims_written: registry.counter(
                "plimsoll_gpu_claims_written_total",
                "Claims that were written anew from the kubelet's records",
            ),
            registrations: registry
                .counter("plimsoll_gpu_registrations_total", "Registrations with the kubelet"),
            idle: registry.gauge(
                "plimsoll_gpu_idle",
                "1 while the node has no GPU, with --idle-without-cards, so that nothing is offered, else 0",
            ),
            gpu_healthy: registry.gauges(
                "plimsoll_gpu_card_healthy",
                ["uuid"],
                "1 for a GPU that takes pods, 0 for an unhealthy one",
            ),
            gpu_units: registry.gauges("plimsoll_gpu_card_units", ["uuid"], "Units of a GPU"),
            gpu_errors: registry.counters(
                "plimsoll_gpu_card_errors_total",
                ["uuid", "xid"],
                "Errors (XIDs) that a GPU raised, those that applications cause included",
            ),
            count_failures: registry.counter(
                "plimsoll_gpu_count_failures_total",
                "Failed writes of the number of GPUs into the Node's status",
            ),
            lingering: registry.gauge(
                "plimsoll_gpu_lingering_pods",
                "Pods that are gone while their processes run and their units stay taken",
            ),
            cgroup_failures: registry.counter(
                "plimsoll_gpu_cgroup_failures_total",
                "Reads of the host's control groups that failed or did not show all pods",
            ),
            state_behind: registry.gauge(
                "plimsoll_gpu_state_behind",
                "1 while what was granted cannot be read from its file or written there, else 0",
            ),
            cdi_problems: registry.gauges(
                "plimsoll_gpu_cdi_problems",
                ["problem"],
                "Present problems of NVIDIA's CDI specification, by cause",
            ),
            isolation: registry.gauges(
                "plimsoll_gpu_isolation",
                ["mode"],
                "1 for the mode that limits every container of this node at least, 0 for the others",
            ),
            isolated: registry.counters(
                "plimsoll_gpu_isolated_containers_total",
                ["mode"],
                "Containers that were given their GPU, by the mode that limits them to their share",
            ),
            isolation_downgrades: registry.counter(
                "plimsoll_gpu_isolation_downgrades_total",
                "Containers that are limited to their share in a weaker way than wanted",
            ),
            mps_drain: registry.gauge(
                "plimsoll_gpu_mps_drain",
                "1 while MPS's clients are terminated before their processes are killed, 0 where nothing does so",
            ),
            mps_drains: registry.counters(
                "plimsoll_gpu_mps_drains_total",
                ["result"],
                "Pods that were about to be killed, by whether the end of their MPS clients was asked or failed",
            ),
            audits: registry.counter(
                "plimsoll_gpu_audits_total",
                "Comparisons of claims, the kubelet's records and processes",
            ),
            audit_findings: registry.gauges(
                "plimsoll_gpu_audit_findings",
                ["kind"],
                "Disagreements that the last two audits found, by kind",
            ),
            audit_repairs: registry.counters(
                "plimsoll_gpu_audit_repairs_total",
                ["kind"],
                "Disagreements that were repaired, by kind",
            ),
            memory_used: registry.gauges(
                "plimsoll_gpu_memory_used_bytes",
                OF_USE,
                "Memory of a GPU that a container's processes use, in bytes",
            ),
            sm_used: registry.ratios(
                "plimsoll_gpu_sm_used_ratio",
                OF_USE,
                "Part of the last sample period in which a container's processes ran on a GPU's SMs, 0 to 1",
            ),
            processes_unknown: registry.gauges(
                "plimsoll_gpu_processes_unknown",
                ["uuid", "reason"],
                "1 for a GPU whose processes are unknown, by reason",
            ),
        };
        // A rate sees the first of them only where there was a 0 before.
        for result in ["verified", "unverifiable", "mismatch"] {
            metrics.starts.with([result]);
        }
        metrics
    }
}
