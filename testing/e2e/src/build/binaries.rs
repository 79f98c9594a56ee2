//! Owns the programs that a cluster consists of (Kubernetes, etcd, containerd): built once from pinned Go modules, then
//! kept.
//!
//! A program appears under its name only when it is complete: the build writes beside it and renames.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::release::Release;
use crate::command::{append, command, locked, run, wait_for};
use crate::progress::step;
use crate::settings::Settings;

/// One Go module; a single `go build` makes its programs.
struct Module {
    name: &'static str,
    /// Each program's file name and its package.
    programs: &'static [(&'static str, &'static str)],
    tags: &'static str,
}

const KUBERNETES: Module = Module {
    name: "kubernetes",
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
};

/// The programs of an earlier patch release that an upgrade by kubeadm replaces, and its kubeadm.
const CONTROL_PLANE: Module = Module {
    name: "control-plane",
    programs: &[
        ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
        ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
        ("kubeadm", "k8s.io/kubernetes/cmd/kubeadm"),
    ],
    tags: "",
};

const ETCD: Module =
    Module { name: "etcd", programs: &[("etcd", "go.etcd.io/etcd/server/v3")], tags: "" };

const CONTAINERD: Module = Module {
    name: "containerd",
    programs: &[
        ("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
        (
            "containerd-shim-runc-v2",
            "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
        ),
        ("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
    ],
    tags: "no_btrfs,no_devmapper,no_zfs",
};

const MODULES: [&Module; 3] = [&ETCD, &CONTAINERD, &KUBERNETES];

impl Module {
    /// Kubernetes and etcd are pinned for each release; all releases run on one containerd.
    fn folder(&self, sources: &Path, release: Release) -> PathBuf {
        match self.name {
            "containerd" => sources.join("testing/e2e/go/containerd"),
            "control-plane" => release.earlier_module(sources),
            name => release.module(sources, name),
        }
    }

    fn link_flags(&self, release: Release) -> String {
        let stripped = "-s -w";
        match self.name {
            "kubernetes" | "control-plane" => format!("{stripped} {}", release.link_flags()),
            _ => stripped.to_owned(),
        }
    }
}

/// The folder that keeps what was built from a release's pinned modules. Other pins lead to another folder.
pub fn kept_in(settings: &Settings, release: Release) -> Result<PathBuf> {
    kept(settings, release, &MODULES)
}

fn kept(settings: &Settings, release: Release, modules: &[&Module]) -> Result<PathBuf> {
    let key = key(&settings.sources, release, modules)?;
    Ok(settings.cache.join("kubernetes").join(format!("{release}-{key:016x}")))
}

/// Builds the control plane of an earlier patch release, and returns the folder that holds it with its kubeadm.
pub fn ensure_earlier(settings: &Settings, release: Release) -> Result<PathBuf> {
    let bin = kept(settings, release, &[&CONTROL_PLANE])?.join("bin");
    let _lock = locked(&bin)?;
    build(settings, release, &CONTROL_PLANE, &bin)?;
    Ok(bin)
}

/// Builds what is missing and returns the folder that holds every program.
pub fn ensure(settings: &Settings, release: Release) -> Result<PathBuf> {
    if let Some(ready) = &settings.ready_binaries {
        return complete(ready);
    }
    let bin = kept_in(settings, release)?.join("bin");
    let _lock = locked(&bin)?;
    if complete(&bin).is_err() {
        run(command("go").arg("version"))
            .context("the programs are built with Go: install Go 1.26 or newer")?;
    }
    for module in MODULES {
        build(settings, release, module, &bin)?;
    }
    pause(settings, release, &bin)?;
    complete(&bin)
}

/// Fails unless the folder holds every program.
fn complete(folder: &Path) -> Result<PathBuf> {
    let names = MODULES.iter().flat_map(|module| module.programs).map(|(name, _)| *name);
    let missing: Vec<&str> =
        names.chain(["pause"]).filter(|name| !folder.join(name).exists()).collect();
    if !missing.is_empty() {
        bail!("{} lacks {}", folder.display(), missing.join(", "));
    }
    fs::canonicalize(folder).with_context(|| format!("cannot find {}", folder.display()))
}

fn build(settings: &Settings, release: Release, module: &Module, bin: &Path) -> Result<()> {
    let missing = module.programs.iter().filter(|(name, _)| !bin.join(name).exists());
    let packages: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if packages.is_empty() {
        return Ok(());
    }
    step(&format!("building {} for {release} with Go (once; a few minutes)", module.name));
    let scratch = bin.join(format!(".building-{}", module.name));
    empty_folder(&scratch)?;
    let log = bin.join(format!("{}.log", module.name));
    let output = append(&log)?;
    let link_flags = module.link_flags(release);
    let mut build = go(settings, &module.folder(&settings.sources, release));
    build.args(["build", "-trimpath", "-tags", module.tags, "-ldflags", &link_flags, "-o"]);
    build.arg(format!("{}/", scratch.display())).args(packages);
    let child = build.stderr(output).spawn().context("cannot start a Go build")?;
    wait_and_report(child, &scratch)
        .with_context(|| format!("go build of {} failed: see {}", module.name, log.display()))?;
    keep(&scratch, bin, module)
}

/// Waits for the build and prints each program as it is finished.
fn wait_and_report(mut child: Child, scratch: &Path) -> Result<()> {
    let start = Instant::now();
    let mut finished = BTreeSet::new();
    loop {
        let ended = child.try_wait()?;
        for entry in fs::read_dir(scratch)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if finished.insert(name.clone()) {
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

/// Moves the programs to `bin`. Go names etcd's program `server`, after its folder.
fn keep(scratch: &Path, bin: &Path, module: &Module) -> Result<()> {
    for entry in fs::read_dir(scratch)? {
        let entry = entry?;
        let name = if module.name == "etcd" { "etcd".into() } else { entry.file_name() };
        fs::rename(entry.path(), bin.join(name))?;
    }
    fs::remove_dir_all(scratch).context("cannot remove the build folder")
}

/// Builds Kubernetes' pause program from the C source in its Go module.
fn pause(settings: &Settings, release: Release, bin: &Path) -> Result<()> {
    if bin.join("pause").exists() {
        return Ok(());
    }
    let folder = KUBERNETES.folder(&settings.sources, release);
    let module =
        run(go(settings, &folder).args(["list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes"]))?;
    let source = Path::new(module.trim()).join("build/pause/linux/pause.c");
    let scratch = bin.join(".pause");
    run(command("cc").args(["-static", "-Os", "-s", "-o"]).arg(&scratch).arg(&source))?;
    fs::rename(&scratch, bin.join("pause")).context("cannot keep pause")
}

/// `go` in a module's folder, at low priority: a build keeps every processor busy for minutes. Without a home folder
/// its caches lie in ours.
fn go(settings: &Settings, folder: &Path) -> Command {
    let mut go = command("nice");
    go.arg("go").current_dir(folder);
    go.env("CGO_ENABLED", "0").env("GOFLAGS", "-buildvcs=false");
    keep_go_folders(settings, &mut go);
    go
}

/// Without a home, Go has no folders for modules and objects.
pub(super) fn keep_go_folders(settings: &Settings, command: &mut Command) {
    if std::env::var_os("HOME").is_none() {
        command.env("GOPATH", settings.cache.join("go"));
        command.env("GOCACHE", settings.cache.join("go-build"));
    }
}

/// A hash of everything that decides what is built.
fn key(sources: &Path, release: Release, modules: &[&Module]) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    for module in modules {
        for file in ["go.mod", "go.sum"] {
            let path = module.folder(sources, release).join(file);
            fs::read(&path)
                .with_context(|| format!("cannot read {}", path.display()))?
                .hash(&mut hasher);
        }
        (module.programs, module.tags, module.link_flags(release)).hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// Creates the folder, and first removes what a killed run may have left there.
pub fn empty_folder(path: &Path) -> Result<()> {
    if path.exists() {
        wait_for("the removal of a left-over folder", Duration::from_secs(10), || {
            Ok(fs::remove_dir_all(path).ok())
        })?;
    }
    fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))
}
