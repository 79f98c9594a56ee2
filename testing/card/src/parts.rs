//! Owns what a run needs in one folder: Kubernetes' and Plimsoll's programs, the images, and files of this checkout. It
//! is made of links here, and packed for machines without network and toolchain.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use e2e::build::binaries::empty_folder;
use e2e::build::images::{self, PAUSE};
use e2e::build::programs;
use e2e::command::{command, run};
use e2e::progress::{line, step};
use e2e::{Cluster, Settings};
use serde_json::Value;

/// The image of the program in pods.
pub(crate) const CLIENT_IMAGE: &str = "plimsoll.invalid/card-client:1";
/// Kubernetes' programs of a node and its control plane.
const KUBERNETES: [&str; 9] = [
    "etcd",
    "kube-apiserver",
    "kube-scheduler",
    "kube-controller-manager",
    "kubelet",
    "kubectl",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
];
/// Plimsoll's.
const PROGRAMS: [&str; 5] = [
    "scheduler-extender",
    "annotator",
    "node-exporter-plus",
    "gpushare-device-plugin",
    "gpu-probe",
];
/// Of this crate: its program, and the one in pods.
const OWN: [&str; 2] = ["plimsoll-card", "card-client"];
/// Files of the checkout that the node is set up by, and their names here.
const FILES: [(&str, &str); 4] = [
    ("deploy/chart/policies/shipped.yaml", "policy.yaml"),
    ("deploy/tests/rendered/mps-control-daemon.yaml", "mps-control-daemon.yaml"),
    ("deploy/chart/kube-scheduler/shipped.yaml", "kube-scheduler-config.yaml"),
    ("testing/card/serve.py", "serve.py"),
];
/// The largest file of a bundle, for split.
const LARGEST: &str = "60M";
/// The script of a bundle: unpacks once, then runs with the flags that it is given.
const SCRIPT: &str = r#"#!/bin/sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
unpacked=${UNPACKED:-/var/tmp/plimsoll-card-parts}
if [ ! -e "$unpacked/complete" ]; then
    mkdir -p "$unpacked"
    cat "$here"/parts.txz.* | "$here/busybox" xzcat | "$here/busybox" tar -xf - -C "$unpacked"
    touch "$unpacked/complete"
fi
exec "$unpacked/bin/plimsoll-card" run --parts "$unpacked" "$@"
"#;

/// The folder: `bin`, `lib`, `images` and `files`.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    pub(crate) folder: PathBuf,
}

impl Parts {
    /// A folder that [`prepare`] or a bundle has made.
    pub(crate) fn at(folder: &Path) -> Result<Self> {
        let folder = std::path::absolute(folder)?;
        let found = folder.join("bin/plimsoll-card").exists();
        ensure!(found, "{} holds no parts: `plimsoll-card bundle` packs them", folder.display());
        Ok(Self { folder })
    }

    pub(crate) fn bin(&self, program: &str) -> PathBuf {
        self.folder.join("bin").join(program)
    }

    /// A file of the checkout.
    pub(crate) fn text(&self, name: &str) -> Result<String> {
        let path = self.folder.join("files").join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// The first YAML document of such a file that is of a kind.
    pub(crate) fn yaml(&self, name: &str, kind: &str) -> Result<Value> {
        first_of(kind, &self.text(name)?).with_context(|| format!("in {name}"))
    }

    fn link(&self, source: &Path, target: &str) -> Result<()> {
        ensure!(source.exists(), "{} is missing", source.display());
        symlink(source, self.folder.join(target))
            .with_context(|| format!("cannot link {}", source.display()))
    }
}

/// The first YAML document of a text that is of a kind.
pub(crate) fn first_of(kind: &str, text: &str) -> Result<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)?;
    let found = documents.into_iter().find(|document| document["kind"] == kind);
    found.with_context(|| format!("there is no {kind}"))
}

