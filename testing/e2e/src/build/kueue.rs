//! Owns Kueue, the job queue of the sample in `deploy/`: its image, and the chart in the sources of the pinned module.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use super::binaries::keep_go_folders;
use super::go_program::go_program;
use super::images::{self, Archive};
use crate::command::{command, run};
use crate::settings::Settings;

/// The folder of the pinned Go module, from the root of this repository.
const MODULE: &str = "testing/e2e/go/kueue";
const NAME: &str = "sigs.k8s.io/kueue";
/// The published image.
const REPOSITORY: &str = "registry.k8s.io/kueue/kueue";
/// The program lies where the chart's command names it. The chart refuses root.
const RECIPE: &str =
    "FROM scratch\nCOPY kueue /manager\nUSER 65532:65532\nENTRYPOINT [\"/manager\"]\n";

/// What an installation needs.
pub struct Kueue {
    pub image: Archive,
    /// The folder of its own Helm chart.
    pub chart: PathBuf,
    /// Flags with which the chart takes the image that is there.
    pub flags: Vec<String>,
}

/// Kueue of the pinned version. It takes minutes when it is asked for the first time.
pub fn kueue(settings: &Settings) -> Result<Kueue> {
    let mut go = command("go");
    go.args(["mod", "download", "-json", NAME]).current_dir(settings.sources.join(MODULE));
    keep_go_folders(settings, &mut go);
    let module: Value = serde_json::from_str(&run(&mut go)?).context("go prints no JSON")?;
    let version = module["Version"].as_str().context("the module has no version")?;
    let sources = module["Dir"].as_str().context("the module has no folder")?;
    let program = go_program(settings, "kueue")?;
    let folder = program.parent().context("a program lies in a folder")?;
    let file = folder.join("kueue.tar");
    let name = format!("{REPOSITORY}:{version}");
    let image = images::kept(settings, &name, RECIPE, folder, file)?;
    let values =
        [("repository", REPOSITORY), ("tag", version), ("pullPolicy", "IfNotPresent")].into_iter();
    let flags =
        values.map(|(key, value)| format!("--set=controllerManager.manager.image.{key}={value}"));
    Ok(Kueue { image, chart: PathBuf::from(sources).join("charts/kueue"), flags: flags.collect() })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{MODULE, NAME};
    use crate::settings::sources;

    #[test]
    fn the_document_names_the_pinned_version() {
        let read = |path: &str| fs::read_to_string(sources().unwrap().join(path)).unwrap();
        let pins = read(&format!("{MODULE}/go.mod"));
        let (_, version) = pins.split_once(&format!("{NAME} v")).unwrap();
        let version = version.split_whitespace().next().unwrap();
        assert!(read("docs/jobs.md").contains(&format!("Kueue {version} ")), "{version}");
    }
}
