//! The claims that stand for a pod's request by units.
//!
//! Invariant: claims have at least the memory that the pod holds by its units, and the same where no init container
//! asks for more than the largest app container.

use anyhow::{Result, bail};
use api::share_config::{API_VERSION, KIND};
use placement::gpu::{ContainerKind, ContainerRequest, GpuFilter, GpuRequest, Isolation};
use placement::names::Names;
use placement::units::{Cores, Units};
use serde_json::json;

use super::yaml::Yaml;

/// The one request of each claim.
const REQUEST: &str = "gpu";

/// What a claim has of each of its GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    gpus: u32,
    /// In MiB; `None` for all of it.
    memory: Option<u64>,
    cores: Cores,
    /// The memory that it may grow to, in MiB; `None` for its memory.
    limit: Option<u64>,
}

/// A claim of a pod, and the containers that use it by their places in the request.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) share: Share,
    pub(super) containers: Vec<usize>,
}

impl Share {
    fn of(ask: &ContainerRequest, unit_mib: u32) -> Self {
        let gpus = ask.gpu_use.gpus;
        let on_each = |units: Units| u64::from(units.0) * u64::from(unit_mib) / u64::from(gpus);
        let share = ask.share();
        let memory = u64::from(share.units.0) * u64::from(unit_mib);
        let limit = ask.gpu_use.limit.map(on_each).filter(|limit| *limit > memory);
        Self { gpus, memory: Some(memory), cores: share.cores, limit }
    }

    /// The larger value of each.
    fn larger(self, other: Self) -> Self {
        let limit = [self, other].map(|share| share.limit.or(share.memory)).into_iter().max();
        let memory = self.memory.max(other.memory);
        let limit = limit.flatten().filter(|limit| Some(*limit) > memory);
        let (gpus, cores) = (self.gpus.max(other.gpus), self.cores.max(other.cores));
        Self { gpus, memory, cores, limit }
    }
}

/// MiB as a quantity.
fn quantity(mib: u64) -> String {
    if mib.is_multiple_of(1024) { format!("{}Gi", mib / 1024) } else { format!("{mib}Mi") }
}

/// The claims of a pod with this request. What the pod loses by them is noted.
///
/// # Errors
///
/// If containers of a pod with exclusive GPUs have different numbers of GPUs.
pub(super) fn claims(
    request: &GpuRequest,
    unit_mib: u32,
    notes: &mut Vec<String>,
) -> Result<Vec<Claim>> {
    let asks = request.containers();
    if asks.iter().any(|ask| ask.gpu_use.gpus > 1) {
        notes.push(
            "by units several GPUs are linked or of one NUMA node where possible, and by claims they need not be; to require a NUMA node add \
             the constraint `matchAttribute: resource.kubernetes.io/numaNode` to the template"
                .to_owned(),
        );
    }
    let shares: Vec<Share> = asks.iter().map(|ask| Share::of(ask, unit_mib)).collect();
    if asks.iter().any(|ask| ask.gpu_use.exclusive) {
        let gpus = asks[0].gpu_use.gpus;
        if let Some(other) = asks.iter().find(|ask| ask.gpu_use.gpus != gpus) {
            bail!(
                "containers `{}` and `{}` have {gpus} and {} GPUs of a pod with exclusive ones, which one claim cannot \
                 give; write the same number for both",
                asks[0].name,
                other.name,
                other.gpu_use.gpus
            );
        }
        let cores = request.largest().cores;
        let share = Share { gpus, memory: None, cores, limit: None };
        return Ok(vec![Claim { share, containers: (0..asks.len()).collect() }]);
    }
    let mut claims: Vec<Claim> = Vec::new();
    for (place, share) in shares.iter().enumerate() {
        if asks[place].kind != ContainerKind::Init {
            claims.push(Claim { share: *share, containers: vec![place] });
        }
    }
    for (place, share) in shares.iter().enumerate() {
        if asks[place].kind == ContainerKind::Init {
            give_to_init(place, *share, asks, &mut claims, notes);
        }
    }
    if let [_, _, ..] = claims[..] {
        notes.push(
            "each container has a claim of its own, which can be another GPU; by units all have the same".to_owned(),
        );
    }
    Ok(claims)
}

/// MiB and percent of compute of these claims together.
fn total(claims: &[Claim]) -> (u64, u32) {
    claims.iter().fold((0, 0), |(memory, cores), Claim { share, .. }| {
        let on_all = share.memory.unwrap_or_default() * u64::from(share.gpus);
        (memory + on_all, cores + share.cores.0 * share.gpus)
    })
}