/// Builds what is missing, and links it into `target/card/parts`.
pub(crate) fn prepare() -> Result<Parts> {
    let settings = Settings::from_env()?;
    let (kubernetes, archives) = Cluster::build(&settings)?;
    let built = programs::compile(&settings)?;
    let own = std::env::current_exe()?.parent().context("a program lies in a folder")?.to_owned();
    let folder = settings.sources.join("target/card/parts");
    empty_folder(&folder)?;
    let parts = Parts { folder };
    for part in ["bin", "lib", "images", "files"] {
        fs::create_dir(parts.folder.join(part))?;
    }
    let of_kubernetes = KUBERNETES.iter().map(|name| (kubernetes.join(name), *name));
    let of_plimsoll = PROGRAMS.iter().map(|name| (built.folder.join(name), *name));
    let of_this = OWN.iter().map(|name| (own.join(name), *name));
    let of_debian = ["runc", "busybox"].iter().map(|name| (on_path(name), *name));
    for (source, name) in of_kubernetes.chain(of_plimsoll).chain(of_this).chain(of_debian) {
        parts.link(&source, &format!("bin/{name}"))?;
    }
    for (file, name) in FILES {
        parts.link(&settings.sources.join(file), &format!("files/{name}"))?;
    }
    parts.link(&built.driver, "lib/libplimsoll_nvml_standin.so")?;
    parts.link(&seccomp()?, "lib/libseccomp.so.2")?;
    let pause = archives.iter().find(|archive| archive.name == PAUSE).context("no pause image")?;
    parts.link(&pause.file, "images/pause.tar")?;
    parts.link(&client_image(&settings, &own)?, "images/client.tar")?;
    // Signs the tokens of a node that lives for minutes and is reached from this machine alone.
    run(command("openssl")
        .args(["genrsa", "-out"])
        .arg(parts.folder.join("files/tokens.key"))
        .arg("2048"))?;
    let commit = run(command("git")
        .args(["describe", "--always", "--dirty"])
        .current_dir(&settings.sources))
    .unwrap_or_default();
    fs::write(parts.folder.join("files/commit"), commit.trim())?;
    Ok(parts)
}

/// Packs the parts into files of a bounded size, with a script that unpacks and runs them.
pub(crate) fn bundle(folder: &Path) -> Result<()> {
    let parts = prepare()?;
    empty_bundle(folder)?;
    step("packing");
    let pack = format!(
        "set -o pipefail; tar -C {} -chf - . | xz -T0 | split -b {LARGEST} - {}/parts.txz.",
        parts.folder.display(),
        folder.display()
    );
    run(command("bash").args(["-c", &pack]))?;
    fs::copy(parts.bin("busybox"), folder.join("busybox"))?;
    let script = folder.join("run");
    fs::write(&script, SCRIPT)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    line(&run(command("ls").arg("-l").arg(folder))?);
    Ok(())
}

/// Creates the folder. What is there already is not ours to remove.
fn empty_bundle(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut entries = fs::read_dir(folder)?;
    ensure!(entries.next().is_none(), "{} is not empty: name another folder", folder.display());
    Ok(())
}

/// The program in pods, with the C library that it runs on.
fn client_image(settings: &Settings, own: &Path) -> Result<PathBuf> {
    let context = settings.sources.join("target/card/image");
    empty_folder(&context)?;
    fs::copy(own.join("card-client"), context.join("card-client"))?;
    programs::runtime(&context)?;
    let recipe = format!(
        "FROM scratch\nCOPY runtime /\nCOPY card-client /card-client\n\
         ENV LD_LIBRARY_PATH={}\nENTRYPOINT [\"/card-client\"]\n",
        crate::gpu::LIBRARIES
    );
    let file = context.join("client.tar");
    Ok(images::kept(settings, CLIENT_IMAGE, &recipe, &context, file)?.file)
}

/// A program of Debian's.
fn on_path(name: &str) -> PathBuf {
    let folders = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(Path::new);
    let found = folders.iter().map(|folder| folder.join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| PathBuf::from(name))
}

/// The library that runc needs and a small machine lacks.
fn seccomp() -> Result<PathBuf> {
    let listed = run(command("ldd").arg(on_path("runc")))?;
    let path = listed.lines().find_map(|line| line.trim().strip_prefix("libseccomp.so.2 => "));
    let path = path.and_then(|path| path.split_whitespace().next());
    Ok(PathBuf::from(path.context("runc does not name libseccomp.so.2")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_something_in_it_takes_no_bundle() {
        let folder = tempfile::tempdir().unwrap();
        empty_bundle(folder.path()).unwrap();
        fs::write(folder.path().join("mine"), "").unwrap();
        let error = empty_bundle(folder.path()).unwrap_err().to_string();
        assert!(error.contains("name another folder"), "{error}");
    }

    #[test]
    fn the_files_of_the_checkout_are_there() {
        let sources = e2e::settings::sources().unwrap();
        for (file, _) in FILES {
            assert!(sources.join(file).exists(), "{file}");
        }
    }
}
