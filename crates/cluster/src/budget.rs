//! The PodDisruptionBudgets of the namespaces whose pods could be evicted.
//!
//! A namespace's budgets protect pods of that namespace alone, and any of its users may write them. So each namespace
//! is read by itself, with limits on the time, on the bytes that are read, and on the memory for what is kept.
//!
//! Invariant: of a namespace whose budgets are not known, each pod is taken as covered by one that allows no eviction.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use kube::Client;
use kube::api::{ListParams, Request};
use placement::moves::{Covering, Labelled};
use placement::names::is_of_label;
use placement::selector::{Requirement, Requirements};
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tokio::time::Instant;

use crate::answer::{OF_A_NAMESPACE, each};
use crate::call::{CallError, within};
use crate::meta::{Meta, null_is_default, resource};
use crate::pod::Pod;

/// Namespaces that are read for one choice of pods.
const MAX_NAMESPACES: usize = 128;

/// Namespaces that are read concurrently.
const MAX_CONCURRENT: usize = 8;

/// Budgets of a page. Most namespaces have fewer, and where each is as large as the API server takes, the answer begins
/// soon.
const PAGE: u32 = 16;

/// Labels and expressions of a selector that is kept.
const MAX_EXPRESSIONS: usize = 64;

/// Values of all expressions of a selector that is kept.
const MAX_VALUES: usize = 256;

/// Pods of a budget that are evicted already, and are kept.
const MAX_DISRUPTED: usize = 256;

/// Labels, expressions and values of all selectors of a namespace. Each is compared with each of its pods.
const MAX_ELEMENTS: usize = 2_048;

/// Bytes of all that is kept of a namespace.
const MAX_BYTES: usize = 64 << 10;

/// Labels of a pod that are kept until the budgets are read, and their bytes.
const MAX_LABELS: (usize, usize) = (64, 4 << 10);

/// The budgets of the namespaces that were read so far.
#[derive(Debug, Default)]
pub struct Budgets {
    /// `None`: not known.
    of: HashMap<String, Option<Vec<Budget>>>,
    /// Places that are taken. The last one of a namespace is that of an unknown budget.
    places: usize,
}

/// What is kept of a budget.
#[derive(Debug)]
struct Budget {
    place: usize,
    covered: Covered,
    /// How many evictions it allows now.
    allowed: i64,
    /// Pods that are evicted already and count no more, by name. Of more than are kept, none: they count on.
    disrupted: BTreeSet<String>,
    /// Bytes of its texts.
    bytes: usize,
}

/// Which pods of its namespace a budget covers.
#[derive(Debug)]
enum Covered {
    None,
    Matching(Requirements),
    /// Its selector is too long or cannot be read, so it may cover any.
    All,
}

/// What budgets and other pods' rules look at in a pod.
pub(crate) fn labelled(pod: &Pod) -> Labelled {
    let labels = pod.metadata.object.labels.as_ref();
    let bytes: usize = labels.into_iter().flatten().map(|(key, text)| key.len() + text.len()).sum();
    let fits = labels.is_none_or(|all| all.len() <= MAX_LABELS.0) && bytes <= MAX_LABELS.1;
    Labelled {
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
        labels: fits.then(|| labels.cloned().unwrap_or_default()),
    }
}

impl Budgets {
    /// Reads the budgets of these namespaces, but of those that were read before. Takes `limit` at most; what is not
    /// read until then, or is longer than is kept, is not known.
    pub async fn read(
        &mut self,
        client: &Client,
        mut namespaces: BTreeSet<String>,
        limit: Duration,
    ) {
        namespaces.retain(|namespace| !self.of.contains_key(namespace));
        let deadline = Instant::now() + limit;
        let reads = namespaces.into_iter().take(MAX_NAMESPACES).map(|namespace| {
            let client = client.clone();
            async move {
                // One that does not answer leaves time for others.
                let left = deadline.saturating_duration_since(Instant::now()).min(limit / 2);
                let read = of_namespace(&client, &namespace, left).await;
                (namespace, read)
            }
        });
        let mut reads = stream::iter(reads).buffer_unordered(MAX_CONCURRENT);
        while let Some((namespace, read)) = reads.next().await {
            if let Err(why) = &read {
                tracing::warn!(namespace, %why, "no pod of a namespace is evicted within its PodDisruptionBudgets: they are not known");
            }
            self.add(namespace, read.ok());
        }
    }

