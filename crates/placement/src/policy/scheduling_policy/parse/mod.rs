//! From the fields as written to a [`LoadPolicy`]; each fault names its line.

mod demand;
mod limits;
mod metrics;
mod scoring;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use serde_saphyr::Spanned;

use self::demand::demand;
use self::metrics::{MetricRules, metric_rules, node_pool};
use self::scoring::{default_scoring, scoring};
use super::super::fields::{Checked, Entries, Text, each, expect, fault, hot_rule, syntax};
use super::document::{
    BeyondUnitsFields, Estimates, GpuFields, LimitsFields, Namespaces, SchedulingPolicy, Spec,
};
use super::scalar::{EnumValue, Scalar, number};
use super::{API_VERSION, KIND};
use crate::gpu::{self, Strategy};
use crate::names::is_of_label;
use crate::policy::gpu::ALL_NAMESPACES;
use crate::policy::{
    BeyondUnitsName, BeyondUnitsRule, GpuRules, LoadPolicy, MAX_METRICS, NamespaceRule,
    UnmanagedMemory,
};
use crate::selector::LabelSelector;

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
    let pools = each("spec.nodePools", &spec.node_pools, |path: &str, pool: &_| {
        node_pool(path, pool, &metrics)
    })?;
    listed_once("spec.nodePools", &spec.node_pools, |at| pools.get(at).map(|pool| &*pool.name))?;
    let demand = spec.demand.as_ref().map(|fields| demand(fields, &metrics)).transpose()?;
    let scoring = spec.scoring.as_ref().map_or_else(|| Ok(default_scoring()), scoring)?;
    let limits = spec.limits.as_ref().unwrap_or(&LimitsFields::default()).check()?;
    let estimates = spec.estimates.as_ref().unwrap_or(&Estimates::default()).rules();
    Ok(LoadPolicy {
        sync: metrics.iter().filter_map(MetricRules::sync).collect(),
        limits: metrics.iter().filter_map(MetricRules::limit).collect(),
        weights: metrics.iter().filter_map(MetricRules::weight).collect(),
        hot: each("spec.hotValue", &spec.hot_value, hot_rule)?,
        scoring,
        overload: limits,
        estimates,
        demand: demand.unwrap_or_default(),
        pools,
        namespaces: namespaces(&spec.namespaces)?,
        gpu: spec.gpu.as_ref().map_or_else(|| Ok(GpuRules::default()), gpu)?,
    })
}

fn gpu(fields: &GpuFields) -> Checked<GpuRules> {
    let placement = "spec.gpu.placement";
    let memory = "spec.gpu.unmanagedMemory";
    Ok(GpuRules {
        placement: EnumValue::or(placement, &fields.placement, Strategy::default())?,
        unmanaged_memory: EnumValue::or(
            memory,
            &fields.unmanaged_memory,
            UnmanagedMemory::default(),
        )?,
        beyond_units: beyond_units(&fields.beyond_units)?,
    })
}

fn beyond_units(given: &Entries<BeyondUnitsFields>) -> Checked<Vec<BeyondUnitsRule>> {
    let list = "spec.gpu.beyondUnits";
    let names = given.iter().flatten().flat_map(|rule| &rule.value.namespaces);
    at_most(list, names.flat_map(|names| &names.value), MAX_NAMESPACES)?;
    each(list, given, |path, rule| {
        let field = format!("{path}.namespaces");
        let wanted = "the name of a namespace, or `*` for all";
        let namespaces = names_of(&field, rule, &rule.value.namespaces, wanted, ALL_NAMESPACES)?;
        let field = format!("{path}.allow");
        let Some(allow) = rule.value.allow.as_ref().filter(|it| !it.value.is_empty()) else {
            let wanted = "expected some of `exclusive`, `cores` and `memoryLimit`, found none";
            return Err(fault(rule, &field, wanted.to_owned()));
        };
        let mut allowed = gpu::BeyondUnits::default();
        for (at, name) in allow.value.iter().enumerate() {
            let name: BeyondUnitsName = EnumValue::get(&format!("{field}[{at}]"), name)?;
            allowed = allowed.or(name.alone());
        }
        Ok(BeyondUnitsRule { namespaces, allowed })
    })
}

fn namespaces(given: &Entries<Namespaces>) -> Checked<Vec<NamespaceRule>> {
    let names = given.iter().flatten().flat_map(|rule| &rule.value.names);
    at_most("spec.namespaces", names.flat_map(|names| &names.value), MAX_NAMESPACES)?;
    each("spec.namespaces", given, |path, rule| {
        let field = format!("{path}.names");
        let namespaces = names_of(&field, rule, &rule.value.names, "the name of a namespace", "")?;
        let nodes = selector(&format!("{path}.nodeSelector"), rule, &rule.value.node_selector)?;
        Ok(NamespaceRule { namespaces, nodes })
    })
}

/// The names of namespaces in a rule, one at least. `all` is taken for one, if it is not empty.
fn names_of<T>(
    field: &str,
    rule: &Spanned<T>,
    given: &Option<Spanned<Vec<Spanned<String>>>>,
    wanted: &str,
    all: &str,
) -> Checked<Vec<Arc<str>>> {
    let Some(given) = given.as_ref().filter(|given| !given.value.is_empty()) else {
        return Err(fault(rule, field, format!("expected {wanted}, found none")));
    };
    let mut names = Vec::with_capacity(given.value.len());
    for (at, name) in given.value.iter().enumerate() {
        let is_all = !all.is_empty() && name.value == all;
        names.push(if is_all {
            all.into()
        } else {
            object_name(&format!("{field}[{at}]"), name, wanted, 63)?
        });
    }
    Ok(names)
}

fn at_least_0(field: &str, given: &Spanned<Scalar>) -> Checked<f64> {
    number(field, given, "a number of at least 0", |number| number >= 0.0)
}

/// Names of Kubernetes: lower-case letters, digits, `-` and `.`.
fn object_name(
    field: &str,
    given: &Spanned<String>,
    wanted: &str,
    longest: usize,
) -> Checked<Arc<str>> {
    let text = given.value.as_str();
    if (1..=longest).contains(&text.len()) && text.bytes().all(|b| is_of_label(b) || b == b'.') {
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
