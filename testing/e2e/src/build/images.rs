//! Owns container images, built without a daemon or a registry, as files that containerd imports.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::binaries::{empty_folder, kept_in};
use super::go_program::go_program;
use super::release::Release;
use crate::command::{command, locked, run};
use crate::kernel::processes::{Pid, alive};
use crate::progress::step;
use crate::settings::Settings;

/// The name of a store's folder: this and the process id of its user.
const STORE_PREFIX: &str = "buildah-";

/// Where the shipped manifests have the images: a name that no server can have, so that none is pulled by mistake.
pub const REGISTRY: &str = "plimsoll.invalid";
/// Holds busybox as `/bin/sh` and its other names, for pods that run a script. In [`REGISTRY`].
pub const BUSYBOX: &str = "plimsoll.invalid/busybox:1";
/// Waits for SIGTERM in a few hundred KiB, for pods that run nothing. Kubernetes' own pause program, under one
/// published name in every release; the release's own sandbox image may have another tag.
pub const PAUSE: &str = "registry.k8s.io/pause:3.10.1";

/// The image of `mps.enabled`.
const MPS_DAEMON: &str = "nvcr.io/nvidia/cuda:12.4.1-base-ubuntu22.04";

/// An image in a file that `ctr images import` takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    /// The name that pods use.
    pub name: String,
    /// The OCI archive.
    pub file: PathBuf,
}

/// The images of the control plane and of the tests' pods, made from the built programs. They are kept beside the
/// programs; those of ready binaries lie in the state folder.
pub fn kubernetes(settings: &Settings, release: Release, bin: &Path) -> Result<Vec<Archive>> {
    let folder = match &settings.ready_binaries {
        Some(_) => settings.state.join("kubernetes-images"),
        None => kept_in(settings, release)?.join("images"),
    };
    let _lock = locked(&folder)?;
    let mut archives = Vec::new();
    for name in listed(release, bin)? {
        match program(&name) {
            // It runs outside of containers.
            "kube-proxy" => continue,
            "coredns" => archives.push(coredns(settings, &name, &folder)?),
            of_kubernetes => {
                if of_kubernetes == "etcd" && settings.ready_binaries.is_none() {
                    release.require_pinned_etcd(&settings.sources, &name)?;
                }
                archives.push(one_program(settings, bin, &name, &folder)?);
            }
        }
    }
    if archives.iter().all(|archive| archive.name != PAUSE) {
        archives.push(one_program(settings, bin, PAUSE, &folder)?);
    }
    archives.push(busybox(settings, &folder)?);
    archives.push(mps_daemon(settings, &folder)?);
    Ok(archives)
}

/// The images of an earlier patch release's control plane, made from the programs in `bin` and kept beside them.
pub fn earlier_control_plane(
    settings: &Settings,
    release: Release,
    bin: &Path,
) -> Result<Vec<Archive>> {
    let listed = listed(release, bin)?;
    let built = listed.iter().filter(|name| bin.join(program(name)).exists());
    built.map(|name| one_program(settings, bin, name, bin)).collect()
}

/// The images that the release's kubeadm installs.
fn listed(release: Release, bin: &Path) -> Result<Vec<String>> {
    let version = release.to_string();
    let printed = run(command(bin.join("kubeadm")).args([
        "config",
        "images",
        "list",
        "--kubernetes-version",
        &version,
    ]))?;
    Ok(printed.lines().map(str::to_owned).collect())
}

/// The sandbox image of the release: the first pause image, since kubeadm's own list comes first.
pub fn sandbox_of(archives: &[Archive]) -> Result<&str> {
    let pause = archives.iter().find(|archive| program(&archive.name) == "pause");
    pause.map(|archive| archive.name.as_str()).context("kubeadm lists no pause image")
}

/// `registry.k8s.io/etcd:3.6.8-0` gives `etcd`.
fn program(image: &str) -> &str {
    let last = image.rsplit('/').next().unwrap_or(image);
    last.split(':').next().unwrap_or(last)
}

fn one_program(settings: &Settings, bin: &Path, name: &str, folder: &Path) -> Result<Archive> {
    let program = program(name);
    let recipe = format!(
        "FROM scratch\nCOPY {program} /usr/local/bin/{program}\nENV PATH=/usr/local/bin\n\
         ENTRYPOINT [\"/usr/local/bin/{program}\"]\n"
    );
    let file = name.rsplit('/').next().unwrap_or(name).replace(':', "-");
    kept(settings, name, &recipe, bin, folder.join(format!("{file}.tar")))
}

/// The image of a program that lies in `/bin`, as in the published image. It is kept beside the program.
pub(super) fn of_program(settings: &Settings, program: &Path, name: &str) -> Result<Archive> {
    let folder = program.parent().context("a program lies in a folder")?;
    let program = self::program(name);
    let recipe =
        format!("FROM scratch\nCOPY {program} /bin/{program}\nENTRYPOINT [\"/bin/{program}\"]\n");
    kept(settings, name, &recipe, folder, folder.join(format!("{program}.tar")))
}