/// Has an init container use the claim of the app container with the most memory, as it has ended when that starts;
/// without one, that of the other init containers.
fn give_to_init(
    place: usize,
    share: Share,
    asks: &[ContainerRequest],
    claims: &mut Vec<Claim>,
    notes: &mut Vec<String>,
) {
    let before = total(claims);
    let ends = |claim: &&mut Claim| {
        claim.containers.iter().all(|user| asks[*user].kind != ContainerKind::Sidecar)
    };
    let largest = claims.iter_mut().rev().filter(ends).max_by_key(|claim| claim.share.memory);
    let Some(claim) = largest else {
        claims.push(Claim { share, containers: vec![place] });
        return;
    };
    let former = claim.share.limit;
    claim.share = claim.share.larger(share);
    claim.containers.push(place);
    let limit = claim.share.limit.filter(|limit| Some(*limit) > former);
    let is_app = |user: &&usize| asks[**user].kind == ContainerKind::App;
    let Some(app) = claim.containers.iter().find(is_app).copied() else { return };
    let after = total(claims);
    let mut grown = Vec::new();
    if after.0 > before.0 {
        grown.push(format!("memory from {} to {}", quantity(before.0), quantity(after.0)));
    }
    if after.1 > before.1 {
        grown.push(format!("cores from {} to {}", before.1, after.1));
    }
    if let Some(limit) = limit {
        grown.push(format!("its memoryLimit to {}", quantity(limit)));
    }
    if !grown.is_empty() {
        notes.push(format!(
            "the pod's claims grow for init container `{}`, which uses that of container `{}`: {}; ask for less there \
             to lower them",
            asks[place].name,
            asks[app].name,
            grown.join(", ")
        ));
    }
}

/// The spec of a ResourceClaimTemplate with a claim's share.
pub(super) fn template_spec(share: Share, filter: &GpuFilter, names: &Names) -> Yaml {
    let text = |text: &str| Yaml::scalar(text);
    let amounts = Yaml::some([
        ("memory", share.memory.map(|mib| Yaml::scalar(quantity(mib)))),
        ("cores", (share.cores > Cores::ZERO).then(|| Yaml::scalar(share.cores.0))),
    ]);
    let mut selectors = Vec::new();
    for expression in expressions(filter, names) {
        selectors.push(Yaml::of([("cel", Yaml::of([("expression", text(&expression))]))]));
    }
    let capacity = (!amounts.fields().is_empty()).then(|| Yaml::of([("requests", amounts)]));
    let exactly = Yaml::some([
        ("deviceClassName", Some(text(&names.claims_class()))),
        ("count", (share.gpus > 1).then(|| Yaml::scalar(share.gpus))),
        ("capacity", capacity),
        ("selectors", (!selectors.is_empty()).then_some(Yaml::List(selectors))),
    ]);
    let request = Yaml::of([("name", text(REQUEST)), ("exactly", exactly)]);
    let config = parameters(share, filter.isolation).map(|parameters| {
        let driver = text(&names.claims_driver());
        let opaque = Yaml::of([("driver", driver), ("parameters", parameters)]);
        Yaml::List(vec![Yaml::of([("opaque", opaque)])])
    });
    let devices = Yaml::some([("requests", Some(Yaml::List(vec![request]))), ("config", config)]);
    Yaml::of([("spec", Yaml::of([("devices", devices)]))])
}

/// The driver's own parameters; `None` where the defaults do.
fn parameters(share: Share, isolation: Isolation) -> Option<Yaml> {
    // By units `none` is no isolation at least, which is any.
    let least = (isolation != Isolation::None).then(|| Yaml::scalar(isolation.name()));
    let limit = share.limit.map(|limit| Yaml::scalar(quantity(limit)));
    let is_default = least.is_none() && limit.is_none();
    let parameters = Yaml::some([
        ("apiVersion", Some(Yaml::scalar(API_VERSION))),
        ("kind", Some(Yaml::scalar(KIND))),
        ("isolation", least),
        ("memoryLimit", limit),
    ]);
    (!is_default).then_some(parameters)
}

/// The CEL expressions that a GPU must all meet.
fn expressions(filter: &GpuFilter, names: &Names) -> Vec<String> {
    let attributes = format!("device.attributes[{}]", json!(names.claims_driver()));
    let mut found = Vec::new();
    for (attribute, patterns) in [("model", &filter.models), ("uuid", &filter.uuids)] {
        for (sign, list) in [("", patterns.accepted()), ("!", patterns.refused())] {
            if !list.is_empty() {
                let regex = json!(regex(list));
                found.push(format!("{sign}{attributes}.{attribute}.matches({regex})"));
            }
        }
    }
    match filter.isolation {
        Isolation::None => {}
        Isolation::Mps => {
            found.push(format!("{attributes}.isolationMps || {attributes}.isolationDriver"));
        }
        Isolation::Driver => found.push(format!("{attributes}.isolationDriver")),
    }
    found
}

/// A regular expression of RE2 for any of these names, in which `*` stands for any text.
fn regex(names: &[String]) -> String {
    let mut all = Vec::new();
    for name in names {
        let mut regex = String::new();
        for c in name.chars() {
            match c {
                '*' => regex += ".*",
                c if c.is_ascii_punctuation() && c != '-' && c != '_' => regex += &format!("\\{c}"),
                c => regex.push(c),
            }
        }
        all.push(regex);
    }
    format!("(?i)^({})$", all.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_regular_expression_for_the_same_names() {
        let names = ["nvidia a10".to_owned(), "*a100-80gb*".to_owned(), "a.b(c)".to_owned()];
        assert_eq!(regex(&names), "(?i)^(nvidia a10|.*a100-80gb.*|a\\.b\\(c\\))$");
    }
}
