//! Owns where everything lies (state, cache, sources) and the addresses of the cluster's machines.
//!
//! The names of network namespaces and links all start with `plimsoll`, and every file lies below one state folder:
//! what carries neither is not ours to remove.

use std::env;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

/// The release that `kubeadm` installs; pinned by `testing/e2e/go/kubernetes/go.mod`.
pub const KUBERNETES: &str = "v1.36.2";

/// The network that joins the nodes and this machine; it leads nowhere else.
pub const LAN_PREFIX: u8 = 24;
/// This machine's own address on that network.
pub const HOST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 209, 255, 1);
/// Every pod of the cluster has an address in here.
pub const POD_RANGE: &str = "10.209.0.0/16";
/// Every Service of the cluster has an address in here.
pub const SERVICE_RANGE: &str = "10.210.0.0/16";

/// By how much longer a machine has been up than this host: what keeps a day of readings has room for it from the start.
pub const UPTIME: Duration = Duration::from_secs(2 * 86_400);

/// One machine of the cluster, before it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// The Kubernetes node name, which is also the host name.
    pub name: &'static str,
    /// Distinguishes the machine in addresses and GPU UUIDs.
    pub number: u8,
    /// Whether etcd, the API server, the controllers and the scheduler run here.
    pub control_plane: bool,
}

/// The machines of the cluster: the first one is also the control plane.
pub const MACHINES: [Machine; 2] = [
    Machine { name: "node-a", number: 1, control_plane: true },
    Machine { name: "node-b", number: 2, control_plane: false },
];

impl Machine {
    /// The address on the cluster's network.
    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 209, 255, 10 + self.number)
    }

    /// The range of this machine's pods.
    pub fn pod_range(&self) -> String {
        format!("10.209.{}.0/24", self.number)
    }

    /// The name of the network namespace.
    pub fn network(&self) -> String {
        format!("plimsoll-{}", self.name)
    }

    /// The cgroup below which all its pods live, from the root of each hierarchy.
    pub fn cgroup(&self) -> String {
        format!("/plimsoll-cluster/{}", self.name)
    }
}

/// Where things lie on this machine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Everything that a running cluster writes; removed by `down`.
    pub state: PathBuf,
    /// Built programs and images; kept.
    pub cache: PathBuf,
    /// A folder of ready binaries instead of building them.
    pub ready_binaries: Option<PathBuf>,
    /// The root of this repository.
    pub sources: PathBuf,
    /// The cargo profile of Plimsoll's own programs.
    pub profile: String,
    /// This program, which is also each node's first process.
    pub program: PathBuf,
}

impl Settings {
    /// Reads `PLIMSOLL_CLUSTER_DIR`, `PLIMSOLL_CACHE`, `XDG_CACHE_HOME`, `HOME`, `E2E_BIN_DIR` and `E2E_PROFILE`.
    pub fn from_env() -> Result<Self> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
        Ok(Self {
            state: folder("PLIMSOLL_CLUSTER_DIR")
                .unwrap_or_else(|| "/var/lib/plimsoll-cluster".into()),
            cache: cache(),
            ready_binaries: folder("E2E_BIN_DIR"),
            sources: sources.context("the crate does not lie two folders deep")?.to_path_buf(),
            profile: env::var("E2E_PROFILE").unwrap_or_else(|_| "release".into()),
            program: env::current_exe().context("cannot tell where this program lies")?,
        })
    }

    /// The administrator's kubeconfig of the running cluster.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.join("kubeconfig")
    }

    /// The folder of one machine.
    pub fn machine(&self, name: &str) -> PathBuf {
        self.state.join(name)
    }
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
