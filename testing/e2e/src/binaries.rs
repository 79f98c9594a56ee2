//! Owns the programs that Kubernetes itself consists of: built once from the Go modules under `testing/e2e/go`, then kept.
//!
//! A program appears under its name only when it is whole: the build writes beside it and renames.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::command::{append, command, run, wait_for};
use crate::progress::step;
use crate::settings::{KUBERNETES, Settings};

/// Programs that one Go module builds in one go.
struct Module {
    /// The folder under `testing/e2e/go`.
    folder: &'static str,
    /// Each program and the package that makes it.
    programs: &'static [(&'static str, &'static str)],
    tags: &'static str,
    link_flags: &'static str,
}

/// Reports v1.36.2 as a release build would; kept equal to [`KUBERNETES`] by a test.
const KUBERNETES_FLAGS: &str = "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.2 \
     -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36";

const MODULES: [Module; 3] = [
    Module {
        folder: "etcd",
        programs: &[("etcd", "go.etcd.io/etcd/server/v3")],
        tags: "",
        link_flags: "-s -w",
    },
    Module {
        folder: "containerd",
        programs: &[
            ("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
            (
                "containerd-shim-runc-v2",
                "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            ),
            ("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
        ],
        tags: "no_btrfs,no_devmapper,no_zfs",
        link_flags: "-s -w",
    },
    Module {
        folder: "kubernetes",
        programs: &[
            ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
            ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
            ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
            ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
            ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
            ("kubeadm", "k8s.io/kubernetes/cmd/kubeadm"),
            ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
        ],
        tags: "",
        link_flags: KUBERNETES_FLAGS,
    },
];

/// Where the programs of this very set of pinned versions are kept.
pub fn kept_in(settings: &Settings) -> Result<PathBuf> {
    let key = key(&settings.sources)?;
    Ok(settings.cache.join("kubernetes").join(format!("{KUBERNETES}-{key:016x}")))
}

/// Builds what is missing and returns the folder that holds every program.
pub fn ensure(settings: &Settings) -> Result<PathBuf> {
    if let Some(ready) = &settings.ready_binaries {
        return complete(ready);
    }
    let bin = kept_in(settings)?.join("bin");
    fs::create_dir_all(&bin).with_context(|| format!("cannot create {}", bin.display()))?;
    let lock = append(&bin.join(".lock"))?;
    lock.lock()?;
    for module in &MODULES {
        build(settings, module, &bin)?;
    }
    pause(settings, &bin)?;
    complete(&bin)
}

/// Requires every program in a folder that somebody names, or that was just built.
fn complete(folder: &Path) -> Result<PathBuf> {
    let names = MODULES.iter().flat_map(|module| module.programs).map(|(name, _)| *name);
    let missing: Vec<&str> =
        names.chain(["pause"]).filter(|name| !folder.join(name).exists()).collect();
    if !missing.is_empty() {
        bail!("{} lacks {}", folder.display(), missing.join(", "));
    }
    fs::canonicalize(folder).with_context(|| format!("cannot find {}", folder.display()))
}

fn build(settings: &Settings, module: &Module, bin: &Path) -> Result<()> {
    let wanted = module.programs.iter().filter(|(name, _)| !bin.join(name).exists());
    let packages: Vec<&str> = wanted.map(|(_, package)| *package).collect();
    if packages.is_empty() {
        return Ok(());
    }
    step(&format!("building {} with Go (once; a few minutes)", module.folder));
    let scratch = bin.join(format!(".building-{}", module.folder));
    fresh_folder(&scratch)?;
    let log = bin.join(format!("{}.log", module.folder));
    let output = append(&log)?;
    let mut build = go(settings, module.folder);
    build.args(["build", "-trimpath", "-tags", module.tags, "-ldflags", module.link_flags, "-o"]);
    build.arg(format!("{}/", scratch.display())).args(packages);
    let child =
        build.stderr(output).spawn().context("cannot start `go`: install Go 1.26 or newer")?;
    watch(child, &scratch)
        .with_context(|| format!("go build of {} failed: see {}", module.folder, log.display()))?;
    install(&scratch, bin, module)
}

/// Prints each program as the build finishes it.
fn watch(mut child: Child, scratch: &Path) -> Result<()> {
    let start = Instant::now();
    let mut seen = BTreeSet::new();
    loop {
        let ended = child.try_wait()?;
        for entry in fs::read_dir(scratch)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if seen.insert(name.clone()) {
                step(&format!("  {name} after {} s", start.elapsed().as_secs()));
            }
        }
        match ended {
            Some(status) if status.success() => return Ok(()),
            Some(status) => bail!("it ended with {status}"),
            None => sleep(Duration::from_millis(300)),
        }
    }
}

/// The etcd server's package is named `v3`'s parent, so Go calls the file `server`; ours is `etcd`.
fn install(scratch: &Path, bin: &Path, module: &Module) -> Result<()> {
    if module.folder == "etcd" {
        let built = fs::read_dir(scratch)?.next().context("go built nothing")??.path();
        fs::rename(built, bin.join("etcd"))?;
    } else {
        for entry in fs::read_dir(scratch)? {
            let entry = entry?;
            fs::rename(entry.path(), bin.join(entry.file_name()))?;
        }
    }
    fs::remove_dir_all(scratch).context("cannot remove the build folder")
}

/// Kubernetes' own pause program, from the source in its Go module.
fn pause(settings: &Settings, bin: &Path) -> Result<()> {
    if bin.join("pause").exists() {
        return Ok(());
    }
    let module = run(go(settings, "kubernetes").args([
        "list",
        "-m",
        "-f",
        "{{.Dir}}",
        "k8s.io/kubernetes",
    ]))?;
    let source = Path::new(module.trim()).join("build/pause/linux/pause.c");
    let scratch = bin.join(".pause");
    run(command("cc").args(["-static", "-Os", "-s", "-o"]).arg(&scratch).arg(&source))?;
    fs::rename(&scratch, bin.join("pause")).context("cannot keep pause")
}

/// `go`, told where to keep things when there is no home folder.
fn go(settings: &Settings, folder: &str) -> std::process::Command {
    let mut go = command("go");
    go.current_dir(settings.sources.join("testing/e2e/go").join(folder));
    go.env("CGO_ENABLED", "0").env("GOFLAGS", "-buildvcs=false");
    if std::env::var_os("HOME").is_none() {
        go.env("GOPATH", settings.cache.join("go")).env("GOCACHE", settings.cache.join("go-build"));
    }
    go
}

fn key(sources: &Path) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    for module in &MODULES {
        for file in ["go.mod", "go.sum", "tools.go"] {
            let path = sources.join("testing/e2e/go").join(module.folder).join(file);
            fs::read(&path)
                .with_context(|| format!("cannot read {}", path.display()))?
                .hash(&mut hasher);
        }
        (module.programs, module.tags, module.link_flags).hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// Empties a folder that a killed run may have left.
pub fn fresh_folder(path: &Path) -> Result<()> {
    if path.exists() {
        wait_for("the removal of a left-over folder", Duration::from_secs(10), || {
            Ok(fs::remove_dir_all(path).ok())
        })?;
    }
    fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_report_the_version_that_kubeadm_installs() {
        assert!(KUBERNETES_FLAGS.contains(&format!("gitVersion={KUBERNETES} ")));
        let module = include_str!("../go/kubernetes/go.mod");
        assert!(module.contains(&format!("k8s.io/kubernetes {KUBERNETES}")));
    }
}
