//! Flags of the commands about the kube-scheduler of a kubeadm control plane.

use std::net::Ipv6Addr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use super::access::{Connection, node_name};
use super::namespace;

#[derive(Debug, Subcommand)]
pub(crate) enum SchedulerCommand {
    /// Have this node's kube-scheduler call the extender.
    ///
    /// Run it as root on each control-plane node, after Plimsoll was installed; again after an upgrade of Plimsoll and
    /// after new certificates: it changes only what is out of date. It installs the configuration in
    /// /etc/kubernetes/plimsoll, with kube-scheduler's certificate unless the extender asks for none, and names it in
    /// the manifest, where its lines are marked; all others stay as they are. Where the Secrets are not there, it makes
    /// them, as `certificates` does.
    ///
    /// kubeadm upgrade writes the manifest anew, out of the ConfigMap kube-system/kubeadm-config. Once it has run on
    /// the last control-plane node, it names the configuration there too.
    Enable(Enable),
    /// Undo `enable` on this node: restore the manifest, and remove what was installed.
    ///
    /// The configuration goes out of the ConfigMap kube-system/kubeadm-config first.
    Disable(Disable),
    /// Tell whether this node's kube-scheduler calls the extender, and whether kubeadm upgrade keeps it so.
    ///
    /// Exit status: 0 it does, 1 it does not or its certificate has expired, 2 that cannot be told.
    Status(Status),
    /// Make the certificates by which extender and kube-scheduler know each other, where there are none.
    ///
    /// They are in the Secrets scheduler-extender-tls and kube-scheduler-tls of Plimsoll's namespace (ca.crt, tls.crt
    /// and tls.key), last for 365 days, and nothing renews them. The key of their CA is not kept. It needs no root.
    ///
    /// The extender does not start without; with the value extender.tls=false it asks for none. It follows its
    /// Secret. A control-plane node has a copy of kube-scheduler's: after a renewal run `enable` there, from a timer
    /// for instance.
    Certificates(Certificates),
}

/// Which node, and what on it.
#[derive(Debug, clap::Args)]
pub(crate) struct ControlPlaneNode {
    /// Where Plimsoll is installed.
    #[arg(long, default_value = "plimsoll", value_name = "NAME", value_parser = namespace)]
    pub(crate) namespace: String,

    /// kube-scheduler's static pod manifest.
    #[arg(
        long,
        default_value = "/etc/kubernetes/manifests/kube-scheduler.yaml",
        value_name = "FILE"
    )]
    pub(crate) manifest: PathBuf,

    /// kubectl's configuration.
    #[arg(long, default_value = "/etc/kubernetes/admin.conf", value_name = "FILE")]
    pub(crate) kubeconfig: String,

    /// This node's name [default: as its kubelet says, asked with kubectl]
    #[arg(long, value_name = "NAME", value_parser = node_name)]
    pub(crate) node: Option<String>,

    /// Leave the ConfigMap kube-system/kubeadm-config alone. Then run `enable` after each kubeadm upgrade.
    #[arg(long)]
    pub(crate) no_kubeadm_config: bool,

    /// Where this node's file system is mounted.
    #[arg(long, default_value = "/", value_name = "FOLDER")]
    pub(crate) root: PathBuf,
}

/// Flags of `scheduler enable`.
#[derive(Debug, Parser)]
#[command(after_help = ENABLE_EXAMPLES)]
pub(crate) struct Enable {
    /// Show what would change, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// The KubeSchedulerConfiguration to install, as `scheduler-config` writes it [default: the one for the policy that
    /// is shipped]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Address of the extender that kube-scheduler can reach [default: the ClusterIP of the Service scheduler-extender]
    #[arg(long, value_name = "HOST", value_parser = host)]
    pub(crate) extender_host: Option<String>,

    /// Have kube-scheduler call the extender over TLS with certificates [default: as the Deployment scheduler-extender
    /// says]
    #[arg(long, conflicts_with = "plain_http")]
    pub(crate) tls: bool,

    /// Have it call without.
    #[arg(long)]
    pub(crate) plain_http: bool,

    #[command(flatten)]
    pub(crate) node: ControlPlaneNode,
}

const ENABLE_EXAMPLES: &str = "\
Examples:
  # As root on a control-plane node
  plimsoll scheduler enable --dry-run
  plimsoll scheduler enable

  # For another policy
  plimsoll scheduler-config --policy policy.yaml --gpu > kube-scheduler-config.yaml
  plimsoll scheduler enable --config kube-scheduler-config.yaml";

/// Flags of `scheduler disable`.
#[derive(Debug, Parser)]
pub(crate) struct Disable {
    /// Show what would change, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) node: ControlPlaneNode,
}

/// Flags of `scheduler status`.
#[derive(Debug, Parser)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) node: ControlPlaneNode,
}

/// Flags of `scheduler certificates`.
#[derive(Debug, Parser)]
#[command(after_help = CERTIFICATES_EXAMPLES)]
pub(crate) struct Certificates {
    /// Make new ones in place of those that are there.
    ///
    /// Then run `enable` on each control-plane node. Until the extender has its own, within two minutes, GPU pods wait.
    #[arg(long)]
    pub(crate) new: bool,

    /// Show what would be made, and make nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Where Plimsoll is installed.
    #[arg(long, default_value = "plimsoll", value_name = "NAME", value_parser = namespace)]
    pub(crate) namespace: String,

    #[command(flatten)]
    pub(crate) connection: Connection,
}

const CERTIFICATES_EXAMPLES: &str = "\
Examples:
  # Before Plimsoll is installed
  plimsoll scheduler certificates

  # Once a year
  plimsoll scheduler certificates --new
  plimsoll scheduler enable         # on each control-plane node";

/// A host name or an IP address, as it stands in a URL.
pub(crate) fn host(text: &str) -> Result<String, String> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    if text.parse::<Ipv6Addr>().is_ok() {
        Ok(format!("[{text}]"))
    } else if !text.is_empty() && text.bytes().all(is_of_name) {
        Ok(text.to_owned())
    } else {
        let expected = "expected a host name or an IP address, without port, brackets or scheme";
        Err(expected.to_owned())
    }
}
