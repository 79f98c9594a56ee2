//! From the fields as written to a [`LoadPolicy`]; each fault names its line.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use jiff::SignedDuration;
use serde_saphyr::Spanned;

use super::super::fields::{
    Checked, Entries, Text, duration, each, expect, fault, hot_rule, metric, positive, syntax,
};
use super::super::{
    Direction, GRACE, Limit, LoadPolicy, Model, NamespaceRule, NodePool, Overload, Scale, Scoring,
    SyncRule, Unknown, Weight, WhenAllOverloaded,
};
use super::document::{
    Estimates, Limits, Metric, Mode, ModelName, Namespaces, Pool, PoolMetric, SchedulingPolicy,
    Scoring as ScoringFields, Spec,
};
use super::scalar::{Scalar, Word, amount, number};
use super::{API_VERSION, KIND, MAX_WAIT, SYSTEM_CLASSES, TARGET};
use crate::estimate::EstimateRules;
use crate::resources::{Amounts, PerResource};
use crate::selector::LabelSelector;
use crate::units::MetricName;

/// Exporters serve at most so many different values, too.
const MAX_METRICS: usize = 100;
const MAX_POOLS: usize = 100;
/// Names of namespaces, in all rules together: Filter looks through them for each node.
const MAX_NAMESPACES: usize = 1_000;
const MAX_CLASSES: usize = 100;
const MAX_HOT_RULES: usize = 20;

pub(in crate::policy) fn parse(text: &str) -> Checked<LoadPolicy> {
    let document: SchedulingPolicy = serde_saphyr::from_str(text).map_err(|e| syntax(&e))?;
    expect("apiVersion", &document.api_version, API_VERSION)?;
    expect("kind", &document.kind, KIND)?;
    policy(&document.spec.unwrap_or_default())
}

fn policy(spec: &Spec) -> Checked<LoadPolicy> {
    at_most("spec.metrics", spec.metrics.iter().flatten(), MAX_METRICS)?;
    at_most("spec.hotValue", spec.hot_value.iter().flatten(), MAX_HOT_RULES)?;
    at_most("spec.nodePools", spec.node_pools.iter().flatten(), MAX_POOLS)?;
    let metrics = each("spec.metrics", &spec.metrics, metric_rules)?;
    listed_once("spec.metrics", &spec.metrics, |at| metrics.get(at).map(|m| m.name.as_str()))?;
    let pool = |path: &str, pool: &_| node_pool(path, pool, &metrics);
    let pools = each("spec.nodePools", &spec.node_pools, pool)?;
    listed_once("spec.nodePools", &spec.node_pools, |at| pools.get(at).map(|pool| &*pool.name))?;
    let scoring = spec.scoring.as_ref().map_or_else(|| Ok(default_scoring()), scoring)?;
    let limits = spec.limits.as_ref().unwrap_or(&Limits::default()).check()?;
    let estimates = spec.estimates.as_ref().unwrap_or(&Estimates::default()).check(&scoring)?;
    Ok(LoadPolicy {
        sync: metrics.iter().filter_map(MetricRules::sync).collect(),
        limits: metrics.iter().filter_map(MetricRules::limit).collect(),
        weights: metrics.iter().filter_map(MetricRules::weight).collect(),
        hot: each("spec.hotValue", &spec.hot_value, hot_rule)?,
        scoring,
        overload: limits,
        estimates,
        pools,
        namespaces: namespaces(&spec.namespaces)?,
    })
}

// ---- metrics and pools ---------------------------------------------------------------------------------------------

/// A metric as it counts on some nodes.
#[derive(Clone)]
struct MetricRules {
    name: MetricName,
    /// `None` where another program writes it.
    period: Option<SignedDuration>,
    max_age: Option<SignedDuration>,
    limit: Option<f64>,
    /// 0 is none.
    weight: f64,
    when_stale: Unknown,
    when_missing: Unknown,
}

