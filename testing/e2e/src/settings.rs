//! Owns where everything lies (state, cache, sources) and what a caller can choose, from environment variables.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// What a caller can choose.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Everything that a running cluster writes; removed by `down`.
    pub state: PathBuf,
    /// Built programs and images; kept.
    pub cache: PathBuf,
    /// The wanted Kubernetes release: a pinned version, `oldest` or `newest`. `None` means the newest, or the one of
    /// the running cluster.
    pub kubernetes: Option<String>,
    /// A folder of ready Kubernetes programs, used instead of building them.
    pub ready_binaries: Option<PathBuf>,
    /// The root of this repository.
    pub sources: PathBuf,
    /// How Plimsoll's own programs are compiled.
    pub profile: Profile,
    /// The executable `plimsoll-cluster`, which is also each node's process 1.
    pub program: PathBuf,
}

/// How Plimsoll's own programs are compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// `dev`, by a `cargo build` of the programs alone: the shortest way from a fresh clone to a cluster.
    Dev,
    /// `test`: the programs that `make test` has compiled for its own tests, in the profile `dev`.
    Test,
    /// `release`, as the published images hold them.
    Release,
}

impl Profile {
    fn parse(name: &str) -> Result<Self> {
        match name {
            "" | "dev" => Ok(Self::Dev),
            "test" => Ok(Self::Test),
            "release" => Ok(Self::Release),
            other => bail!("E2E_PROFILE={other} is none of dev, test and release"),
        }
    }
}

impl std::fmt::Display for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Dev => "dev",
            Self::Test => "test",
            Self::Release => "release",
        })
    }
}

impl Settings {
    /// Reads `KUBERNETES`, `PLIMSOLL_CLUSTER_DIR`, `PLIMSOLL_CACHE`, `XDG_CACHE_HOME`, `HOME`, `E2E_BIN_DIR` and
    /// `E2E_PROFILE`. An empty variable counts as unset.
    pub fn from_env() -> Result<Self> {
        Ok(Self {
            state: folder("PLIMSOLL_CLUSTER_DIR")
                .unwrap_or_else(|| "/var/lib/plimsoll-cluster".into()),
            cache: cache(),
            kubernetes: env::var("KUBERNETES").ok().filter(|release| !release.is_empty()),
            ready_binaries: folder("E2E_BIN_DIR"),
            sources: sources()?,
            profile: Profile::parse(&env::var("E2E_PROFILE").unwrap_or_default())?,
            program: env::current_exe().context("cannot tell where this program lies")?,
        })
    }

    /// The administrator's kubeconfig of the running cluster.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.join("kubeconfig")
    }

    /// The folder of one node, named by the node.
    pub fn node(&self, name: &str) -> PathBuf {
        self.state.join(name)
    }
}

/// The root of this repository.
pub fn sources() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.map(Path::to_path_buf).context("the crate does not lie two folders below the root")
}

fn folder(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn cache() -> PathBuf {
    folder("PLIMSOLL_CACHE")
        .or_else(|| folder("XDG_CACHE_HOME").map(|base| base.join("plimsoll")))
        .or_else(|| folder("HOME").map(|home| home.join(".cache/plimsoll")))
        .unwrap_or_else(|| "/var/cache/plimsoll".into())
}
