//! Owns the Kubernetes releases that the cluster can run.
//!
//! Each is a folder under `testing/e2e/go/releases` with a pinned Go module for Kubernetes and one for the etcd that
//! the release's kubeadm installs. `scripts/pin-kubernetes.sh` writes such a folder; no code names a release. Of an
//! earlier patch release, from which an upgrade by kubeadm is tried, the control plane alone is pinned.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::command::{command, run};

/// The folder of the releases, from the root of this repository.
const RELEASES: &str = "testing/e2e/go/releases";
/// The folder of earlier patch releases, from the root of this repository. Each has a Go module of the control plane.
const EARLIER: &str = "testing/e2e/go/earlier";

/// A released version of Kubernetes, such as v1.36.3. Ordered by age, the oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    minor: u32,
    patch: u32,
}

impl Release {
    /// The release of this name, or what `oldest` and `newest` stand for among the pinned ones.
    ///
    /// The error of a name that is not pinned lists those that are.
    pub fn find(sources: &Path, wanted: &str) -> Result<Self> {
        let pinned = pinned(sources)?;
        let found = match wanted {
            "oldest" => pinned.first().copied(),
            "newest" => pinned.last().copied(),
            name => pinned.iter().copied().find(|release| release.to_string() == name),
        };
        match found {
            Some(release) => Ok(release),
            None => {
                let names: Vec<String> = pinned.iter().map(Self::to_string).collect();
                bail!(
                    "KUBERNETES={wanted} is not among the pinned releases: {}, or oldest, or newest. \
                     scripts/pin-kubernetes.sh pins another one",
                    names.join(", ")
                )
            }
        }
    }

    /// The release of ready binaries, as their kubeadm reports it.
    pub fn of_binaries(folder: &Path) -> Result<Self> {
        let printed = run(command(folder.join("kubeadm")).args(["version", "-o", "short"]))?;
        parse(printed.trim()).with_context(|| format!("kubeadm reports {:?}", printed.trim()))
    }

    /// The earlier patch release of the same minor one that is pinned; `None` where there is none.
    pub fn earlier(self, sources: &Path) -> Result<Option<Self>> {
        let found = releases_in(&sources.join(EARLIER))?;
        Ok(found.into_iter().find(|other| other.minor == self.minor && *other < self))
    }

    /// The folder of the Go module of an earlier release's control plane.
    pub fn earlier_module(self, sources: &Path) -> PathBuf {
        sources.join(EARLIER).join(self.to_string())
    }

    /// The folder of one of the release's Go modules, `kubernetes` or `etcd`.
    pub fn module(self, sources: &Path, name: &str) -> PathBuf {
        sources.join(RELEASES).join(self.to_string()).join(name)
    }

    /// Linker flags with which the programs report this version, as those of a release build do.
    pub fn link_flags(self) -> String {
        let Self { minor, .. } = self;
        let version = "k8s.io/component-base/version";
        format!(
            "-X {version}.gitVersion={self} -X {version}.gitMajor=1 -X {version}.gitMinor={minor}"
        )
    }

    /// Fails unless `image`, which kubeadm lists, is the etcd that is pinned for the release.
    pub fn require_pinned_etcd(self, sources: &Path, image: &str) -> Result<()> {
        let file = self.module(sources, "etcd").join("go.mod");
        let module = read(&file)?;
        let tag = image.rsplit(':').next().unwrap_or(image);
        let version = format!("v{}", tag.split('-').next().unwrap_or(tag));
        ensure!(
            requires(&module, "go.etcd.io/etcd/server/v3", &version),
            "kubeadm {self} installs {image}, but {} pins another etcd",
            file.display()
        );
        Ok(())
    }
}

impl fmt::Display for Release {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "v1.{}.{}", self.minor, self.patch)
    }
}

/// Reads `v1.MINOR.PATCH`.
pub fn parse(name: &str) -> Option<Release> {
    let (minor, patch) = name.strip_prefix("v1.")?.split_once('.')?;
    Some(Release { minor: minor.parse().ok()?, patch: patch.parse().ok()? })
}

/// The pinned releases, the oldest first.
fn pinned(sources: &Path) -> Result<Vec<Release>> {
    releases_in(&sources.join(RELEASES))
}

/// The releases after which folders are named here, the oldest first.
fn releases_in(folder: &Path) -> Result<Vec<Release>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut releases: Vec<Release> = names.filter_map(|name| parse(&name)).collect();
    releases.sort_unstable();
    Ok(releases)
}

/// Whether a `go.mod` requires this version of a module.
fn requires(go_mod: &str, module: &str, version: &str) -> bool {
    go_mod.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some(module) && words.next() == Some(version)
    })
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::sources;

    #[test]
    fn every_pinned_folder_pins_the_release_that_it_is_named_after() {
        let sources = sources().unwrap();
        let releases = pinned(&sources).unwrap();
        assert!(!releases.is_empty());
        for release in releases {
            let module = read(&release.module(&sources, "kubernetes").join("go.mod")).unwrap();
            assert!(requires(&module, "k8s.io/kubernetes", &release.to_string()), "{release}");
            assert!(release.module(&sources, "etcd").join("go.sum").exists(), "{release}");
        }
    }

    #[test]
    fn the_newest_release_has_an_earlier_patch_release_with_the_same_runtime_defaults() {
        let sources = sources().unwrap();
        let newest = Release::find(&sources, "newest").unwrap();
        let earlier = newest.earlier(&sources).unwrap().unwrap();
        assert_eq!((earlier.minor, earlier.patch < newest.patch), (newest.minor, true));
        let [module, of_newest] =
            [earlier.earlier_module(&sources), newest.module(&sources, "kubernetes")]
                .map(|folder| read(&folder.join("go.mod")).unwrap());
        assert!(requires(&module, "k8s.io/kubernetes", &earlier.to_string()), "{module}");
        let defaults =
            |text: &str| text.lines().find(|line| line.starts_with("godebug")).map(str::to_owned);
        assert_eq!(defaults(&module), defaults(&of_newest));
    }

    #[test]
    fn releases_are_ordered_by_number_not_by_letter() {
        assert!(parse("v1.9.10").unwrap() < parse("v1.10.9").unwrap());
        assert_eq!(parse("v1.36.3").unwrap().to_string(), "v1.36.3");
        assert_eq!(parse("v1.36"), None);
    }

    #[test]
    fn an_unknown_release_is_answered_with_those_that_can_be_had() {
        let sources = sources().unwrap();
        let error = Release::find(&sources, "v9").unwrap_err().to_string();
        for release in pinned(&sources).unwrap() {
            assert!(error.contains(&release.to_string()), "{error}");
        }
    }

    #[test]
    fn the_programs_report_the_release_that_they_were_built_from() {
        let flags = parse("v1.34.4").unwrap().link_flags();
        assert!(flags.contains("gitVersion=v1.34.4 ") && flags.contains("gitMinor=34"), "{flags}");
    }
}