impl MetricRules {
    fn sync(&self) -> Option<SyncRule> {
        self.period.map(|period| SyncRule { metric: self.name.clone(), period })
    }

    fn limit(&self) -> Option<Limit> {
        let Self { max_age, when_stale, when_missing, .. } = *self;
        let metric = self.name.clone();
        self.limit.map(|max| Limit { metric, max, max_age, when_stale, when_missing })
    }

    fn weight(&self) -> Option<Weight> {
        let Self { max_age, weight, when_stale, when_missing, .. } = *self;
        let metric = self.name.clone();
        (weight > 0.0).then_some(Weight { metric, weight, max_age, when_stale, when_missing })
    }
}

fn metric_rules(path: &str, entry: &Spanned<Metric>) -> Checked<MetricRules> {
    let fields = &entry.value;
    let name = metric(path, entry, fields.name.as_ref())?;
    let period = match &fields.period {
        Some(given) if given.value == "never" => None,
        given => Some(positive(path, "period", entry, given.as_ref())?),
    };
    let given_age = |given| duration(&format!("{path}.maxAge"), given);
    let max_age = fields.max_age.as_ref().map(given_age).transpose()?;
    let field = |name: &str| format!("{path}.{name}");
    let unknown = |name: &str, given| Word::or(&field(name), given, Unknown::Penalise);
    Ok(MetricRules {
        name,
        period,
        max_age: max_age.or_else(|| period.map(|period| period.saturating_add(GRACE))),
        limit: limit(path, &fields.limit)?.flatten(),
        weight: weight(path, &fields.weight)?.unwrap_or(0.0),
        when_stale: unknown("whenStale", &fields.when_stale)?,
        when_missing: unknown("whenMissing", &fields.when_missing)?,
    })
}

fn node_pool(path: &str, pool: &Spanned<Pool>, common: &[MetricRules]) -> Checked<NodePool> {
    let Pool { name, selector: selects, metrics } = &pool.value;
    let name = pool_name(path, pool, name)?;
    let selector = selector(&format!("{path}.selector"), pool, selects)?;
    let list = format!("{path}.metrics");
    at_most(&list, metrics.iter().flatten(), MAX_METRICS)?;
    let changed = each(&list, metrics, |path, entry| pool_metric(path, entry, common))?;
    listed_once(&list, metrics, |at| changed.get(at).map(|rules| rules.name.as_str()))?;
    let here = |rules: &MetricRules| {
        let own = changed.iter().find(|own| own.name == rules.name);
        own.unwrap_or(rules).clone()
    };
    let rules: Vec<MetricRules> = common.iter().map(here).collect();
    Ok(NodePool {
        name,
        selector,
        limits: rules.iter().filter_map(MetricRules::limit).collect(),
        weights: rules.iter().filter_map(MetricRules::weight).collect(),
    })
}

fn pool_name(path: &str, pool: &Spanned<Pool>, given: &Text) -> Checked<Arc<str>> {
    let field = format!("{path}.name");
    let wanted =
        "expected 1 to 63 letters, digits, `_`, `-` or `.`, the first and last a letter or digit";
    let Some(given) = given else {
        return Err(fault(pool, &field, format!("{wanted}, found none")));
    };
    let fits = MetricName::parse(&given.value).is_some();
    let problem = || format!("{wanted}, found {}", quoted(&given.value));
    fits.then(|| given.value.as_str().into()).ok_or_else(|| fault(given, &field, problem()))
}

fn pool_metric(
    path: &str,
    entry: &Spanned<PoolMetric>,
    common: &[MetricRules],
) -> Checked<MetricRules> {
    let fields = &entry.value;
    let name = metric(path, entry, fields.name.as_ref())?;
    let Some(rules) = common.iter().find(|rules| rules.name == name) else {
        let problem = format!("spec.metrics has no `{name}`: add it there with its period");
        return Err(fault(entry, &format!("{path}.name"), problem));
    };
    let field = |name: &str| format!("{path}.{name}");
    Ok(MetricRules {
        limit: limit(path, &fields.limit)?.unwrap_or(rules.limit),
        weight: weight(path, &fields.weight)?.unwrap_or(rules.weight),
        when_stale: Word::or(&field("whenStale"), &fields.when_stale, rules.when_stale)?,
        when_missing: Word::or(&field("whenMissing"), &fields.when_missing, rules.when_missing)?,
        ..rules.clone()
    })
}

