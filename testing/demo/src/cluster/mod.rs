//! The cluster: API server, kubelets and scheduler as stand-ins inside this process, Plimsoll's programs as processes
//! around it.

mod child;
mod explain;
mod policy;
mod ports;
mod programs;
mod readiness;
mod setup;
mod state;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use sim::kubelet::{Kubelet, ProcessEvent};
use sim::scheduler::{Decision, Scheduler, SchedulerConfig};
use sim::{NODES, PODS, Sim};
use tokio::sync::mpsc::{self, UnboundedReceiver};

pub(crate) use child::become_child;
pub(crate) use explain::{Explainer, is_overloaded, lacks_gpu};
pub(crate) use readiness::ExtenderProbe;
pub(crate) use state::{gpu_units, is_reading_old};

use crate::args::{DemoArgs, Sabotage};
use crate::model::loads::Loads;
use crate::model::nodes::{FLEET, NodePlan, gpu_nodes};
use crate::model::policy::Policy;
use ports::{Ports, loopback};
use programs::{ANNOTATOR, EXPORTER, EXTENDER, PLUGIN, Program, Programs};

/// The scheduler configuration that `deploy/` ships, used with [`EXTENDER_TIMEOUT`].
const SCHEDULER_CONFIG: &str = include_str!("../../../../deploy/chart/kube-scheduler/shipped.yaml");
/// Longest wait for any condition, on a machine that is busy with something else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Time limit of an extender's answer. The shipped 500 ms are meant for release builds on a control-plane node. Here
/// twenty debug builds may share a machine with a compiler, and a pod that was scheduled without the extender would
/// prove nothing.
const EXTENDER_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a condition is checked.
const POLL: Duration = Duration::from_millis(50);

/// The running cluster. Dropping it ends everything in it.
pub(crate) struct Cluster {
    pub(crate) sim: Sim,
    pub(crate) loads: Loads,
    kubelets: BTreeMap<&'static str, Kubelet>,
    programs: Programs,
    /// Running programs by their names, see [`exporter`] and [`plugin`].
    running: Mutex<BTreeMap<String, Program>>,
    /// Each exporter's port, by node.
    exporter_ports: BTreeMap<&'static str, u16>,
    extender_port: u16,
    page_port: u16,
    root: PathBuf,
    _scheduler: Scheduler,
    _ports: Ports,
}

/// What the stand-ins report while they run.
pub(crate) struct EventStreams {
    /// Containers started and ended, of all nodes.
    pub(crate) processes: UnboundedReceiver<ProcessEvent>,
    /// The scheduler's attempts.
    pub(crate) decisions: UnboundedReceiver<Decision>,
}

impl Cluster {
    /// Starts everything. All files lie below `root`.
    ///
    /// # Errors
    /// When a program is missing or does not start, or a file or port cannot be had.
    pub(crate) async fn start(
        root: &Path,
        args: &DemoArgs,
    ) -> anyhow::Result<(Arc<Self>, EventStreams)> {
        policy::write(root, Policy::default())?;
        fs::create_dir_all(root.join("logs"))?;
        let programs = Programs::find(args.programs.clone(), root.join("logs"))?;
        let hide_overload = args.sabotage == Some(Sabotage::Hot);
        let loads = Loads::new(root, hide_overload).context("cannot write the scripted /proc")?;
        let sim = Sim::start().await.context("cannot listen on the loopback")?;
        sim.write_kubeconfig(&root.join("kubeconfig"))?;
        let mut ports = Ports::new();
        let exporter_ports = setup::create_nodes(&sim, &mut ports)?;
        let (events, processes) = mpsc::unbounded_channel();
        let mut kubelets = BTreeMap::new();
        for (index, plan) in FLEET.iter().enumerate() {
            let settings = setup::write_node_files(root, index, plan)?;
            kubelets.insert(plan.name, Kubelet::start(&sim, settings, events.clone())?);
        }
        let extender_port = ports.take()?;
        let page_port = ports.take()?;
        let mut config = SchedulerConfig::from_yaml(SCHEDULER_CONFIG)?.at(&loopback(extender_port));
        config.extenders.iter_mut().for_each(|extender| extender.http_timeout = EXTENDER_TIMEOUT);
        let (scheduler, decisions) = Scheduler::start(&sim, config)?;
        let cluster = Arc::new(Self {
            sim,
            loads,
            kubelets,
            programs,
            running: Mutex::default(),
            exporter_ports,
            extender_port,
            page_port,
            root: root.to_owned(),
            _scheduler: scheduler,
            _ports: ports,
        });
        cluster.start_programs()?;
        Ok((cluster, EventStreams { processes, decisions }))
    }

    fn start_programs(&self) -> anyhow::Result<()> {
        let policy_file = format!("--policy-file={}", policy::path(&self.root).display());
        let common = [policy_file, self.flag("kubeconfig", "kubeconfig")];
        let extender = [
            format!("--listen-address={}", loopback(self.extender_port)),
            format!("--inspect-address={}", loopback(self.page_port)),
            any_admin_port(),
        ];
        self.run(EXTENDER, EXTENDER, &[&common[..], &extender].concat(), &[])?;
        let listen = format!("--listen-address={}", loopback(0));
        // Every two seconds is polled, and shown.
        let at_once = ["--burst-interval=0s", "--dead-band=0"];
        let annotator = [&[any_admin_port(), listen][..], &at_once.map(str::to_owned)].concat();
        self.run(ANNOTATOR, ANNOTATOR, &[&common[..], &annotator].concat(), &[])?;
        for plan in &FLEET {
            self.start_exporter(plan)?;
        }
        gpu_nodes().try_for_each(|(_, plan)| self.start_plugin(plan.name))
    }

