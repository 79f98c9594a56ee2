//! A policy with all defaults filled in.

use placement::load::{MetricTable, ResolvedPolicy, ResolvedRules, ResolvedWeight};
use placement::policy::{
    BeyondUnitsName, BeyondUnitsRule, Exported, LoadPolicy, Model, PolicyKind, ReadingSource,
    Scoring as Rules, Weight, WhenAllOverloaded, WindowStatistic,
};
use placement::units::MetricName;

use super::{
    BeyondUnits, Demand, Estimates, Gpu, HotRule, Limits, Metric, Namespaces, NodePool,
    PolicyCheck, Scoring,
};

/// The answer for a policy that is accepted, of the kind `kind` where that is known. `source` gives the readings.
#[must_use]
pub fn effective(
    policy: &LoadPolicy,
    kind: Option<PolicyKind>,
    source: &ReadingSource,
) -> PolicyCheck {
    let resolved = ResolvedPolicy::new(policy.clone(), &mut MetricTable::default());
    let mut rules = resolved.all_rules();
    let common = rules.next().map(|rules| metrics(policy, names(policy), &policy.weights, rules));
    let pools = policy.pools.iter().zip(rules).map(|(pool, rules)| NodePool {
        name: pool.name.to_string(),
        selector: pool.selector.to_string(),
        metrics: metrics(policy, read_by(rules), &pool.weights, rules),
    });
    PolicyCheck {
        valid: true,
        error: None,
        refused: None,
        kind: kind.map(|kind| kind.name().to_owned()),
        metrics: common.unwrap_or_default(),
        scoring: Some(scoring(&policy.scoring)),
        limits: Some(limits(policy)),
        estimates: estimates(policy),
        demand: demand(policy),
        hot_value: hot_value(policy),
        node_pools: pools.collect(),
        namespaces: namespaces(policy),
        gpu: Some(Gpu {
            placement: policy.gpu.placement.to_string(),
            unmanaged_memory: policy.gpu.unmanaged_memory.name().to_owned(),
            beyond_units: policy.gpu.beyond_units.iter().map(beyond_units).collect(),
        }),
        warnings: policy.warnings_with(source).iter().map(ToString::to_string).collect(),
    }
}

fn metrics(
    policy: &LoadPolicy,
    names: Vec<&MetricName>,
    weights: &[Weight],
    rules: &ResolvedRules,
) -> Vec<Metric> {
    names.into_iter().map(|name| metric(policy, weights, rules, name)).collect::<Vec<_>>()
}

/// Every metric that the policy names, once each: those that are fetched first.
fn names(policy: &LoadPolicy) -> Vec<&MetricName> {
    let fetched = policy.sync.iter().map(|rule| &rule.metric);
    once(fetched.chain(policy.metrics()))
}

/// Every metric with a limit or a weight on some nodes.
fn read_by(rules: &ResolvedRules) -> Vec<&MetricName> {
    let limits = rules.limits.iter().map(|limit| &limit.metric);
    let metrics = limits.chain(rules.weights.iter().map(|weight| &weight.metric));
    once(metrics.filter(|metric| metric.demand.is_none()).map(|metric| &metric.name))
}

fn once<'a>(all: impl Iterator<Item = &'a MetricName>) -> Vec<&'a MetricName> {
    let mut names = Vec::new();
    for name in all {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn metric(
    policy: &LoadPolicy,
    weights: &[Weight],
    rules: &ResolvedRules,
    name: &MetricName,
) -> Metric {
    let sync = policy.sync.iter().find(|rule| rule.metric == *name);
    let limits = rules.limits.iter().filter(|limit| limit.metric.name == *name);
    let terms = rules.weights.iter().filter(|weight| weight.metric.name == *name);
    let read = limits.clone().map(|it| &it.metric).chain(terms.clone().map(|it| &it.metric));
    let read: Vec<_> = read.collect();
    let stale = read.iter().map(|metric| metric.when_stale).max();
    let missing = read.iter().map(|metric| metric.when_missing).max();
    let max_age = read.iter().find_map(|metric| metric.max_age);
    let weights = weights.iter().filter(|weight| weight.metric == *name);
    Metric {
        name: name.to_string(),
        period_seconds: sync.map(|rule| rule.period.as_secs_f64()),
        max_age_seconds: max_age.map(|age| age.as_secs_f64()),
        limit: limits.map(|limit| limit.max).reduce(f64::min),
        weight: weights.map(|weight| weight.weight).reduce(|sum, weight| sum + weight),
        score_share: share(policy.scoring.model, terms),
        when_stale: stale.map(|unknown| unknown.name().to_owned()),
        when_missing: missing.map(|unknown| unknown.name().to_owned()),
        exported: sync.map(|_| Exported::of(name).name().to_owned()),
    }
}

/// The part of the weights that a metric's terms have; `None` where all weights are 0, or they are no load.
fn share<'a>(model: Model, terms: impl Iterator<Item = &'a ResolvedWeight>) -> Option<f64> {
    let is_sum = model == Model::CraneLinear;
    let terms =
        terms.filter(|term| is_sum || term.metric.meaning.statistic != WindowStatistic::Deviation);
    let shares = terms.map(|term| if is_sum { term.share } else { term.share_of_group });
    shares.reduce(|sum, share| sum + share).filter(|share| *share > 0.0)
}

fn scoring(scoring: &Rules) -> Scoring {
    Scoring {
        model: scoring.model.name().to_owned(),
        direction: scoring.direction.name().to_owned(),
        scale: scoring.scale.highest(),
    }
}

fn limits(policy: &LoadPolicy) -> Limits {
    let (mode, max_wait) = match policy.overload.when_all {
        WhenAllOverloaded::PassLeastLoaded => ("soft", None),
        WhenAllOverloaded::Wait { max_wait } => ("hard", max_wait),
    };
    let classes = policy.overload.exempt_priority_classes.iter();
    Limits {
        mode: mode.to_owned(),
        max_wait_seconds: max_wait.map(|wait| wait.as_secs_f64()),
        exempt_priority_classes: classes.map(ToString::to_string).collect(),
    }
}

fn estimates(policy: &LoadPolicy) -> Option<Estimates> {
    policy.estimates.map(|rules| Estimates { learned: rules.learned })
}

fn demand(policy: &LoadPolicy) -> Vec<Demand> {
    let rules = policy.demand.all().map(|(demand, rule)| Demand {
        name: demand.name().to_owned(),
        metric: demand.metric().to_string(),
        limit: rule.limit,
        weight: Some(rule.weight).filter(|weight| *weight > 0.0),
        measured: rule.measured.as_ref().map(|measured| measured.metric.to_string()),
    });
    rules.collect()
}

fn hot_value(policy: &LoadPolicy) -> Vec<HotRule> {
    policy
        .hot
        .iter()
        .map(|rule| HotRule { time_range_seconds: rule.range.as_secs_f64(), count: rule.count })
        .collect()
}

fn namespaces(policy: &LoadPolicy) -> Vec<Namespaces> {
    policy
        .namespaces
        .iter()
        .map(|rule| Namespaces {
            names: rule.namespaces.iter().map(ToString::to_string).collect(),
            node_selector: rule.nodes.to_string(),
        })
        .collect()
}

fn beyond_units(rule: &BeyondUnitsRule) -> BeyondUnits {
    let allowed = BeyondUnitsName::ALL.into_iter().filter(|name| name.is_in(rule.allowed));
    BeyondUnits {
        namespaces: rule.namespaces.iter().map(ToString::to_string).collect(),
        allow: allowed.map(|name| name.name().to_owned()).collect(),
    }
}