/// `Some(None)` for `none`.
fn limit(path: &str, given: &Option<Spanned<Scalar>>) -> Checked<Option<Option<f64>>> {
    let Some(given) = given else { return Ok(None) };
    if matches!(&given.value, Scalar::Text(text) if text == "none") {
        return Ok(Some(None));
    }
    let wanted = "a fraction above 0 such as 0.8, or `none`";
    number(&format!("{path}.limit"), given, wanted, |max| max > 0.0).map(|max| Some(Some(max)))
}

fn weight(path: &str, given: &Option<Spanned<Scalar>>) -> Checked<Option<f64>> {
    given.as_ref().map(|given| at_least_0(&format!("{path}.weight"), given)).transpose()
}

fn at_least_0(field: &str, given: &Spanned<Scalar>) -> Checked<f64> {
    number(field, given, "a number of at least 0", |number| number >= 0.0)
}

// ---- scoring -------------------------------------------------------------------------------------------------------

fn default_scoring() -> Scoring {
    Scoring { model: Model::Learned, direction: Direction::Spread, scale: Scale::Hundred }
}

fn scoring(fields: &ScoringFields) -> Checked<Scoring> {
    let name = Word::or("spec.scoring.model", &fields.model, ModelName::Learned)?;
    let wanted = |model: ModelName, used: &[(&str, &Option<Spanned<Scalar>>)], word: &str| {
        let given = used.iter().find_map(|(field, given)| Some((field, given.as_ref()?)));
        given.filter(|_| name != model).map_or(Ok(()), |(field, given)| {
            let problem =
                format!("only the model `{word}` has it: remove it, or choose that model");
            Err(fault(given, &format!("spec.scoring.{field}"), problem))
        })
    };
    let of_risk = [("margin", &fields.margin), ("sensitivity", &fields.sensitivity)];
    wanted(ModelName::TargetLoadPacking, &[("target", &fields.target)], "targetLoadPacking")?;
    wanted(ModelName::VariationRisk, &of_risk, "variationRisk")?;
    let direction = Word::or("spec.scoring.direction", &fields.direction, Direction::Spread)?;
    let packs = !matches!(name, ModelName::TargetLoadPacking | ModelName::VariationRisk);
    if let Some(given) =
        fields.direction.as_ref().filter(|_| direction == Direction::Pack && !packs)
    {
        let problem = "only the models `craneLinear`, `dominantResource` and `learned` pack: expected `spread`";
        return Err(fault(given, "spec.scoring.direction", problem.to_owned()));
    }
    Ok(Scoring { model: model(name, fields)?, direction, scale: scale(&fields.scale)? })
}

fn model(name: ModelName, fields: &ScoringFields) -> Checked<Model> {
    let or =
        |given: &Option<Spanned<Scalar>>, field: &str, default, wanted, fits: fn(f64) -> bool| {
            let check = |given| number(&format!("spec.scoring.{field}"), given, wanted, fits);
            given.as_ref().map_or(Ok(default), check)
        };
    Ok(match name {
        ModelName::CraneLinear => Model::CraneLinear,
        ModelName::TargetLoadPacking => {
            let wanted = "a number above 0 and below 1";
            let fits = |target| target > 0.0 && target < 1.0;
            Model::TargetLoadPacking { target: or(&fields.target, "target", TARGET, wanted, fits)? }
        }
        ModelName::VariationRisk => {
            let at_least_0 = "a number of at least 0";
            let above_0 = "a number above 0";
            Model::VariationRisk {
                margin: or(&fields.margin, "margin", 1.0, at_least_0, |margin| margin >= 0.0)?,
                sensitivity: or(&fields.sensitivity, "sensitivity", 1.0, above_0, |s| s > 0.0)?,
            }
        }
        ModelName::DominantResource => Model::DominantResource,
        ModelName::Learned => Model::Learned,
    })
}

