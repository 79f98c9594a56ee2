//! The flags, each also an environment variable.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use cluster::{ConfigMapReference, ServicePort};
use daemon::follow::NamedFile;
use daemon::tls::Identity;
use rustls::pki_types::DnsName;
use settings::{ApiArgs, LoadArgs, NameArgs};

use crate::{annotator_client, field};

/// How long a Bind call may take: below the `httpTimeout` of kube-scheduler's entry, 5 s, since an answer that comes
/// too late is none.
pub const BIND_TIMEOUT: Duration = Duration::from_secs(4);

/// How long a pod must have waited before others are evicted for it: until then a pod that has ended may make room, and
/// kube-scheduler tries again several times.
pub const EVICT_AFTER: Duration = Duration::from_secs(10);

/// How many pods are evicted in a minute at most, so that a mistake shows before it costs many. Those that have to go
/// for one pod may be more, where none were evicted in the last minute.
pub const EVICTIONS_PER_MINUTE: usize = 10;

/// Answers kube-scheduler's extender calls: which nodes are not overloaded, which are best, and on
/// which GPU a pod goes.
///
/// kube-scheduler needs two entries under `extenders` in its KubeSchedulerConfiguration, both with
/// `nodeCacheCapable: true`: one for all pods at http://HOST:19100/load-aware (filter, prioritize,
/// preempt), and one for GPU pods at http://HOST:19100/gpushare-scheduler (filter, preempt, bind).
#[derive(Debug, Clone, Parser)]
#[command(version, about, long_about)]
pub struct Args {
    /// Where to answer kube-scheduler.
    #[arg(
        long,
        env = "PLIMSOLL_LISTEN_ADDRESS",
        default_value = "[::]:19100",
        value_name = "IP:PORT"
    )]
    pub listen_address: SocketAddr,

    /// Answer over TLS with the certificate in this file: PEM, followed by the CA's intermediate ones. Read again when
    /// it changes. Without it the port is plain HTTP and answers every client, so that any client that reaches it can
    /// have a pending GPU pod bound.
    #[arg(
        long,
        env = "PLIMSOLL_TLS_CERT_FILE",
        value_name = "FILE",
        requires_all = ["tls_key_file", "client_ca_file"]
    )]
    pub tls_cert_file: Option<PathBuf>,

    /// The key of --tls-cert-file: PEM, not encrypted. Read again when it changes.
    #[arg(long, env = "PLIMSOLL_TLS_KEY_FILE", value_name = "FILE", requires = "tls_cert_file")]
    pub tls_key_file: Option<PathBuf>,

    /// Answer only clients with a certificate that a CA in this file has signed: PEM. The CA should sign for
    /// kube-scheduler and this program alone. Read again when it changes.
    #[arg(long, env = "PLIMSOLL_CLIENT_CA_FILE", value_name = "FILE", requires = "tls_cert_file")]
    pub client_ca_file: Option<PathBuf>,

    /// Answer only clients whose certificate has one of these names, as a DNS name or as the common name of its
    /// subject. Without it, or empty: every client with a certificate of the CA. Replicas need the name of their own
    /// certificate among them.
    #[arg(
        long,
        env = "PLIMSOLL_CLIENT_NAMES",
        value_name = "NAMES",
        value_delimiter = ',',
        requires = "client_ca_file"
    )]
    pub client_names: Vec<String>,

    /// The DNS name in this certificate, by which replicas verify each other's: requests about GPUs are passed on over
    /// TLS, with this certificate as the client's. With --lease-name it must do for both.
    #[arg(
        long,
        env = "PLIMSOLL_REPLICA_SERVER_NAME",
        default_value = "scheduler-extender.plimsoll.svc",
        value_name = "NAME",
        value_parser = dns_name
    )]
    pub replica_server_name: DnsName<'static>,

    /// Where to answer, over plain HTTP, what only tells and changes nothing: the page /ui/, /v1, /explain, /shadow,
    /// /gpushare-scheduler/inspect and /api/v1/query. The port of --listen-address answers them too, without the page
    /// [default: nowhere else].
    #[arg(long, env = "PLIMSOLL_INSPECT_ADDRESS", value_name = "IP:PORT")]
    pub inspect_address: Option<SocketAddr>,

    /// DNS names by which clients reach --inspect-address, as behind an Ingress. Addresses, `localhost` and names under
    /// `.localhost` are always accepted, and from other pods those of the Service in --replica-server-name. Of another
    /// name a request is refused, so that no web site can read the page through the browser of someone who forwards the
    /// port.
    #[arg(
        long,
        env = "PLIMSOLL_INSPECT_HOST_NAMES",
        value_delimiter = ',',
        value_name = "NAME",
        requires = "inspect_address"
    )]
    pub inspect_host_names: Vec<String>,

    /// The load policy and its time zone.
    #[command(flatten)]
    pub load: LoadArgs,

    /// The ConfigMap that the policy file is from. With it, a policy or a shadow policy that is refused is also an
    /// event there, with the line and the field. Needs the right to get it.
    #[arg(
        long,
        env = "PLIMSOLL_POLICY_CONFIG_MAP",
        value_name = "NAMESPACE/NAME",
        value_parser = config_map
    )]
    pub policy_config_map: Option<ConfigMapReference>,

    /// A second policy that decides without effect, to try it on the real cluster: what would be
    /// otherwise is counted, and `plimsoll policy diff` shows it. Read again when it changes; the last
    /// good one stays. A missing or faulty file is logged, and does not keep this program from starting.
    #[arg(long, env = "PLIMSOLL_SHADOW_POLICY_FILE", value_name = "PATH")]
    pub shadow_policy_file: Option<PathBuf>,

    /// Let the node_hot_value annotation of crane's own annotator count against a node, beside the
    /// bindings that this program sees itself. For clusters where crane's components still run.
    #[arg(long, env = "PLIMSOLL_CRANE_HOT_VALUE")]
    pub crane_hot_value: bool,

    /// Where the annotator answers with the newest readings of all nodes and with what workloads were seen to use, such
    /// as `http://annotator.plimsoll.svc:19106`. Without it readings are those of annotations alone; and without it, or
    /// a day after its last answer, pods that no reading shows yet are estimated from their requests and limits.
    #[arg(long, env = "PLIMSOLL_LEARNED_USE_URL", value_name = "URL", value_parser = annotator_client::Url::parse)]
    pub learned_use_url: Option<annotator_client::Url>,

    /// Evict pods for a GPU pod that waits because nodes have enough GPU memory in all, but not on one GPU:
    /// kube-scheduler's own preemption does nothing then. With `--claims`, also for one whose ResourceClaim finds no
    /// room. Only pods of lower priority, through the Eviction API, so that PodDisruptionBudgets hold. Needs the right
    /// to create `pods/eviction`.
    #[arg(long = "evict-for-cards", env = "PLIMSOLL_EVICT_FOR_CARDS")]
    pub evict_for_gpus: bool,

    /// Move pods for a GPU pod that waits because what is free is spread over GPUs and nodes: evict the fewest pods
    /// whose successors fit elsewhere, by the GPUs, resources, taints and labels of all nodes. Only pods of lower
    /// priority, and pods as important with the annotation `cluster-autoscaler.kubernetes.io/safe-to-evict: "true"`.
    /// Needs the right to create `pods/eviction`.
    #[arg(long = "move-for-cards", env = "PLIMSOLL_MOVE_FOR_CARDS")]
    pub move_for_gpus: bool,

    /// Evict pods with a process that MPS is to limit and that is no client of it, so that nothing limits it: by the
    /// report of their node's device plugin (value `devicePlugin.processes`), one a minute on each node at most,
    /// through the Eviction API. Needs the right to create `pods/eviction`.
    #[arg(long, env = "PLIMSOLL_EVICT_OUTSIDE_MPS")]
    pub evict_outside_mps: bool,

    /// Count the ResourceClaims of the device plugin's driver (its flag --claims) among what is held of GPUs, and
    /// decide about their pods by GPUs too. Needs the right to list and watch `resourceclaims`, which Kubernetes has
    /// from 1.34 on.
    #[arg(long, env = "PLIMSOLL_CLAIMS")]
    pub claims: bool,

    /// How long a pod must have waited before others are evicted for it. No flag: [`EVICT_AFTER`], and less in tests.
    #[arg(skip = EVICT_AFTER)]
    pub evict_after: Duration,

    /// How many pods are evicted in a minute at most. No flag: [`EVICTIONS_PER_MINUTE`], and less in tests.
    #[arg(skip = EVICTIONS_PER_MINUTE)]
    pub evictions_per_minute: usize,

    /// The Lease by which one of several replicas is chosen: it gives out GPUs, and the others pass requests about
    /// GPUs on to it. In the namespace of the pod, or of the kubeconfig's context. Without it this must be the only
    /// replica [default: none].
    #[arg(long, env = "PLIMSOLL_LEASE_NAME", value_name = "NAME", requires = "advertise_address")]
    pub lease_name: Option<String>,

    /// How long the others wait after the last renewal before one of them takes the Lease. A replica that cannot renew
    /// it begins no binding after two thirds of that, and a binding takes a third at most. Whole seconds, 1s to 5m.
    #[arg(
        long,
        env = "PLIMSOLL_LEASE_DURATION",
        default_value = "10s",
        value_parser = settings::lease_duration,
        value_name = "DURATION"
    )]
    pub lease_duration: Duration,

    /// Where other replicas reach this one, with the port of --listen-address: the pod's own IP [default: none].
    #[arg(long, env = "PLIMSOLL_ADVERTISE_ADDRESS", value_name = "IP")]
    pub advertise_address: Option<IpAddr>,

    /// The Service of all replicas, and its port of --inspect-address. What kube-scheduler has asked another replica is
    /// known there: explain and shadow ask the others too. Without it they tell what this one knows. Needs the right to
    /// list EndpointSlices there [default: none].
    #[arg(
        long,
        env = "PLIMSOLL_REPLICAS_SERVICE",
        value_name = "NAMESPACE/NAME:PORT-NAME",
        value_parser = replicas_service,
        requires = "advertise_address"
    )]
    pub replicas_service: Option<ServicePort>,

    /// The API server.
    #[command(flatten)]
    pub api: ApiArgs,

    /// The names on the wire.
    #[command(flatten)]
    pub names: NameArgs,

    /// Logs and the admin endpoints.
    #[command(flatten)]
    pub daemon: daemon::DaemonArgs<19102>,
}

