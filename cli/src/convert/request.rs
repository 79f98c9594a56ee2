//! What a template of pods requests of GPUs by units and annotations. The rules are those of `placement`.

use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use api::per_container::PerContainer;
use placement::gpu::{
    ContainerKind, ContainerRequest, GpuFilter, GpuOptions, GpuRequest, GpuUse, MpsConflict,
    Patterns, RequestError, UnexpectedValue, excludes_mps,
};
use placement::names::Names;
use placement::quantity;
use placement::units::Units;
use serde_json::Value;

use super::yaml::Yaml;

/// The list of containers of this kind in a pod's spec.
pub(super) fn list_of(kind: ContainerKind) -> &'static str {
    if kind == ContainerKind::App { "containers" } else { "initContainers" }
}

/// A pod, or the template of a workload's pods.
pub(super) struct PodTemplate<'n> {
    /// Its metadata and spec.
    pub(super) node: &'n Yaml,
    /// Where it stands in its document, as `spec.template.`; empty for a pod.
    pub(super) path: &'n str,
    /// The names on the wire.
    pub(super) names: &'n Names,
}

impl PodTemplate<'_> {
    /// What it requests; `None` if no units.
    ///
    /// # Errors
    ///
    /// Names the field that cannot be read or met, and what to do.
    pub(super) fn request(&self) -> Result<Option<GpuRequest>> {
        let mut asks = self.containers(ContainerKind::Init)?;
        asks.extend(self.containers(ContainerKind::App)?);
        if asks.is_empty() {
            return Ok(None);
        }
        let names = self.names;
        self.each(&names.gpu_count(), &mut asks, GpuUse::read_gpu_count)?;
        self.each(&names.gpu_cores(), &mut asks, GpuUse::read_cores)?;
        self.each(&names.gpu_processes(), &mut asks, GpuUse::read_processes)?;
        self.each(&names.gpu_mem_limit(), &mut asks, GpuUse::read_memory_limit)?;
        let models: Option<Patterns> = self.parsed(&names.gpu_model())?;
        let uuids: Option<Patterns> = self.parsed(&names.gpu_uuid())?;
        let filter = GpuFilter {
            models: models.unwrap_or_default(),
            uuids: uuids.unwrap_or_default(),
            isolation: self.parsed(&names.isolation())?.unwrap_or_default(),
        };
        let strategy = self.parsed(&names.gpu_placement())?;
        let excludes_mps = excludes_mps(&asks, |ask| self.mps_conflict(ask).is_some());
        let options = GpuOptions::of_pod(filter, strategy, excludes_mps);
        GpuRequest::with_options(asks, options).map_err(|error| self.unmet(&error))
    }

    /// A field of the pod, by its place in the document.
    pub(super) fn field(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    /// An annotation of the pod, by its place in the document.
    pub(super) fn annotation(&self, key: &str) -> String {
        self.field(&format!("metadata.annotations[{key}]"))
    }

    /// The text of an annotation.
    ///
    /// # Errors
    ///
    /// If it is no text.
    pub(super) fn text(&self, key: &str) -> Result<Option<&str>> {
        let value = self.node.at(&["metadata", "annotations", key]);
        value.map(Yaml::as_text).transpose().with_context(|| self.annotation(key))
    }

    /// The containers of a list that request units.
    fn containers(&self, list: ContainerKind) -> Result<Vec<ContainerRequest>> {
        let resource = self.names.gpu_resource();
        let mut asks = Vec::new();
        let name = list_of(list);
        for (position, container) in self.node.list(&["spec", name]).iter().enumerate() {
            let at = self.field(&format!("spec.{name}[{position}]"));
            let Some(limit) = container.at(&["resources", "limits", resource]) else {
                if container.at(&["resources", "requests", resource]).is_some() {
                    bail!(
                        "{at}.resources.requests[{resource}]: Kubernetes refuses it without an equal limit; move it to \
                         {at}.resources.limits"
                    );
                }
                continue;
            };
            let text = match limit {
                Yaml::Scalar(Value::String(text)) => text.clone(),
                Yaml::Scalar(value) => value.to_string(),
                _ => "a list or fields".to_owned(),
            };
            let units = quantity::count(&text)
                .map_err(|error| anyhow!("{at}.resources.limits[{resource}]: {error}"))?;
            if units == 0 {
                continue;
            }
            let given = container.text_at(&["name"]).with_context(|| at.clone())?;
            let name = given.with_context(|| format!("{at}.name: missing"))?;
            let kind = match container.text("restartPolicy") {
                Some("Always") if list == ContainerKind::Init => ContainerKind::Sidecar,
                _ => list,
            };
            let (name, gpu_use) = (name.to_owned(), GpuUse::default());
            asks.push(ContainerRequest { name, kind, position, units: Units(units), gpu_use });
        }
        Ok(asks)
    }

    /// Why a container cannot be a client of MPS.
    fn mps_conflict(&self, ask: &ContainerRequest) -> Option<MpsConflict> {
        let container = self.node.list(&["spec", list_of(ask.kind)]).get(ask.position)?;
        let mut paths = Vec::new();
        for (list, path) in [("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")] {
            paths.extend(container.list(&[list]).iter().filter_map(|one| one.text(path)));
        }
        let host_ipc = self.node.at(&["spec", "hostIPC"]) == Some(&Yaml::scalar(true));
        MpsConflict::find(host_ipc, paths)
    }

    /// Has each container take its value of an annotation.
    fn each(
        &self,
        key: &str,
        asks: &mut [ContainerRequest],
        take: fn(&mut GpuUse, &str) -> Result<(), UnexpectedValue>,
    ) -> Result<()> {
        let Some(text) = self.text(key)? else { return Ok(()) };
        let at = self.annotation(key);
        let values = PerContainer::read(text).map_err(|error| {
            anyhow!("{at}: neither one value nor an object as in `{{\"main\":2}}`: {error}")
        })?;
        if let Some(name) = values.names().find(|name| asks.iter().all(|ask| ask.name != *name)) {
            bail!("{at}: no container `{name}` asks for GPU memory; correct the name or remove it");
        }
        for ask in asks {
            if let Some(value) = values.of(&ask.name) {
                take(&mut ask.gpu_use, value).map_err(|error| anyhow!("{at}: {error}"))?;
            }
        }
        Ok(())
    }

    fn parsed<T: FromStr<Err: std::fmt::Display>>(&self, key: &str) -> Result<Option<T>> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let parsed = text.trim().parse().map(Some);
        parsed.map_err(|error| anyhow!("{}: {error}", self.annotation(key)))
    }

    /// A request that no GPU can meet, with its field and what to do.
    fn unmet(&self, error: &RequestError) -> anyhow::Error {
        let (key, remedy) = match error {
            RequestError::Indivisible { gpus, .. } => {
                (self.names.gpu_count(), format!("ask for a multiple of {gpus} units"))
            }
            RequestError::HandedOn { .. } => {
                (self.names.gpu_count(), "remove the init container's units".to_owned())
            }
            RequestError::LimitBelowRequest { units, .. } => {
                (self.names.gpu_mem_limit(), format!("write {units} or more, or remove it"))
            }
            RequestError::TooManyCores(_) => {
                (self.names.gpu_cores(), "lower them to 100 together".to_owned())
            }
        };
        anyhow!("{}: {error}; {remedy}", self.annotation(&key))
    }
}