fn scale(given: &Option<Spanned<Scalar>>) -> Checked<Scale> {
    let Some(given) = given else { return Ok(Scale::Hundred) };
    let scales = [Scale::Hundred, Scale::Ten];
    let highest = |scale: &Scale| f64::from(scale.highest());
    let fits = |number| scales.iter().any(|scale| highest(scale) == number);
    let found = number("spec.scoring.scale", given, "100 or 10", fits)?;
    Ok(scales.into_iter().find(|scale| highest(scale) == found).unwrap_or(Scale::Hundred))
}

// ---- limits and estimates ------------------------------------------------------------------------------------------

impl Limits {
    fn check(&self) -> Checked<Overload> {
        let mode = Word::or("spec.limits.mode", &self.mode, Mode::Soft)?;
        let max_wait = match &self.max_wait {
            None => Some(MAX_WAIT),
            Some(given) if mode == Mode::Soft => {
                let problem = "only hard limits let pods wait: remove it, or set `mode: hard`";
                return Err(fault(given, "spec.limits.maxWait", problem.to_owned()));
            }
            Some(given) if given.value == "never" => None,
            Some(given) => Some(duration("spec.limits.maxWait", given)?),
        };
        let when_all = match mode {
            Mode::Soft => WhenAllOverloaded::PassLeastLoaded,
            Mode::Hard => WhenAllOverloaded::Wait { max_wait },
        };
        Ok(Overload { when_all, exempt_priority_classes: self.classes()? })
    }

    fn classes(&self) -> Checked<Vec<Arc<str>>> {
        let Some(given) = &self.exempt_priority_classes else {
            return Ok(SYSTEM_CLASSES.map(Arc::from).to_vec());
        };
        let field = "spec.limits.exemptPriorityClasses";
        at_most(field, &given.value, MAX_CLASSES)?;
        let wanted = "the name of a priority class";
        let name = |(at, name)| object_name(&format!("{field}[{at}]"), name, wanted, 253);
        given.value.iter().enumerate().map(name).collect()
    }
}

impl Estimates {
    fn check(&self, scoring: &Scoring) -> Checked<Option<EstimateRules>> {
        let default = EstimateRules::default();
        let factor = |field: &str, given: &Option<Spanned<Scalar>>, default| {
            let field = format!("spec.estimates.{field}");
            given.as_ref().map_or(Ok(default), |given| at_least_0(&field, given))
        };
        let amount = |field: &str, given: &Option<Spanned<Scalar>>, example, default| {
            let field = format!("spec.estimates.{field}");
            given.as_ref().map_or(Ok(default), |given| amount(&field, given, example))
        };
        let rules = EstimateRules {
            learned: self.learned.as_ref().is_none_or(|given| given.value),
            statistic: Word::or("spec.estimates.statistic", &self.statistic, default.statistic)?,
            factors: PerResource {
                cpu: factor("cpuFactor", &self.cpu_factor, default.factors.cpu)?,
                memory: factor("memoryFactor", &self.memory_factor, default.factors.memory)?,
            },
            fallback: Amounts {
                cpu: amount("defaultCpu", &self.default_cpu, "250m", default.fallback.cpu)?,
                memory: amount(
                    "defaultMemory",
                    &self.default_memory,
                    "200Mi",
                    default.fallback.memory,
                )?,
            },
        };
        self.suits(scoring)?;
        let enabled = self.enabled.as_ref().is_none_or(|given| given.value);
        Ok(enabled.then_some(rules))
    }