/// Reads the flag.
fn replicas_service(text: &str) -> Result<ServicePort, String> {
    let expected = "expected NAMESPACE/NAME:PORT-NAME, as in plimsoll/scheduler-extender:inspect";
    ServicePort::parse(text).ok_or_else(|| expected.to_owned())
}

impl Args {
    /// The files of TLS; `None` without it.
    pub(crate) fn identity(&self) -> Option<Identity> {
        Some(Identity {
            certificate: NamedFile::optional("--tls-cert-file", self.tls_cert_file.as_ref())?,
            key: NamedFile::optional("--tls-key-file", self.tls_key_file.as_ref())?,
            client_ca: Some(NamedFile::optional("--client-ca-file", self.client_ca_file.as_ref())?),
            client_names: self
                .client_names
                .iter()
                .filter(|name| !name.is_empty())
                .cloned()
                .collect(),
            peer_name: self.lease_name.as_ref().map(|_| self.replica_server_name.clone()),
        })
    }
}

/// `NAMESPACE/NAME`.
fn config_map(text: &str) -> Result<ConfigMapReference, String> {
    let parts = text.split_once('/').map(|(namespace, name)| {
        let valid =
            field::label("namespace", namespace).and_then(|()| field::subdomain("name", name));
        valid
            .map(|()| ConfigMapReference { namespace: namespace.to_owned(), name: name.to_owned() })
    });
    let expected = "expected NAMESPACE/NAME of a ConfigMap, as in plimsoll/policy".to_owned();
    parts.and_then(Result::ok).ok_or(expected)
}