/// CoreDNS, of one pinned version, under the name that the release's kubeadm installs.
fn coredns(settings: &Settings, name: &str, folder: &Path) -> Result<Archive> {
    let program = go_program(settings, "coredns")?;
    let context = program.parent().context("a program lies in a folder")?;
    let recipe = "FROM scratch\nCOPY coredns /coredns\nENTRYPOINT [\"/coredns\"]\n";
    kept(settings, name, recipe, context, folder.join("coredns.tar"))
}

fn busybox(settings: &Settings, folder: &Path) -> Result<Archive> {
    let recipe = "FROM scratch\nCOPY busybox /bin/busybox\nENV PATH=/bin\nRUN [\"/bin/busybox\", \"--install\", \"/bin\"]\n";
    kept(settings, BUSYBOX, recipe, Path::new("/bin"), folder.join("busybox-1.tar"))
}

/// A stand-in of NVIDIA's MPS control daemon in the image that the shipped manifest names: it makes the entries that
/// the daemon of driver 580 makes, and has its pipe open. Told a command, it answers as for one server, 42, whose
/// clients are the lines of `clients`, and notes it in `told`; both are files beside the pipes.
fn mps_daemon(settings: &Settings, folder: &Path) -> Result<Archive> {
    let recipe = "FROM scratch\nCOPY busybox /bin/busybox\nENV PATH=/bin\nRUN [\"/bin/busybox\", \"--install\", \"/bin\"]\n\
                  RUN printf '#!/bin/sh\\ncd \"$CUDA_MPS_PIPE_DIRECTORY\"\\nif [ $# = 0 ]; then read -r command; echo \"$command\" >> told; case \"$command\" in get_server_list) echo 42;; get_client_list*) cat clients;; esac; exit 0; fi\\ntouch control_lock nvidia-cuda-mps-control.pid && mkfifo log control_privileged control && exec sleep 1000000 <> control\\n' \
                  > /bin/nvidia-cuda-mps-control && chmod 755 /bin/nvidia-cuda-mps-control\n";
    kept(
        settings,
        MPS_DAEMON,
        recipe,
        Path::new("/bin"),
        folder.join("mps-control-daemon-commands.tar"),
    )
}

/// Builds an image unless its archive is already there.
pub fn kept(
    settings: &Settings,
    name: &str,
    recipe: &str,
    context: &Path,
    file: PathBuf,
) -> Result<Archive> {
    if !file.exists() {
        step(&format!("building the image {name}"));
        let store = Store::new(settings)?;
        let recipe_file = store.folder.join("Containerfile");
        fs::write(&recipe_file, recipe)?;
        store.build(name, command("true").arg("-f").arg(&recipe_file).arg(context), &file)?;
    }
    Ok(Archive { name: name.to_owned(), file })
}

/// A temporary image store of buildah's, removed when dropped.
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// An empty store in a folder of its own.
    pub fn new(settings: &Settings) -> Result<Self> {
        remove_abandoned(&settings.cache);
        let folder = settings.cache.join(format!("{STORE_PREFIX}{}", std::process::id()));
        empty_folder(&folder)?;
        Ok(Self { folder })
    }

    /// `buildah` on this store.
    pub fn buildah(&self, verb: &str) -> Command {
        let mut buildah = command("buildah");
        buildah.env("HOME", &self.folder).arg("--storage-driver").arg("vfs");
        buildah
            .arg("--root")
            .arg(self.folder.join("root"))
            .arg("--runroot")
            .arg(self.folder.join("run"));
        buildah.arg(verb);
        buildah
    }

    /// Builds with the arguments of `with` and writes the image to `file`, complete or not at all.
    pub fn build(&self, name: &str, with: &Command, file: &Path) -> Result<()> {
        run(self
            .buildah("bud")
            .args(["--isolation", "chroot", "-q", "-t", name])
            .args(with.get_args()))?;
        self.save(name, file)
    }

    /// Writes an image of this store to `file`, complete or not at all.
    pub fn save(&self, name: &str, file: &Path) -> Result<()> {
        let scratch = file.with_extension("new");
        run(self
            .buildah("push")
            .args(["-q", name])
            .arg(format!("oci-archive:{}:{name}", scratch.display())))?;
        fs::rename(&scratch, file).with_context(|| format!("cannot keep {}", file.display()))
    }
}

/// Removes the stores of programs that were killed.
fn remove_abandoned(cache: &Path) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner =
            name.strip_prefix(STORE_PREFIX).and_then(|pid| Pid::from_raw(pid.parse().ok()?));
        if owner.is_some_and(|pid| !alive(pid)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busybox_is_in_the_registry_of_the_shipped_manifests() {
        assert_eq!(BUSYBOX.split_once('/').map(|(host, _)| host), Some(REGISTRY));
    }

    #[test]
    fn an_images_program_is_the_last_part_of_its_name_without_the_tag() {
        assert_eq!(program("registry.k8s.io/coredns/coredns:v1.13.1"), "coredns");
        assert_eq!(program("registry.k8s.io/pause:3.10.2"), "pause");
    }
}