    /// The model `learned` is not without what it is named after.
    fn suits(&self, scoring: &Scoring) -> Checked<()> {
        let off = [("enabled", &self.enabled), ("learned", &self.learned)];
        let off = off.into_iter().filter_map(|(field, given)| Some((field, given.as_ref()?)));
        let mut off = off.filter(|(_, given)| !given.value && scoring.model == Model::Learned);
        off.next().map_or(Ok(()), |(field, given)| {
            let problem = "the model `learned` needs it: set it to true, or `scoring.model: dominantResource`";
            Err(fault(given, &format!("spec.estimates.{field}"), problem.to_owned()))
        })
    }
}

// ---- namespaces ----------------------------------------------------------------------------------------------------

fn namespaces(given: &Entries<Namespaces>) -> Checked<Vec<NamespaceRule>> {
    let names = given.iter().flatten().flat_map(|rule| &rule.value.names);
    at_most("spec.namespaces", names.flat_map(|names| &names.value), MAX_NAMESPACES)?;
    each("spec.namespaces", given, |path, rule| {
        let field = format!("{path}.names");
        let names = rule.value.names.as_ref().filter(|names| !names.value.is_empty());
        let Some(names) = names else {
            return Err(fault(
                rule,
                &field,
                "expected the name of a namespace, found none".to_owned(),
            ));
        };
        let wanted = "the name of a namespace";
        let name = |(at, name)| object_name(&format!("{field}[{at}]"), name, wanted, 63);
        let namespaces = names.value.iter().enumerate().map(name).collect::<Checked<_>>()?;
        let nodes = selector(&format!("{path}.nodeSelector"), rule, &rule.value.node_selector)?;
        Ok(NamespaceRule { namespaces, nodes })
    })
}

// ---- shared --------------------------------------------------------------------------------------------------------

/// Names of Kubernetes: lower-case letters, digits, `-` and `.`.
fn object_name(
    field: &str,
    given: &Spanned<String>,
    wanted: &str,
    longest: usize,
) -> Checked<Arc<str>> {
    let text = given.value.as_str();
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    if (1..=longest).contains(&text.len()) && text.bytes().all(legal) {
        return Ok(text.into());
    }
    Err(fault(given, field, format!("expected {wanted}, found {}", quoted(text))))
}

/// A selector that selects something in particular.
fn selector<T>(field: &str, entry: &Spanned<T>, given: &Text) -> Checked<LabelSelector> {
    let wanted = "expected a label selector such as `pool=batch`";
    let Some(given) = given.as_ref().filter(|given| !given.value.trim().is_empty()) else {
        return Err(fault(entry, field, format!("{wanted}, found none")));
    };
    LabelSelector::from_str(&given.value).map_err(|error| fault(given, field, error.to_string()))
}

/// No list grows without bound: the first entry too many is the fault.
fn at_most<'a, T: 'a>(
    field: &str,
    items: impl IntoIterator<Item = &'a Spanned<T>>,
    most: usize,
) -> Checked<()> {
    let too_many = items.into_iter().nth(most);
    too_many.map_or(Ok(()), |item| {
        Err(fault(item, field, format!("expected at most {most}, found more")))
    })
}

/// Each entry has a name of its own.
fn listed_once<'a, T>(
    list: &str,
    entries: &Entries<T>,
    name: impl Fn(usize) -> Option<&'a str>,
) -> Checked<()> {
    let mut seen = BTreeSet::new();
    for (at, entry) in entries.iter().flatten().enumerate() {
        if let Some(name) = name(at).filter(|name| !seen.insert(*name)) {
            let problem = format!("`{name}` is listed twice: make one entry of both");
            return Err(fault(entry, &format!("{list}[{at}].name"), problem));
        }
    }
    Ok(())
}

/// The beginning of a text that may hold anything.
fn quoted(text: &str) -> impl Display {
    let start: String = text.chars().take(64).flat_map(char::escape_debug).collect();
    format!("`{start}`")
}