fn dns_name(text: &str) -> Result<DnsName<'static>, String> {
    DnsName::try_from(text.to_owned())
        .map_err(|_| "expected a DNS name, such as scheduler-extender.plimsoll.svc".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use placement::names::Names;

    use super::*;

    fn parse(flags: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from([&["scheduler-extender"], flags].concat())
    }

    #[test]
    fn tls_needs_all_its_files() {
        let all = ["--tls-cert-file=a", "--tls-key-file=b", "--client-ca-file=c"];
        assert!(parse(&all).unwrap().identity().is_some());
        for left_out in 0..all.len() {
            let mut some = all.to_vec();
            some.remove(left_out);
            assert!(parse(&some).is_err(), "{some:?}");
        }
        assert!(parse(&[]).unwrap().identity().is_none());
    }

    #[test]
    fn replicas_need_a_certificate_for_each_other_and_a_single_one_does_not() {
        let tls = ["--tls-cert-file=a", "--tls-key-file=b", "--client-ca-file=c"];
        assert!(parse(&tls).unwrap().identity().unwrap().peer_name.is_none());
        let lease = ["--lease-name=extender", "--advertise-address=127.0.0.1"];
        let identity = parse(&[&tls[..], &lease[..]].concat()).unwrap().identity().unwrap();
        assert_eq!(identity.peer_name.unwrap().as_ref(), "scheduler-extender.plimsoll.svc");
        assert!(parse(&["--replica-server-name=a b"]).is_err());
    }

    #[test]
    fn the_flags_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_defaults_are_the_fields_own() {
        let args = parse(&[]).unwrap();
        assert_eq!(args.listen_address.port(), 19100);
        assert_eq!(args.names.names(), Names::default());
    }
}
