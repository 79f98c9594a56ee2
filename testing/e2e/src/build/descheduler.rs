//! Owns the image of the stock descheduler of the sample in `deploy/`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::go_program::go_program;
use super::images::{self, Archive};
use crate::settings::Settings;

/// The folder of the pinned Go module, from the root of this repository.
const MODULE: &str = "testing/e2e/go/descheduler";
const NAME: &str = "sigs.k8s.io/descheduler";

/// Its image, under the name that the project publishes.
pub fn image(settings: &Settings) -> Result<Archive> {
    let program = go_program(settings, "descheduler")?;
    images::of_program(settings, &program, &image_name(&settings.sources.join(MODULE))?)
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