    /// Whether the budgets of a namespace are known.
    pub fn is_known(&self, namespace: &str) -> bool {
        matches!(self.of.get(namespace), Some(Some(_)))
    }

    fn add(&mut self, namespace: String, mut budgets: Option<Vec<Budget>>) {
        for budget in budgets.iter_mut().flatten() {
            budget.place = self.places;
            self.places += 1;
        }
        self.of.insert(namespace, budgets);
    }

    /// The budgets that cover a pod.
    pub fn covering(&self, pod: &Labelled) -> Vec<Covering> {
        match self.of.get(&pod.namespace) {
            Some(Some(budgets)) => budgets
                .iter()
                .filter(|budget| budget.covers(pod))
                .map(|budget| Covering { budget: budget.place, allowed: budget.allowed })
                .collect(),
            // All of them alike: none is evicted.
            Some(None) | None => vec![Covering { budget: usize::MAX, allowed: 0 }],
        }
    }
}

/// Why the budgets of a namespace are not known.
#[derive(Debug, thiserror::Error)]
enum Unknown {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("its name is none")]
    NoName,
    #[error(
        "their selectors have more than {MAX_ELEMENTS} labels, expressions and values, or {MAX_BYTES} bytes"
    )]
    TooMany,
}

async fn of_namespace(
    client: &Client,
    namespace: &str,
    limit: Duration,
) -> Result<Vec<Budget>, Unknown> {
    if namespace.is_empty() || !namespace.bytes().all(is_of_label) {
        return Err(Unknown::NoName);
    }
    let path = format!("/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets");
    let (mut found, mut elements, mut bytes) = (Vec::new(), 0, 0);
    let page = ListParams::default().limit(PAGE);
    let take = |object: BudgetObject| {
        elements += object.spec.selector.as_ref().map_or(1, SelectorObject::elements);
        let budget = Budget::from(object);
        bytes += budget.bytes;
        // What is too much is read to its end, and not kept.
        if elements <= MAX_ELEMENTS && bytes <= MAX_BYTES {
            found.push(budget);
        }
    };
    within(limit, each(client, &Request::new(path), &page, OF_A_NAMESPACE, take)).await?;
    let is_whole = elements <= MAX_ELEMENTS && bytes <= MAX_BYTES;
    is_whole.then_some(found).ok_or(Unknown::TooMany)
}

impl From<BudgetObject> for Budget {
    fn from(object: BudgetObject) -> Self {
        let BudgetObject { metadata, spec, status } = object;
        let mut names = status.disrupted_pods;
        if names.is_cut {
            names.kept.clear();
        }
        let disrupted: BTreeSet<String> = names.kept.into_iter().map(|(name, _)| name).collect();
        let bytes: usize = disrupted.iter().map(String::len).sum();
        Self {
            place: 0,
            bytes: bytes + spec.selector.as_ref().map_or(0, SelectorObject::bytes),
            covered: match spec.selector {
                _ if !metadata.lost.is_empty() => Covered::All,
                Some(selector) => Covered::by(selector),
                None => Covered::None,
            },
            allowed: status.disruptions_allowed,
            disrupted,
        }
    }
}

impl Covered {
    /// A selector that cannot be read matches no pod, as in kube-scheduler.
    fn by(selector: SelectorObject) -> Self {
        if selector.is_too_long() {
            return Self::All;
        }
        let SelectorObject { match_labels, match_expressions } = selector;
        let mut all = Vec::new();
        for (key, value) in match_labels.kept {
            all.push(Requirement::is(key, value));
        }
        for Expression { key, operator, values } in match_expressions.kept {
            all.push(Requirement::new(key, &operator, values.kept));
        }
        let selector = Requirements(all);
        if selector.are_known() { Self::Matching(selector) } else { Self::None }
    }
}

impl Budget {
    fn covers(&self, pod: &Labelled) -> bool {
        let Some(labels) = &pod.labels else { return !matches!(self.covered, Covered::None) };
        // kube-scheduler leaves pods without labels out.
        let is_covered = !labels.is_empty()
            && match &self.covered {
                Covered::None => false,
                Covered::Matching(selector) => selector.match_labels(labels),
                Covered::All => true,
            };
        is_covered && !self.disrupted.contains(&pod.name)
    }
}