    fn start_exporter(&self, plan: &NodePlan) -> anyhow::Result<()> {
        let host = match plan.load {
            Some(_) => self.root.join(plan.name),
            None => PathBuf::from("/"),
        };
        let port = self.exporter_ports.get(plan.name).copied().unwrap_or_default();
        let flags = [
            format!("--web.listen-address={}", loopback(port)),
            format!("--host-root={}", host.display()),
            "--sample-interval=1s".to_owned(),
            any_admin_port(),
        ];
        self.run(EXPORTER, &exporter(plan.name), &flags, &[])
    }

    /// Starts a node's device plugin.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start_plugin(&self, node: &str) -> anyhow::Result<()> {
        let root = self.root.join(node);
        let flags = [
            format!("--node-name={node}"),
            format!("--host-root={}", root.display()),
            format!("--nvidia-cdi-dirs={}", root.join("var/run/cdi").display()),
            format!("--nvml-library={}", self.programs.library().display()),
            self.flag("kubeconfig", "kubeconfig"),
            "--health-interval=1s".to_owned(),
            any_admin_port(),
        ];
        let script = root.join("nvml-script.json");
        self.run(PLUGIN, &plugin(node), &flags, &[("PLIMSOLL_NVML_SCRIPT", &script)])
    }

    fn run(
        &self,
        program: &str,
        name: &str,
        flags: &[String],
        env: &[(&str, &Path)],
    ) -> anyhow::Result<()> {
        let started = self.programs.start(program, name, flags, env)?;
        self.running().insert(name.to_owned(), started);
        Ok(())
    }

    /// A flag whose value is a file below the root.
    fn flag(&self, name: &str, file: &str) -> String {
        format!("--{name}={}", self.root.join(file).display())
    }

    /// Replaces the policy file. Extender and annotator look at it every five seconds.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write_policy(&self, policy: Policy) -> anyhow::Result<()> {
        policy::write(&self.root, policy).context("cannot write the policy")
    }

    /// Whether a program runs under this name.
    pub(crate) fn runs(&self, name: &str) -> bool {
        self.running().contains_key(name)
    }

    /// Kills a program with SIGKILL.
    ///
    /// # Errors
    /// When it does not run.
    pub(crate) async fn kill(&self, name: &str) -> anyhow::Result<()> {
        let program = self.running().remove(name);
        match program {
            Some(mut program) => program.kill().await,
            None => bail!("{name} does not run"),
        }
    }

    /// Kills every program.
    pub(crate) async fn kill_all(&self) {
        let programs = std::mem::take(&mut *self.running());
        for mut program in programs.into_values() {
            // A program that cannot be killed has ended already.
            let _ = program.kill().await;
        }
    }

    /// Writes all nodes and pods to `objects.json` below the root, for debugging a failed run.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn dump_objects(&self) -> std::io::Result<()> {
        let objects = json!({"nodes": self.sim.list(NODES), "pods": self.pods()});
        fs::write(self.root.join("objects.json"), format!("{objects:#}\n"))
    }

    /// From now on the node's container runtime hands over another GPU than it is told to.
    pub(crate) fn hand_over_wrong_gpus(&self, node: &str) {
        self.kubelets.get(node).into_iter().for_each(Kubelet::hand_over_wrong_gpus);
    }

    /// Kills a node's kubelet, starts it again, and waits until its device plugin has registered again.
    ///
    /// # Errors
    /// When the plugin does not register in time.
    pub(crate) async fn restart_kubelet(&self, node: &str) -> anyhow::Result<()> {
        let kubelet = self.kubelets.get(node).context("no such node")?;
        kubelet.restart().await.with_context(|| format!("the kubelet of {node}"))?;
        let registered = tokio::time::timeout(PATIENCE, kubelet.devices().registered(2)).await;
        registered.with_context(|| format!("{node}'s plugin has not registered again"))
    }

    /// The kubeconfig's path.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    /// Where the extender serves kube-scheduler's verbs and `/explain`.
    fn extender_address(&self) -> String {
        loopback(self.extender_port)
    }

    /// The address of the extender's page.
    pub(crate) fn page(&self) -> String {
        format!("http://{}/ui/", loopback(self.page_port))
    }

    /// Every pod.
    pub(crate) fn pods(&self) -> Vec<Value> {
        self.sim.list(PODS)
    }

    /// Waits until `holds` returns true.
    ///
    /// # Errors
    /// After [`PATIENCE`], with `what` in the message, or when a program has ended by itself.
    pub(crate) async fn wait_until(
        &self,
        what: &str,
        holds: impl Fn(&Self) -> bool,
    ) -> anyhow::Result<()> {
        let start = Instant::now();
        while !holds(self) {
            self.check_programs()?;
            if start.elapsed() > PATIENCE {
                bail!("{what}: still not so after {PATIENCE:?}");
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// # Errors
    /// When a program has ended that was not killed through [`Self::kill`].
    pub(crate) fn check_programs(&self) -> anyhow::Result<()> {
        self.running().values_mut().try_for_each(Program::check)
    }

    // A panic cannot leave a change half done: each is a single insertion or removal.
    fn running(&self) -> MutexGuard<'_, BTreeMap<String, Program>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name under which a node's exporter runs.
pub(crate) fn exporter(node: &str) -> String {
    format!("{EXPORTER}-{node}")
}

/// The name under which a node's device plugin runs.
pub(crate) fn plugin(node: &str) -> String {
    format!("{PLUGIN}-{node}")
}

fn any_admin_port() -> String {
    format!("--admin-address={}", loopback(0))
}
