//! Owns the stock descheduler of the sample in `deploy/`: built once from its pinned Go module, then kept, with its
//! image.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::binaries::go;
use super::images::{self, Archive};
use crate::command::{append, run};
use crate::progress::step;
use crate::settings::Settings;

/// The folder of the pinned Go module, from the root of this repository.
const MODULE: &str = "testing/e2e/go/descheduler";
const NAME: &str = "sigs.k8s.io/descheduler";
const PROGRAM: &str = "descheduler";

/// Its image, under the name that the project publishes.
pub fn image(settings: &Settings) -> Result<Archive> {
    let module = settings.sources.join(MODULE);
    let folder = settings.cache.join(PROGRAM).join(format!("{:016x}", key(&module)?));
    fs::create_dir_all(&folder)?;
    let lock = append(&folder.join(".lock"))?;
    lock.lock()?;
    build(settings, &module, &folder.join(PROGRAM))?;
    images::of_program(settings, &folder, &image_name(&module)?)
}

/// A hash of the pins. Other pins lead to another folder.
fn key(module: &Path) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    for file in ["go.mod", "go.sum"] {
        let path = module.join(file);
        fs::read(&path)
            .with_context(|| format!("cannot read {}", path.display()))?
            .hash(&mut hasher);
    }
    Ok(hasher.finish())
}

fn build(settings: &Settings, module: &Path, program: &PathBuf) -> Result<()> {
    if program.exists() {
        return Ok(());
    }
    step("building the descheduler with Go (once; a few minutes)");
    let scratch = program.with_extension("new");
    let mut go = go(settings, module);
    go.args(["build", "-trimpath", "-ldflags", "-s -w", "-o"]).arg(&scratch);
    run(go.arg(format!("{NAME}/cmd/{PROGRAM}")))?;
    fs::rename(&scratch, program).context("cannot keep the descheduler")
}

fn image_name(module: &Path) -> Result<String> {
    let path = module.join("go.mod");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut lines = text.lines().map(|line| line.trim_start_matches("require ").split_whitespace());
    let version = lines.find_map(|mut words| (words.next()? == NAME).then(|| words.next())?);
    let version = version.with_context(|| format!("{} pins no {NAME}", path.display()))?;
    Ok(format!("registry.k8s.io/descheduler/descheduler:{version}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::sources;

    fn file(path: &str) -> String {
        fs::read_to_string(sources().unwrap().join(path)).unwrap()
    }

    #[test]
    fn the_sample_runs_the_image_of_the_pinned_module() {
        let name = image_name(&sources().unwrap().join(MODULE)).unwrap();
        let sample = file("deploy/samples/descheduler/descheduler.yaml");
        assert!(sample.contains(&format!("image: {name}\n")), "{name}");
    }

    #[test]
    fn the_tested_policy_is_the_samples_but_for_the_age_of_pods() {
        let sample = file("deploy/samples/descheduler/policy.yaml");
        let tested = file("testing/e2e/deploy/descheduler/policy.yaml");
        assert_ne!(tested, sample);
        assert_eq!(tested, sample.replace("minPodAge: 10m", "minPodAge: 1s"));
    }
}
