//! Warnings about what is valid in a policy and probably not meant.

use jiff::SignedDuration;

use super::exported::is_of_some_nodes;
use super::{
    Limit, LoadPolicy, MetricMeaning, Model, ReadingSource, Unknown, Weight, WindowStatistic,
};
use crate::resources::Resource;
use crate::units::MetricName;

/// The longest window that is useful to predict the next minutes.
const USEFUL_WINDOW: SignedDuration = SignedDuration::from_hours(6);

/// One thing in a policy that probably is not meant.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PolicyWarning {
    /// A limit on a metric that nothing fetches.
    #[error(
        "the limit on `{0}` never applies, since nothing fetches it: give it a period (crane's kind: a syncPolicy entry)"
    )]
    LimitNotFetched(MetricName),
    /// A weight of a metric that nothing fetches.
    #[error(
        "the weight of `{0}` adds nothing to any node's score, since nothing fetches it: give it a period (crane's kind: a syncPolicy entry)"
    )]
    WeightNotFetched(MetricName),
    /// A fetched metric that nothing reads.
    #[error("`{0}` is fetched and written on every node, and has neither limit nor weight")]
    NotRead(MetricName),
    /// A metric that is fetched by two rules.
    #[error(
        "spec.syncPolicy: `{0}` has several entries: the first one decides how long its readings count"
    )]
    FetchedTwice(MetricName),
    /// A limit that no usage can reach.
    #[error(
        "the limit {max} on `{metric}` is above 1, which no usage reaches: for {max}% write {}",
        max / 100.0
    )]
    LimitAboveOne {
        /// The metric.
        metric: MetricName,
        /// The limit.
        max: f64,
    },
    /// A metric that node-exporter-plus cannot serve.
    #[error(
        "`{0}` is no metric of node-exporter-plus: expected a signal and an aggregate, such as `cpu_usage_avg_5m`"
    )]
    NotExported(MetricName),
    /// A metric that no query of Prometheus gives.
    #[error(
        "no query of Prometheus gives `{0}`: add one to --prometheus-queries-file, or leave the metric out"
    )]
    NotQueried(MetricName),
    /// A metric that cannot be computed from what metrics-server reports.
    #[error(
        "metrics-server cannot give `{0}`, only the use of CPU and `mem_usage` with `_active` and `_avg_5m`: leave it out, or use exporters"
    )]
    NotOfMetricsServer(MetricName),
    /// A metric that some nodes cannot have, and that rejects these or makes them look full.
    #[error(
        "nodes that cannot have `{metric}` {}: set `whenMissing: ignore` (of crane's kind, after `plimsoll policy convert`), or give the metric its limit and weight in a node pool of nodes that have it",
        if *reject { "take no pods" } else { "count as full in scores, so that pods are drawn to nodes that have it" }
    )]
    AbsentOnSomeNodes {
        /// The metric.
        metric: MetricName,
        /// Whether such nodes are rejected; otherwise they are penalised.
        reject: bool,
    },
    /// Readings are stale before the next one is written.
    #[error(
        "readings of `{0}` are stale for a part of each period: expected a maxAge above its period"
    )]
    MaxAgeBelowPeriod(MetricName),
    /// A long window under a model that needs the current load.
    #[error(
        "`{0}` looks back more than 6 hours, and keeps nodes that were loaded once from taking pods: prefer `avg_5m` and `max_avg_1h`"
    )]
    LongWindow(MetricName),
    /// A deviation with a weight under a model that compares loads.
    #[error(
        "the weight of `{metric}` counts in no score: the model {model} compares loads, and a deviation is none"
    )]
    NoLoad {
        /// The metric.
        metric: MetricName,
        /// The model's name.
        model: &'static str,
    },
    /// A model of CPU and memory without one of the two.
    #[error("the model {model} sees no {resource}: give `{example}` a weight")]
    ResourceNotWeighted {
        /// The model's name.
        model: &'static str,
        /// `CPU` or `memory`.
        resource: &'static str,
        /// A metric of it.
        example: &'static str,
    },
    /// Weights of which none is above 0.
    #[error("all weights are 0: every node scores 0")]
    WeightsAllZero,
    /// A pool without weights while other nodes have weights.
    #[error("{0} have no weights and score 0, while other nodes have: they are chosen last")]
    ScoresZero(String),
    /// A pool whose limits and weights are the same as outside of it.
    #[error("the node pool `{0}` changes no limit and no weight")]
    PoolChangesNothing(String),
    /// A namespace that two rules name.
    #[error(
        "the namespace `{0}` is in several rules: its pods go only to nodes that match each of them"
    )]
    NamespaceTwice(String),
    /// Recent bindings count by number and by what they use.
    #[error(
        "recent bindings count twice, by spec.hotValue and by spec.estimates: remove hotValue, or set `estimates.enabled: false`"
    )]
    CountedTwice,
}

/// All warnings, in the order of the policy's lists.
pub(super) fn warnings(policy: &LoadPolicy, source: &ReadingSource) -> Vec<PolicyWarning> {
    let mut warnings = of_metrics(policy, source);
    warnings.extend(of_model(policy));
    warnings.extend(of_nodes(policy));
    let twice = policy.estimates.is_some() && !policy.hot.is_empty();
    warnings.extend(twice.then_some(PolicyWarning::CountedTwice));
    warnings
}

