//! The metrics of the shadow policy.

use daemon::metrics::{Counter, Labelled, Registry};

use super::Comparison;

/// The shadow policy's metrics; clones share them.
#[derive(Debug, Clone)]
pub struct ShadowMetrics {
    compared: Counter,
    disagreements: Labelled<Counter, 1>,
    /// Decisions that were not compared because too many were waiting.
    pub(super) skipped: Counter,
}

impl ShadowMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let decisions = registry.counters(
            "plimsoll_extender_shadow_decisions_total",
            ["outcome"],
            "Decisions that were compared with the shadow policy's, and that were not, by outcome",
        );
        Self {
            compared: decisions.with(["compared"]),
            skipped: decisions.with(["skipped"]),
            disagreements: registry.counters(
                "plimsoll_extender_shadow_disagreements_total",
                ["kind"],
                "Decisions that the shadow policy would have made otherwise, by what differs",
            ),
        }
    }

    /// Counts a comparison.
    pub(super) fn count_comparison(&self, comparison: &Comparison) {
        self.compared.inc();
        let kinds =
            [("filter", comparison.differs_in_filter()), ("score", comparison.differs_in_score())];
        for (kind, differs) in kinds {
            self.disagreements.with([kind]).inc_by(u64::from(differs));
        }
    }
}
