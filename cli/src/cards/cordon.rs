//! `plimsoll cordon` and `uncordon`: a card takes no new pods, or takes them again.
//!
//! The device plugin follows the ConfigMap `unhealthy-gpu-NODE`, where indexes stand in `data.gpus`. It lists there
//! itself the cards that it finds unhealthy, and names these in an annotation; an index that is listed and not named
//! there is another's, which it leaves as it is. So a card that it has listed is cordoned by taking its index off the
//! annotation. Invariant: other indexes stay, and `uncordon` takes off none that the plugin lists; the API server
//! refuses a write where the ConfigMap has changed since it was read.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use api::cards::Cards;
use placement::names::{Names, aliyun};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::args::cards::Cordon;
use crate::cluster_access::objects::{Container, List, Meta, Node};
use crate::cluster_access::{Failure, Kubectl, PART_OF};
use crate::format::printable;

/// The setting of the device plugin with the namespace of the ConfigMaps.
const SETTING: &str = "PLIMSOLL_UNHEALTHY_GPUS_NAMESPACE";
/// The same as a flag.
const FLAG: &str = "--unhealthy-gpus-namespace=";

/// What is to be done with a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// It takes no new pods.
    Cordoned,
    /// It takes pods.
    Open,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ConfigMap {
    metadata: Meta,
    data: BTreeMap<String, String>,
}

