//! The files of a control-plane node: kube-scheduler's manifest, and the folder of what is installed.
//!
//! Invariant: the kubelet and kube-scheduler, which read them at any moment, see each file as it was or as it is to be.
//! The kubelet runs every file in the folder of its manifests, so nothing else is ever written there.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::certificates::FILES;
use super::manifest::{CURRENT, FOLDER, State, without_us};
use crate::args::scheduler;

/// What the names of installed configurations begin with.
const CONFIGURATION: &str = "kube-scheduler-config-";
/// What the names of files end with before they have their place.
const NEW: &str = ".new";
/// kube-scheduler runs as its owner.
const KUBECONFIG: &str = "/etc/kubernetes/scheduler.conf";
/// Where the manifest of before stays, where others have changed it since.
const BEFORE: &str = "/etc/kubernetes/kube-scheduler.yaml.before-plimsoll";

/// A node's files.
pub(super) struct Files {
    root: PathBuf,
    /// The manifest's path.
    pub(super) path: PathBuf,
    /// Its text.
    pub(super) manifest: String,
}

impl Files {
    pub(super) fn of(flags: &scheduler::ControlPlaneNode) -> Result<Self> {
        let path = below(&flags.root, &flags.manifest);
        let name = path.display();
        let manifest = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                bail!("{name}: no such file; is this a kubeadm control-plane node? See --manifest")
            }
            read => read.with_context(|| format!("{name} cannot be read; run this as root"))?,
        };
        Ok(Self { root: flags.root.clone(), path, manifest })
    }

    /// Where a path of the node is seen here.
    pub(super) fn at(&self, path: &str) -> PathBuf {
        below(&self.root, Path::new(path))
    }

    /// The manifest as it was before `enable`.
    pub(super) fn backup(&self) -> PathBuf {
        self.at(FOLDER).join("kube-scheduler.yaml.before")
    }

    /// The installed certificate's file of this name; empty where there is none.
    pub(super) fn certificate(&self, file: &str) -> Vec<u8> {
        fs::read(self.at(FOLDER).join(file)).unwrap_or_default()
    }

    /// Whether this configuration is in force, at this path, with these files of the certificate.
    pub(super) fn has(&self, path: &str, configuration: &str, certificate: &[Vec<u8>]) -> bool {
        let is_linked =
            fs::read_link(self.at(CURRENT)).is_ok_and(|it| Some(it.as_os_str()) == name_of(path));
        let is_there = fs::read_to_string(self.at(path)).ok().as_deref() == Some(configuration);
        let is_its = |(name, content): (&&str, &Vec<u8>)| self.certificate(name) == *content;
        is_linked && is_there && FILES.iter().zip(certificate).all(is_its)
    }

    /// Installs this configuration at this path, the certificate's files, of which there may be none, and the manifest.
    pub(super) fn install(
        &self,
        manifest: &str,
        path: &str,
        configuration: &str,
        certificate: &[Vec<u8>],
    ) -> Result<()> {
        let of_manifest = fs::metadata(&self.path)?;
        fs::create_dir_all(self.at(FOLDER))?;
        if !matches!(State::of(&self.manifest), State::Enabled(_)) {
            let before = without_us(&self.manifest);
            self.put(&self.backup(), before.as_bytes(), Some(&of_manifest), of_manifest.mode())?;
        }
        let owner = fs::metadata(self.at(KUBECONFIG)).ok();
        for (name, content) in FILES.iter().zip(certificate) {
            self.put(&self.at(FOLDER).join(name), content, owner.as_ref(), 0o600)?;
        }
        self.put(&self.at(path), configuration.as_bytes(), None, 0o644)?;
        self.replace_manifest(manifest)?;
        // After the manifest: where this is interrupted, the next run finds the former link, and does the rest. In one
        // step: kubeadm may have named the link in the manifest, and kube-scheduler may start at any moment.
        let link = self.place_of(&self.at(CURRENT));
        remove(&link)?;
        symlink(name_of(path).unwrap_or_default(), &link)?;
        fs::rename(&link, self.at(CURRENT))?;
        // Only now: until the lines above, kube-scheduler's pod may still need the former one.
        for former in self.configurations()?.iter().filter(|it| **it != self.at(path)) {
            remove(former)?;
        }
        if certificate.is_empty() { self.remove_certificate() } else { Ok(()) }
    }

    /// Gives the manifest this text, which has none of our lines, and removes what was installed. Returns what to tell.
    pub(super) fn restore(&self, manifest: &str) -> Result<String> {
        let of_kubeadm = State::of(&self.manifest) == State::OfKubeadm;
        let before = fs::read_to_string(self.backup()).ok();
        fs::create_dir_all(self.at(FOLDER))?;
        self.replace_manifest(manifest)?;
        let told = match before {
            // Of what kubeadm wrote there is no copy from before.
            None if !of_kubeadm => "there is no copy of the manifest as it was before".to_owned(),
            Some(before) if !of_kubeadm && before != manifest => {
                fs::rename(self.backup(), self.at(BEFORE))?;
                format!(
                    "changes that others made to the manifest since were kept. Before it all: {BEFORE}"
                )
            }
            _ => "the manifest is as it was before".to_owned(),
        };
        self.remove_folder()?;
        Ok(told)
    }

    /// Removes what was installed.
    pub(super) fn remove_folder(&self) -> Result<()> {
        for file in self.configurations()?.iter().chain(&[self.at(CURRENT), self.backup()]) {
            remove(file)?;
        }
        self.remove_certificate()?;
        match fs::remove_dir(self.at(FOLDER)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("{FOLDER} is not removed"))
            }
            _ => Ok(()),
        }
    }

    fn remove_certificate(&self) -> Result<()> {
        Ok(FILES.iter().try_for_each(|name| remove(&self.at(FOLDER).join(name)))?)
    }

    /// The installed configurations, and what runs that were interrupted have left.
    fn configurations(&self) -> Result<Vec<PathBuf>> {
        let Ok(entries) = fs::read_dir(self.at(FOLDER)) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with(CONFIGURATION) || name.ends_with(NEW) {
                found.push(self.at(FOLDER).join(name));
            }
        }
        Ok(found)
    }

    fn replace_manifest(&self, text: &str) -> Result<()> {
        let of_manifest = fs::metadata(&self.path)?;
        self.put(&self.path, text.as_bytes(), Some(&of_manifest), of_manifest.mode())
    }

    /// Gives a file this content, in one step.
    fn put(&self, path: &Path, content: &[u8], owner: Option<&Metadata>, mode: u32) -> Result<()> {
        let write = |new: &Path| -> io::Result<()> {
            remove(new)?;
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(new)?;
            file.write_all(content)?;
            if let Some(owner) = owner {
                chown(new, Some(owner.uid()), Some(owner.gid()))?;
            }
            file.set_permissions(PermissionsExt::from_mode(mode))?;
            // Or a loss of power may leave an empty one.
            file.sync_all()?;
            fs::rename(new, path)
        };
        let new = self.place_of(path);
        let written = match write(&new) {
            // The manifest may have a file system of its own. The kubelet reads no file whose name begins with a dot.
            Err(error) if error.kind() == ErrorKind::CrossesDevices => {
                let name = new.file_name().unwrap_or_default().to_string_lossy();
                remove(&new).and_then(|()| write(&path.with_file_name(format!(".{name}"))))
            }
            written => written,
        };
        written.with_context(|| format!("cannot write {}", path.display()))
    }

    /// Where a file or a link is made that is to be at this path.
    fn place_of(&self, path: &Path) -> PathBuf {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.at(FOLDER).join(format!("{name}{NEW}"))
    }
}

/// Where an absolute path of a node is, whose file system is mounted there.
pub(super) fn below(root: &Path, path: &Path) -> PathBuf {
    path.strip_prefix("/").map_or_else(|_| path.to_owned(), |inner| root.join(inner))
}

fn name_of(path: &str) -> Option<&OsStr> {
    Path::new(path).file_name()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