fn of_metrics(policy: &LoadPolicy, source: &ReadingSource) -> Vec<PolicyWarning> {
    let mut warnings = Vec::new();
    let read = policy.metrics();
    for (position, rule) in policy.sync.iter().enumerate() {
        let metric = &rule.metric;
        if policy.sync[..position].iter().any(|earlier| earlier.metric == *metric) {
            warnings.push(PolicyWarning::FetchedTwice(metric.clone()));
            continue;
        }
        if !read.contains(&metric) {
            warnings.push(PolicyWarning::NotRead(metric.clone()));
        }
        if !source.gives(metric) {
            warnings.push(not_given(metric.clone(), source));
        }
        if policy.max_age(metric).is_some_and(|max_age| max_age < rule.period) {
            warnings.push(PolicyWarning::MaxAgeBelowPeriod(metric.clone()));
        }
    }
    let mut limits: Vec<&Limit> = policy.limits.iter().collect();
    for pool in &policy.pools {
        limits.extend(pool.limits.iter().filter(|limit| !policy.limits.contains(limit)));
    }
    for limit in limits {
        let metric = limit.metric.clone();
        if limit.max_age.is_none() {
            warnings.push(PolicyWarning::LimitNotFetched(metric));
        } else if limit.max > 1.0 {
            warnings.push(PolicyWarning::LimitAboveOne { metric, max: limit.max });
        }
    }
    warnings.extend(absent_on_some_nodes(policy));
    for weight in policy.weights.iter().filter(|weight| weight.max_age.is_none()) {
        warnings.push(PolicyWarning::WeightNotFetched(weight.metric.clone()));
    }
    warnings
}

/// Fetched metrics of nodes of no pool that some of these cannot have, each once.
fn absent_on_some_nodes(policy: &LoadPolicy) -> Vec<PolicyWarning> {
    let mut warnings = Vec::new();
    let mut warn = |metric: &MetricName, reject: bool| {
        let warning = PolicyWarning::AbsentOnSomeNodes { metric: metric.clone(), reject };
        if is_of_some_nodes(metric) && !warnings.contains(&warning) {
            warnings.push(warning);
        }
    };
    for limit in policy.limits.iter().filter(|limit| limit.max_age.is_some()) {
        if limit.when_missing == Unknown::Reject {
            warn(&limit.metric, true);
        }
    }
    for weight in policy.weights.iter().filter(|weight| weight.max_age.is_some()) {
        if weight.weight > 0.0 && weight.when_missing != Unknown::Ignore {
            warn(&weight.metric, weight.when_missing == Unknown::Reject);
        }
    }
    warnings
}

fn not_given(metric: MetricName, source: &ReadingSource) -> PolicyWarning {
    match source {
        ReadingSource::Exporters => PolicyWarning::NotExported(metric),
        ReadingSource::Prometheus { .. } => PolicyWarning::NotQueried(metric),
        ReadingSource::MetricsServer => PolicyWarning::NotOfMetricsServer(metric),
    }
}

fn of_model(policy: &LoadPolicy) -> Vec<PolicyWarning> {
    let weights = &policy.weights;
    let sum: f64 = weights.iter().map(|weight| weight.weight).sum();
    if sum == 0.0 {
        return if weights.is_empty() { Vec::new() } else { vec![PolicyWarning::WeightsAllZero] };
    }
    if policy.scoring.model == Model::CraneLinear {
        // crane's policies weigh a day by design; `plimsoll policy convert` says what to change.
        return Vec::new();
    }
    let model = policy.scoring.model.name();
    let mut warnings = Vec::new();
    for weight in weights {
        if meaning(weight).window.is_some_and(|window| window > USEFUL_WINDOW) {
            warnings.push(PolicyWarning::LongWindow(weight.metric.clone()));
        }
        if is_deviation(weight) {
            let metric = weight.metric.clone();
            warnings.push(PolicyWarning::NoLoad { metric, model });
        }
    }
    let both = [
        (Resource::Cpu, "CPU", "cpu_busy_avg_5m"),
        (Resource::Memory, "memory", "mem_usage_avg_5m"),
    ];
    let loads: Vec<&Weight> = weights.iter().filter(|weight| !is_deviation(weight)).collect();
    for (which, resource, example) in both {
        if !loads.iter().any(|weight| meaning(weight).resource == Some(which)) {
            warnings.push(PolicyWarning::ResourceNotWeighted { model, resource, example });
        }
    }
    warnings
}

fn meaning(weight: &Weight) -> MetricMeaning {
    MetricMeaning::of(&weight.metric)
}

fn is_deviation(weight: &Weight) -> bool {
    meaning(weight).statistic == WindowStatistic::Deviation
}

fn is_weighted(weights: &[Weight]) -> bool {
    weights.iter().any(|weight| weight.weight > 0.0)
}

fn of_nodes(policy: &LoadPolicy) -> Vec<PolicyWarning> {
    let mut warnings = Vec::new();
    let common = is_weighted(&policy.weights);
    if !common && policy.pools.iter().any(|pool| is_weighted(&pool.weights)) {
        warnings.push(PolicyWarning::ScoresZero("nodes of no pool".to_owned()));
    }
    for pool in &policy.pools {
        if pool.limits == policy.limits && pool.weights == policy.weights {
            warnings.push(PolicyWarning::PoolChangesNothing(pool.name.to_string()));
        } else if common && !is_weighted(&pool.weights) {
            let nodes = format!("nodes of the pool `{}`", pool.name);
            warnings.push(PolicyWarning::ScoresZero(nodes));
        }
    }
    let mut names: Vec<_> = policy.namespaces.iter().flat_map(|rule| &rule.namespaces).collect();
    names.sort_unstable();
    for same in names.chunk_by(|one, other| one == other).filter(|same| same.len() > 1) {
        warnings.push(PolicyWarning::NamespaceTwice(same[0].to_string()));
    }
    warnings
}