/// The parts of a DaemonSet that are read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct DaemonSet {
    spec: DaemonSetSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DaemonSetSpec {
    template: Template,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Template {
    spec: TemplateSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TemplateSpec {
    containers: Vec<Container>,
}

/// Takes a card out of use, or back into use.
///
/// # Errors
///
/// If the node has no such card, the device plugin does not follow the ConfigMap, or it cannot be written.
pub(crate) fn cordon(flags: &Cordon, wanted: Wanted, output: &mut dyn Write) -> Result<ExitCode> {
    let kubectl = Kubectl::new(&flags.connection);
    let namespace = followed_namespace(&kubectl)?;
    let name = format!("{}{}", aliyun::UNHEALTHY_GPUS_MAP, flags.node);
    let in_namespace = format!("--namespace={namespace}");
    let found = match kubectl.get::<ConfigMap>(&["configmap", &name, &in_namespace]) {
        Ok(found) => Some(found),
        Err(Failure::NotFound(_)) => None,
        Err(other) => return Err(other.into()),
    };
    let lists = Lists::of(found.as_ref())?;
    let index = match flags.card.parse() {
        // A card that is gone, or on a node that is, can be taken off the list.
        Ok(index) if wanted == Wanted::Open && lists.all.contains(&index) => index,
        _ => index_of(&kubectl.get(&["node", &flags.node])?, &flags.card)?,
    };
    let card = format!("card {index} of {}", flags.node);
    let Some(lists) = lists.changed(index, wanted, &card)? else {
        let state =
            if wanted == Wanted::Cordoned { "takes no new pods" } else { "is not cordoned" };
        writeln!(output, "{card} {state} already")?;
        return Ok(ExitCode::SUCCESS);
    };
    let verb = if wanted == Wanted::Cordoned { "cordoned" } else { "uncordoned" };
    if flags.dry_run {
        let gpus = text_of(&lists.all).map_or("none".to_owned(), |list| format!("\"{list}\""));
        writeln!(output, "{card} would be {verb}: ConfigMap {namespace}/{name}, gpus: {gpus}")?;
        return Ok(ExitCode::SUCCESS);
    }
    write(&kubectl, &namespace, &name, found.as_ref(), &lists)?;
    writeln!(output, "{card} {verb}")?;
    if wanted == Wanted::Cordoned {
        writeln!(
            output,
            "Pods that are on it go on. `kubectl plimsoll gpus {}` shows them.",
            flags.node
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The index of a card that is named by its index or its UUID.
fn index_of(node: &Node, card: &str) -> Result<u32> {
    let name = &node.metadata.name;
    let Some(text) = node.metadata.annotations.get(&Names::default().cards()) else {
        bail!(
            "node {name} reports no cards: `kubectl plimsoll doctor` says what its device plugin lacks"
        );
    };
    let Ok(cards) = Cards::from_json(text) else {
        bail!("node {name}: its annotation {} is not read", Names::default().cards());
    };
    let wanted: Option<u32> = card.parse().ok();
    let mut found =
        cards.0.iter().filter(|it| Some(it.index) == wanted || it.uuid.to_string() == card);
    if let Some(card) = found.next() {
        return Ok(card.index);
    }
    let known: Vec<String> = cards
        .0
        .iter()
        .map(|it| format!("{} ({})", it.index, printable(&it.uuid.to_string())))
        .collect();
    bail!("node {name} has no card {card}; it has {}", known.join(", "))
}

/// The namespace of the ConfigMaps that the device plugin follows.
fn followed_namespace(kubectl: &Kubectl) -> Result<String> {
    let selector = format!("--selector=app.kubernetes.io/name=gpushare-device-plugin,{PART_OF}");
    let sets: List<DaemonSet> = kubectl.get(&["daemonsets", "--all-namespaces", &selector])?;
    let containers = sets.items.iter().flat_map(|set| &set.spec.template.spec.containers);
    for container in containers {
        let by_env = container.env.iter().find(|it| it.name == SETTING).map(|it| it.value.as_str());
        let by_flag = container.args.iter().find_map(|arg| arg.strip_prefix(FLAG));
        if let Some(namespace) = by_flag.or(by_env).filter(|it| !it.is_empty()) {
            return Ok(namespace.to_owned());
        }
    }
    if sets.items.is_empty() {
        bail!("there is no device plugin of Plimsoll in this cluster");
    }
    bail!(
        "the device plugin follows no list of cards to leave out. With Helm: \
         `helm upgrade RELEASE deploy/chart --reuse-values --set devicePlugin.unhealthyConfigMaps=true`; with kustomize add \
         ../deploy/components/unhealthy-gpus to `components` and apply it again. To take the whole node: \
         `kubectl cordon NODE`"
    )
}

/// The indexes of a ConfigMap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Lists {
    /// Those of cards that take no new pods.
    all: BTreeSet<u32>,
    /// Those of them that the device plugin itself has listed.
    by_plugin: BTreeSet<u32>,
}

impl Lists {
    fn of(found: Option<&ConfigMap>) -> Result<Self> {
        let Some(found) = found else { return Ok(Self::default()) };
        let text = found.data.get(aliyun::UNHEALTHY_GPUS).map_or("", String::as_str);
        let Some(all) = indexes(text) else {
            bail!(
                "the ConfigMap's gpus are {text:?}, and not indexes as \"0,2\": the device plugin does not read that either; mend it first"
            );
        };
        let by_plugin = found.metadata.annotations.get(&Names::default().written_gpus());
        let by_plugin = by_plugin.and_then(|text| indexes(text)).unwrap_or_default();
        Ok(Self { all, by_plugin })
    }

    /// The new lists; `None` if nothing is to be changed.
    fn changed(&self, index: u32, wanted: Wanted, card: &str) -> Result<Option<Self>> {
        let mut lists = self.clone();
        let changes = match wanted {
            Wanted::Cordoned => lists.all.insert(index) || lists.by_plugin.remove(&index),
            Wanted::Open if self.by_plugin.contains(&index) => bail!(
                "the device plugin itself finds {card} unhealthy: it takes pods once it is healthy; its log says what is wrong"
            ),
            Wanted::Open => lists.all.remove(&index),
        };
        Ok(changes.then_some(lists))
    }
}

/// As the device plugin reads it.
fn indexes(text: &str) -> Option<BTreeSet<u32>> {
    if text.trim().is_empty() {
        return Some(BTreeSet::new());
    }
    text.split(',').map(|part| part.trim().parse().ok()).collect()
}

/// As it stands in the ConfigMap; `None` for an empty list, which Aliyun's extender reads as card 0.
fn text_of(indexes: &BTreeSet<u32>) -> Option<String> {
    let texts: Vec<String> = indexes.iter().map(u32::to_string).collect();
    if texts.is_empty() { None } else { Some(texts.join(",")) }
}

fn write(
    kubectl: &Kubectl,
    namespace: &str,
    name: &str,
    found: Option<&ConfigMap>,
    lists: &Lists,
) -> Result<()> {
    let in_namespace = format!("--namespace={namespace}");
    let data: Value = json!({ aliyun::UNHEALTHY_GPUS: text_of(&lists.all) });
    match found {
        Some(found) => {
            let mut metadata = json!({"resourceVersion": found.metadata.resource_version});
            let mark = Names::default().written_gpus();
            if found.metadata.annotations.contains_key(&mark) {
                metadata["annotations"] = json!({ mark: text_of(&lists.by_plugin) });
            }
            let patch = format!("--patch={}", json!({"metadata": metadata, "data": data}));
            kubectl.run(&["patch", "configmap", name, &in_namespace, "--type=merge", &patch])?;
        }
        None => {
            let map = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": namespace}, "data": data,
            });
            kubectl.run_with(&["create", "--filename=-"], &map.to_string())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(gpus: &str, by_plugin: &str) -> Result<Lists> {
        let map = serde_json::from_value(json!({
            "metadata": {"annotations": {"plimsoll.dev/written-gpus": by_plugin}},
            "data": {"gpus": gpus},
        }));
        Lists::of(Some(&map.unwrap()))
    }

    /// What is written of both lists.
    fn change(lists: &Lists, index: u32, wanted: Wanted) -> Option<[Option<String>; 2]> {
        let changed = lists.changed(index, wanted, "it").unwrap();
        changed.map(|it| [text_of(&it.all), text_of(&it.by_plugin)])
    }

    fn written(all: &str, by_plugin: &str) -> Option<[Option<String>; 2]> {
        Some([all, by_plugin].map(|text| (!text.is_empty()).then(|| text.to_owned())))
    }

    #[test]
    fn other_indexes_stay_and_nothing_is_written_that_is_so_already() {
        let none = Lists::default();
        let two = lists("0, 2", "").unwrap();
        assert_eq!(change(&none, 3, Wanted::Cordoned), written("3", ""));
        assert_eq!(change(&two, 1, Wanted::Cordoned), written("0,1,2", ""));
        assert_eq!(change(&two, 2, Wanted::Cordoned), None);
        assert_eq!(change(&two, 2, Wanted::Open), written("0", ""));
        assert_eq!(change(&none, 2, Wanted::Open), None);
    }

    #[test]
    fn the_last_index_takes_the_list_away() {
        assert_eq!(change(&lists("2", "").unwrap(), 2, Wanted::Open), written("", ""));
    }

    #[test]
    fn a_card_that_the_plugin_has_listed_is_cordoned_by_taking_it_off_the_plugins_own() {
        let listed = lists("0,1,2", "1,2").unwrap();
        assert_eq!(change(&listed, 2, Wanted::Cordoned), written("0,1,2", "1"));
        let error = listed.changed(2, Wanted::Open, "card 2").unwrap_err();
        assert!(error.to_string().contains("the device plugin itself finds card 2"), "{error}");
    }

    #[test]
    fn a_list_that_the_plugin_does_not_read_is_not_changed() {
        assert!(lists("two", "").is_err());
    }
}