/// The parts of a PodDisruptionBudget that are read here.
#[derive(Debug, Default, Deserialize)]
struct BudgetObject {
    #[serde(default)]
    metadata: Meta,
    #[serde(default, deserialize_with = "null_is_default")]
    spec: BudgetSpec,
    #[serde(default, deserialize_with = "null_is_default")]
    status: BudgetStatus,
}

resource!(
    BudgetObject,
    NamespaceResourceScope,
    "policy",
    "PodDisruptionBudget",
    "poddisruptionbudgets"
);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct BudgetSpec {
    selector: Option<SelectorObject>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BudgetStatus {
    #[serde(deserialize_with = "null_is_default")]
    disruptions_allowed: i64,
    #[serde(deserialize_with = "null_is_default")]
    disrupted_pods: Entries<IgnoredAny, MAX_DISRUPTED>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SelectorObject {
    #[serde(deserialize_with = "null_is_default")]
    match_labels: Entries<String, MAX_EXPRESSIONS>,
    #[serde(deserialize_with = "null_is_default")]
    match_expressions: First<Expression, MAX_EXPRESSIONS>,
}

#[derive(Debug, Deserialize)]
struct Expression {
    key: String,
    operator: String,
    #[serde(default, deserialize_with = "null_is_default")]
    values: First<String, MAX_VALUES>,
}

impl SelectorObject {
    /// Labels, expressions and values that a pod is compared with.
    fn elements(&self) -> usize {
        if self.is_too_long() { 1 } else { self.expressions() + self.values() }
    }

    fn expressions(&self) -> usize {
        self.match_labels.kept.len() + self.match_expressions.kept.len()
    }

    fn values(&self) -> usize {
        self.match_expressions.kept.iter().map(|it| it.values.kept.len()).sum()
    }

    fn is_too_long(&self) -> bool {
        self.match_labels.is_cut
            || self.match_expressions.is_cut
            || self.match_expressions.kept.iter().any(|it| it.values.is_cut)
            || self.expressions() > MAX_EXPRESSIONS
            || self.values() > MAX_VALUES
    }

    fn bytes(&self) -> usize {
        if self.is_too_long() {
            return 0;
        }
        let mut bytes = 0;
        for (key, value) in &self.match_labels.kept {
            bytes += key.len() + value.len();
        }
        for Expression { key, values, .. } in &self.match_expressions.kept {
            bytes += key.len() + values.kept.iter().map(String::len).sum::<usize>();
        }
        bytes
    }
}

/// The first elements of a list, `N` at most.
#[derive(Debug)]
struct First<T, const N: usize> {
    kept: Vec<T>,
    /// Whether there are more.
    is_cut: bool,
}

/// The first entries of an object, `N` at most.
#[derive(Debug)]
struct Entries<T, const N: usize> {
    kept: Vec<(String, T)>,
    /// Whether there are more.
    is_cut: bool,
}

impl<T, const N: usize> Default for First<T, N> {
    fn default() -> Self {
        Self { kept: Vec::new(), is_cut: false }
    }
}

impl<T, const N: usize> Default for Entries<T, N> {
    fn default() -> Self {
        Self { kept: Vec::new(), is_cut: false }
    }
}

/// Reads a [`First`] or [`Entries`].
struct Reader<R>(PhantomData<R>);

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for First<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Reader::<Self>(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for Entries<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reader::<Self>(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for Reader<First<T, N>> {
    type Value = First<T, N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut first = First::default();
        while first.kept.len() < N {
            match list.next_element()? {
                Some(element) => first.kept.push(element),
                None => return Ok(first),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {
            first.is_cut = true;
        }
        Ok(first)
    }
}

impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for Reader<Entries<T, N>> {
    type Value = Entries<T, N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut first = Entries::default();
        while first.kept.len() < N {
            match map.next_entry()? {
                Some(entry) => first.kept.push(entry),
                None => return Ok(first),
            }
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            first.is_cut = true;
        }
        Ok(first)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use serde_json::{Value, json};

    impl Budgets {
        /// These budgets of one namespace.
        pub(crate) fn of_objects(namespace: &str, objects: &[Value]) -> Self {
            let read = |object: &Value| Budget::from(BudgetObject::deserialize(object).unwrap());
            let mut budgets = Self::default();
            budgets.add(namespace.to_owned(), Some(objects.iter().map(read).collect()));
            budgets
        }
    }

    fn budget(selector: &Value, status: &Value) -> Budget {
        let object = json!({ "metadata": { "name": "b" }, "spec": { "selector": selector }, "status": status });
        serde_json::from_value::<BudgetObject>(object).unwrap().into()
    }

    fn pod(labels: &Value) -> Labelled {
        let pod = json!({ "metadata": { "name": "p", "namespace": "ml", "labels": labels } });
        labelled(&serde_json::from_value(pod).unwrap())
    }

    /// How many evictions of the pod each budget of its namespace allows that covers it.
    fn allowed(budgets: Vec<Budget>, pod: &Labelled) -> Vec<i64> {
        let mut all = Budgets::default();
        all.add("ml".to_owned(), Some(budgets));
        all.covering(pod).into_iter().map(|it| it.allowed).collect()
    }

    #[test]
    fn budgets_of_other_namespaces_and_of_other_pods_do_not_count() {
        let app = |app: &str| {
            budget(&json!({ "matchLabels": { "app": app } }), &json!({ "disruptionsAllowed": 2 }))
        };
        let labels = json!({ "app": "a" });
        assert_eq!(allowed(vec![app("b"), app("a")], &pod(&labels)), [2]);
        assert!(allowed(vec![app("b")], &pod(&labels)).is_empty());
        let mut elsewhere = Budgets::default();
        elsewhere.add("other".to_owned(), Some(vec![app("a")]));
        elsewhere.add("ml".to_owned(), Some(Vec::new()));
        assert!(elsewhere.covering(&pod(&labels)).is_empty());
        let ended =
            json!({ "disruptionsAllowed": 0, "disruptedPods": { "p": "2026-11-20T09:00:00Z" } });
        assert!(allowed(vec![budget(&json!({}), &ended)], &pod(&labels)).is_empty());
    }

    #[test]
    fn where_budgets_are_not_known_no_eviction_is_allowed() {
        let covering = Budgets::default().covering(&pod(&json!({})));
        assert_eq!(covering.iter().map(|it| it.allowed).collect::<Vec<_>>(), [0]);
        let mut refused = Budgets::default();
        refused.add("ml".to_owned(), None);
        assert_eq!(refused.covering(&pod(&json!({}))), covering);
    }

    #[test]
    fn a_selector_with_more_elements_than_are_kept_may_cover_any_pod_of_its_namespace() {
        let one = json!({ "key": "a", "operator": "NotIn", "values": [""] });
        let expressions = |count: usize| json!({ "matchExpressions": vec![one.clone(); count] });
        let values = |count: usize| {
            let values: Vec<String> = (0..count).map(|n| format!("v{n}")).collect();
            json!({ "matchExpressions": [{ "key": "app", "operator": "In", "values": values }] })
        };
        let labels = |count: usize| {
            let labels: BTreeMap<String, &str> =
                (0..count).map(|n| (format!("l{n}"), "x")).collect();
            json!({ "matchLabels": labels })
        };
        for (most, with) in [
            (MAX_EXPRESSIONS, &expressions as &dyn Fn(usize) -> Value),
            (MAX_VALUES, &values),
            (MAX_EXPRESSIONS, &labels),
        ] {
            let one = |count: usize| budget(&with(count), &json!({ "disruptionsAllowed": 7 }));
            assert!(matches!(one(most).covered, Covered::Matching(_)), "{most}");
            for more in [most + 1, 16_384] {
                assert!(matches!(one(more).covered, Covered::All), "{more}");
                assert_eq!(allowed(vec![one(more)], &pod(&json!({ "app": "x" }))), [7]);
            }
        }
    }

    #[test]
    fn a_pod_with_more_labels_than_are_kept_is_covered_by_each_budget() {
        let labels: BTreeMap<String, &str> = (0..65).map(|n| (format!("l{n}"), "x")).collect();
        let one =
            budget(&json!({ "matchLabels": { "app": "a" } }), &json!({ "disruptionsAllowed": 3 }));
        assert_eq!(allowed(vec![one], &pod(&json!(labels))), [3]);
    }

    #[test]
    fn more_pods_that_are_evicted_already_than_are_kept_count_on() {
        let names: BTreeMap<String, &str> =
            (0..=MAX_DISRUPTED).map(|n| (format!("p{n}"), "2026-11-20T09:00:00Z")).collect();
        let status = json!({ "disruptedPods": names });
        assert!(budget(&json!({}), &status).disrupted.is_empty());
    }
}
