//! The policy file that extender and annotator follow.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::model::policy::Policy;

/// The policy that a user installs.
const SHIPPED: &str = include_str!("../../../../deploy/chart/policies/shipped.yaml");
/// A policy of crane's kind.
const CRANE: &str = include_str!("crane-policy.yaml");
/// What the demo replaces in the shipped policy: its windows, since a minute must be enough to see a mean of five
/// minutes move. A killed exporter's readings are too old after half a minute.
const WINDOWS: [(&str, &str); 4] = [
    ("cpu_shared_busy_avg_5m", "cpu_shared_busy_active"),
    ("mem_usage_avg_5m", "mem_usage_active"),
    ("period: 1m", "period: 2s"),
    ("maxAge: 8m", "maxAge: 30s"),
];

/// The policy file of a demo whose files lie below `root`.
pub(super) fn path(root: &Path) -> PathBuf {
    root.join("policy.yaml")
}

/// Writes the policy file in one step, so that no program reads half of it.
///
/// # Errors
/// When it cannot be written.
pub(super) fn write(root: &Path, policy: Policy) -> io::Result<()> {
    let fresh = root.join(".policy.yaml");
    fs::write(&fresh, text(policy))?;
    fs::rename(fresh, path(root))
}

fn text(policy: Policy) -> String {
    match policy {
        Policy::Shipped => {
            WINDOWS.iter().fold(SHIPPED.to_owned(), |text, (from, to)| text.replace(from, to))
        }
        Policy::Crane => CRANE.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use placement::policy::LoadPolicy;

    use super::*;
    use crate::model::policy::MEMORY_METRIC;

    fn parsed(text: &str) -> LoadPolicy {
        LoadPolicy::from_yaml(text).unwrap()
    }

    #[test]
    fn each_window_stands_in_the_shipped_policy_as_often_as_it_has_metrics_with_it() {
        let found = WINDOWS.map(|(from, _)| SHIPPED.matches(from).count());
        assert_eq!(found, [1, 1, 2, 2]);
    }

    #[test]
    fn the_demos_policy_differs_from_the_shipped_one_in_windows_alone() {
        let shipped = parsed(SHIPPED);
        let mut demo = parsed(&text(Policy::Shipped));
        assert_ne!(demo, shipped);
        assert!(demo.warnings().is_empty(), "{:?}", demo.warnings());
        // Metric, period and maximum age, in the policy's order.
        for (rule, other) in demo.sync.iter_mut().zip(&shipped.sync) {
            rule.metric.clone_from(&other.metric);
            rule.period = other.period;
        }
        for (limit, other) in demo.limits.iter_mut().zip(&shipped.limits) {
            limit.metric.clone_from(&other.metric);
            limit.max_age = other.max_age;
        }
        for (weight, other) in demo.weights.iter_mut().zip(&shipped.weights) {
            weight.metric.clone_from(&other.metric);
            weight.max_age = other.max_age;
        }
        assert_eq!(demo, shipped);
    }

    #[test]
    fn checker_and_log_know_the_limits_and_metrics_of_the_policies() {
        for policy in [Policy::Shipped, Policy::Crane] {
            let parsed = parsed(&text(policy));
            let limits: Vec<(&str, f64)> =
                parsed.limits.iter().map(|limit| (limit.metric.as_str(), limit.max)).collect();
            let known = policy.limits();
            let expected = [(policy.cpu_metric(), known.cpu), (MEMORY_METRIC, known.memory)];
            assert_eq!(limits, expected);
        }
    }
}
