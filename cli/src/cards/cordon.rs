//! `plimsoll cordon` and `uncordon`: a card takes no new pods, or takes them again.
//!
//! The device plugin follows the ConfigMap `unhealthy-gpu-NODE`, where indexes stand in `data.gpus`. It lists there
//! itself the cards that it finds unhealthy, and names these in an annotation. Invariant: other indexes stay, and so
//! does what the plugin lists; the API server refuses a write where the ConfigMap has changed since it was read.

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

/// The annotation with the indexes that the device plugin itself has listed.
const WRITTEN_BY_PLUGIN: &str = "plimsoll.dev/written-gpus";
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
    let node: Node = kubectl.get(&["node", &flags.node])?;
    let index = index_of(&node, &flags.card)?;
    let namespace = followed_namespace(&kubectl)?;
    let name = format!("{}{}", aliyun::UNHEALTHY_GPUS_MAP, flags.node);
    let in_namespace = format!("--namespace={namespace}");
    let found = match kubectl.get::<ConfigMap>(&["configmap", &name, &in_namespace]) {
        Ok(found) => Some(found),
        Err(Failure::NotFound(_)) => None,
        Err(other) => return Err(other.into()),
    };
    let card = format!("card {index} of {}", flags.node);
    let Some(list) = changed(found.as_ref(), index, wanted, &card)? else {
        let state =
            if wanted == Wanted::Cordoned { "takes no new pods" } else { "is not cordoned" };
        writeln!(output, "{card} {state} already")?;
        return Ok(ExitCode::SUCCESS);
    };
    let verb = if wanted == Wanted::Cordoned { "cordoned" } else { "uncordoned" };
    if flags.dry_run {
        writeln!(output, "{card} would be {verb}: ConfigMap {namespace}/{name}, gpus: \"{list}\"")?;
        return Ok(ExitCode::SUCCESS);
    }
    write(&kubectl, &namespace, &name, found.as_ref(), &list)?;
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

/// The new list; `None` if nothing is to be changed.
fn changed(
    found: Option<&ConfigMap>,
    index: u32,
    wanted: Wanted,
    card: &str,
) -> Result<Option<String>> {
    let text = found.and_then(|it| it.data.get(aliyun::UNHEALTHY_GPUS)).map_or("", String::as_str);
    let Some(mut listed) = indexes(text) else {
        bail!(
            "the ConfigMap's gpus are {text:?}, and not indexes as \"0,2\": the device plugin does not read that either; mend it first"
        );
    };
    let by_plugin = found.and_then(|it| it.metadata.annotations.get(WRITTEN_BY_PLUGIN));
    let by_plugin = by_plugin.and_then(|text| indexes(text)).unwrap_or_default();
    let changes = match wanted {
        Wanted::Cordoned if by_plugin.contains(&index) => bail!(
            "the device plugin itself finds {card} unhealthy, so it takes no new pods; it does again once it is healthy. \
             Its log says what is wrong"
        ),
        Wanted::Open if by_plugin.contains(&index) => {
            bail!(
                "the device plugin itself finds {card} unhealthy: it takes pods once it is healthy; its log says what is wrong"
            )
        }
        Wanted::Cordoned => listed.insert(index),
        Wanted::Open => listed.remove(&index),
    };
    if !changes {
        return Ok(None);
    }
    let list: Vec<String> = listed.iter().map(u32::to_string).collect();
    Ok(Some(list.join(",")))
}

/// As the device plugin reads it.
fn indexes(text: &str) -> Option<BTreeSet<u32>> {
    if text.trim().is_empty() {
        return Some(BTreeSet::new());
    }
    text.split(',').map(|part| part.trim().parse().ok()).collect()
}

fn write(
    kubectl: &Kubectl,
    namespace: &str,
    name: &str,
    found: Option<&ConfigMap>,
    list: &str,
) -> Result<()> {
    let in_namespace = format!("--namespace={namespace}");
    let data: Value = json!({ aliyun::UNHEALTHY_GPUS: list });
    match found {
        Some(found) => {
            let version = &found.metadata.resource_version;
            let patch = json!({"metadata": {"resourceVersion": version}, "data": data});
            let patch = format!("--patch={patch}");
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

    fn map(gpus: &str, by_plugin: &str) -> ConfigMap {
        serde_json::from_value(json!({
            "metadata": {"annotations": {WRITTEN_BY_PLUGIN: by_plugin}}, "data": {"gpus": gpus},
        }))
        .unwrap()
    }

    #[test]
    fn other_indexes_stay_and_nothing_is_written_that_is_so_already() {
        let change =
            |map: Option<&ConfigMap>, index, wanted| changed(map, index, wanted, "it").unwrap();
        let listed = map("0, 2", "");
        assert_eq!(change(None, 3, Wanted::Cordoned).as_deref(), Some("3"));
        assert_eq!(change(Some(&listed), 1, Wanted::Cordoned).as_deref(), Some("0,1,2"));
        assert_eq!(change(Some(&listed), 2, Wanted::Cordoned), None);
        assert_eq!(change(Some(&listed), 2, Wanted::Open).as_deref(), Some("0"));
        assert_eq!(change(None, 2, Wanted::Open), None);
    }

    #[test]
    fn what_the_plugin_found_is_not_this_commands_to_change() {
        for wanted in [Wanted::Cordoned, Wanted::Open] {
            let error = changed(Some(&map("0,2", "2")), 2, wanted, "card 2").unwrap_err();
            assert!(error.to_string().contains("the device plugin itself finds card 2"), "{error}");
        }
        assert!(changed(Some(&map("two", "")), 1, Wanted::Cordoned, "it").is_err());
    }
}
