//! Owns Plimsoll's own programs before they reach the cluster: compiled by cargo, packed with the shipped Dockerfile.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result};

use super::binaries::empty_folder;
use super::images::{Archive, REGISTRY, Store};
use crate::command::{command, run};
use crate::progress::step;
use crate::settings::{Profile, Settings};

/// The programs. Each name is that of a package, a binary, a target of the Dockerfile and an image.
pub const PROGRAMS: [&str; 4] =
    ["scheduler-extender", "annotator", "node-exporter-plus", "gpushare-device-plugin"];

/// The Debian packages whose libraries a Rust program needs.
const RUNTIME_PACKAGES: [&str; 2] = ["libc6", "libgcc-s1"];

/// What cargo has compiled.
#[derive(Debug, Clone)]
pub struct Built {
    /// The folder of the programs.
    pub folder: PathBuf,
    /// The stand-in for NVIDIA's driver library, a file.
    pub driver: PathBuf,
}

/// A further program in the exporter's image.
pub(super) const BESIDE_THE_EXPORTER: &str = "gpu-probe";
/// The exporter's package, which a release builds by a script of its own.
const EXPORTER: [&str; 2] = ["--package", "node-exporter-plus"];

/// The packages that one `cargo build` compiles.
const BUILD: [&str; 4] =
    ["scheduler-extender", "annotator", "gpushare-device-plugin", "plimsoll-nvml-standin"];

/// Compiles the programs and the stand-in driver library.
pub fn compile(settings: &Settings) -> Result<Built> {
    step(&format!("compiling Plimsoll (profile {})", settings.profile));
    match settings.profile {
        Profile::Test => {
            cargo(settings, &["test", "--locked", "--workspace", "--no-run"])?;
            // A test needs it as a file, so `cargo test` does not put it there.
            cargo(settings, &["build", "--locked", "--package", "plimsoll-nvml-standin"])?;
        }
        Profile::Dev => {
            cargo(settings, &[&["build", "--locked"], &packages()[..], &EXPORTER].concat())?
        }
        Profile::Release => {
            cargo(settings, &[&["build", "--locked", "--release"], &packages()[..]].concat())?;
            run(builder(settings, "scripts/build-exporter.sh").arg(built_in(settings)))?;
        }
    }
    let folder = built_in(settings);
    Ok(Built { driver: folder.join("libplimsoll_nvml_standin.so"), folder })
}

/// Compiles the exporter's example `day`, which writes a sample file that holds a day, and returns its path.
pub fn sample_file_writer(settings: &Settings) -> Result<PathBuf> {
    let day = ["--package", "node-exporter-plus", "--example", "day"];
    cargo(settings, &[&like_the_programs(settings), &day[..]].concat())?;
    Ok(built_in(settings).join("examples/day"))
}

/// Compiles `plimsoll`, the operators' command, the first time, and returns its path.
pub fn operators_command(settings: &Settings) -> Result<PathBuf> {
    static COMPILED: OnceLock<()> = OnceLock::new();
    let path = built_in(settings).join("plimsoll");
    if COMPILED.get().is_some() {
        return Ok(path);
    }
    match settings.profile {
        // `make test` has built it.
        Profile::Test => {
            cargo(settings, &["test", "--quiet", "--locked", "--workspace", "--no-run"])?
        }
        _ => cargo(
            settings,
            &[&like_the_programs(settings), &["--package", "plimsoll-cli"][..]].concat(),
        )?,
    }
    COMPILED.get_or_init(|| ());
    Ok(path)
}

fn packages() -> Vec<&'static str> {
    BUILD.iter().flat_map(|package| ["--package", package]).collect()
}

fn like_the_programs(settings: &Settings) -> Vec<&'static str> {
    let mut build = vec!["build", "--quiet", "--locked"];
    if settings.profile == Profile::Release {
        build.push("--release");
    }
    build
}

fn cargo(settings: &Settings, arguments: &[&str]) -> Result<()> {
    run(builder(settings, "cargo").args(arguments)).map(drop)
}

/// A command that compiles, with its progress on standard error.
///
/// Cargo sets `CARGO_PKG_*` and `CARGO_MANIFEST_*` for this process. They are removed for the command: build scripts
/// that depend on them would otherwise be compiled again by each of the two.
pub(super) fn builder(settings: &Settings, program: &str) -> Command {
    let mut build = command(program);
    build.current_dir(&settings.sources).stderr(Stdio::inherit());
    let inherited = ["CARGO_PKG_", "CARGO_MANIFEST_"];
    for (name, _) in std::env::vars_os() {
        if inherited.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            build.env_remove(name);
        }
    }
    build
}

fn built_in(settings: &Settings) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| settings.sources.join("target"), PathBuf::from);
    target.join(if settings.profile == Profile::Release { "release" } else { "debug" })
}

/// Packs each program with the shipped Dockerfile, on the C library of this host.
pub fn pack(settings: &Settings, built: &Built) -> Result<Vec<Archive>> {
    pack_as(settings, &built.folder, env!("CARGO_PKG_VERSION"))
}

/// As [`pack`], the programs of this folder, with this tag.
pub(super) fn pack_as(settings: &Settings, programs: &Path, tag: &str) -> Result<Vec<Archive>> {
    step("building the images from deploy/Dockerfile");
    let context = settings.state.join("images");
    empty_folder(&context.join("bin"))?;
    for program in PROGRAMS.into_iter().chain([BESIDE_THE_EXPORTER]) {
        let source = programs.join(program);
        fs::copy(&source, context.join("bin").join(program))
            .with_context(|| format!("cannot copy {}", source.display()))?;
    }
    runtime(&context)?;
    fs::create_dir_all(context.join("doc"))?;
    fs::copy(settings.sources.join("LICENSE"), context.join("doc/LICENSE"))
        .context("cannot copy LICENSE")?;
    let store = Store::new(settings)?;
    PROGRAMS.iter().map(|program| image(settings, &store, &context, program, tag)).collect()
}

fn image(
    settings: &Settings,
    store: &Store,
    context: &Path,
    program: &str,
    tag: &str,
) -> Result<Archive> {
    let name = format!("{REGISTRY}/{program}:{tag}");
    let file = context.join(format!("{program}-{tag}.tar"));
    let mut arguments = command("buildah");
    arguments.arg("-f").arg(settings.sources.join("deploy/Dockerfile")).args(["--target", program]);
    arguments.arg(context);
    store.build(&name, &arguments, &file)?;
    Ok(Archive { name, file })
}

/// Copies what the programs run on into the folder `runtime` of an image's context: this host's C library, against
/// which they were linked.
pub fn runtime(context: &Path) -> Result<()> {
    let listed = run(command("dpkg-query").arg("-L").args(RUNTIME_PACKAGES))?;
    let root = context.join("runtime");
    for library in listed.lines().filter(|path| is_library(path)) {
        let target = root.join(library.trim_start_matches('/'));
        fs::create_dir_all(target.parent().unwrap_or(&root))?;
        run(command("cp").args(["-a", library]).arg(&target))?;
    }
    Ok(())
}

/// Shared libraries and the loader, without the character set converters.
fn is_library(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.contains(".so") && !path.contains("/gconv/") && Path::new(path).is_file()
}
