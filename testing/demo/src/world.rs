//! The cluster: API server, kubelets and scheduler inside this process, Plimsoll's programs around it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use sim::kubelet::{Kubelet, ProcessEvent};
use sim::scheduler::{Decision, Scheduler, SchedulerConfig};
use sim::{NODES, PODS, Sim};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use crate::args::{DemoArgs, Sabotage};
use crate::fleet::{self, FLEET, NodePlan};
use crate::furnish::{furnish, place_nodes};
use crate::loads::Loads;
use crate::ports::Ports;
use crate::programs::{ANNOTATOR, EXPORTER, EXTENDER, PLUGIN, Program, Programs};

/// The very file that `deploy/` ships, but for [`ANSWER`].
pub(crate) const SCHEDULER_CONFIG: &str =
    include_str!("../../../deploy/scheduler/kube-scheduler-config.yaml");
/// As the shipped policy, but for its windows.
const POLICY: &str = include_str!("policy.yaml");
/// How long anything that must happen may take, on a machine that is busy with something else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long the extender has for an answer. The shipped 500 ms are for optimised programs with a machine to
/// themselves; here twenty debug builds may share one with a compiler, and a pod that goes unscored
/// because of that would prove nothing.
const ANSWER: Duration = Duration::from_secs(10);
/// How often the state is looked at while waiting for it.
const LOOK: Duration = Duration::from_millis(50);

/// The running cluster. Dropping it ends everything in it.
pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) loads: Loads,
    kubelets: BTreeMap<&'static str, Kubelet>,
    programs: Programs,
    running: Mutex<BTreeMap<String, Program>>,
    exporters: BTreeMap<&'static str, u16>,
    verbs: u16,
    root: PathBuf,
    _scheduler: Scheduler,
}

/// What the cluster tells of itself as it goes.
pub(crate) struct Wires {
    pub(crate) processes: UnboundedReceiver<ProcessEvent>,
    pub(crate) decisions: UnboundedReceiver<Decision>,
}

impl World {
    /// Starts everything, with files under `root`.
    pub(crate) async fn start(root: &Path, args: &DemoArgs) -> anyhow::Result<(Arc<Self>, Wires)> {
        fs::write(root.join("policy.yaml"), POLICY)?;
        fs::create_dir_all(root.join("logs"))?;
        let programs = Programs::find(args.programs.clone(), root.join("logs"))?;
        let lie = args.sabotage == Some(Sabotage::Hot);
        let loads = Loads::new(root, lie).context("cannot write the scripted /proc")?;
        let sim = Sim::start().await.context("cannot listen on the loopback")?;
        sim.write_kubeconfig(&root.join("kubeconfig"))?;
        let mut ports = Ports::new();
        let exporters = place_nodes(&sim, &mut ports)?;
        let (events, processes) = mpsc::unbounded_channel();
        let mut kubelets = BTreeMap::new();
        for (place, plan) in FLEET.iter().enumerate() {
            let settings = furnish(root, place, plan)?;
            kubelets.insert(plan.name, Kubelet::start(&sim, settings, events.clone())?);
        }
        let verbs = ports.take()?;
        let mut config = SchedulerConfig::from_yaml(SCHEDULER_CONFIG)?.at(&local(verbs));
        config.extenders.iter_mut().for_each(|extender| extender.http_timeout = ANSWER);
        let (scheduler, decisions) = Scheduler::start(&sim, config)?;
        let world = Arc::new(Self {
            sim,
            loads,
            kubelets,
            programs,
            running: Mutex::default(),
            exporters,
            verbs,
            root: root.to_owned(),
            _scheduler: scheduler,
        });
        world.start_programs()?;
        Ok((world, Wires { processes, decisions }))
    }

    fn start_programs(&self) -> anyhow::Result<()> {
        let common =
            [self.flag("policy-file", "policy.yaml"), self.flag("kubeconfig", "kubeconfig")];
        let extender = [format!("--listen-address={}", local(self.verbs)), any_port()];
        self.run(EXTENDER, EXTENDER, &[&common[..], &extender].concat(), &[])?;
        let annotator = [any_port(), "--poll-timeout=1s".to_owned()];
        self.run(ANNOTATOR, ANNOTATOR, &[&common[..], &annotator].concat(), &[])?;
        for plan in &FLEET {
            self.start_exporter(plan)?;
        }
        gpu_names().try_for_each(|node| self.start_plugin(node))
    }

    fn start_exporter(&self, plan: &NodePlan) -> anyhow::Result<()> {
        let procfs = match plan.load {
            Some(_) => self.root.join(plan.name).join("proc"),
            None => PathBuf::from("/proc"),
        };
        let port = self.exporters.get(plan.name).copied().unwrap_or_default();
        let flags = [
            format!("--web.listen-address={}", local(port)),
            format!("--path.procfs={}", procfs.display()),
            "--sample-interval=1s".to_owned(),
            any_port(),
        ];
        self.run(EXPORTER, &exporter(plan.name), &flags, &[])
    }

    /// Starts the device plugin of a node.
    pub(crate) fn start_plugin(&self, node: &str) -> anyhow::Result<()> {
        let home = self.root.join(node);
        let flags = [
            format!("--node-name={node}"),
            format!("--device-plugin-dir={}", home.join("device-plugins").display()),
            format!("--pod-resources-socket={}", home.join("pod-resources/kubelet.sock").display()),
            format!("--cdi-dir={}", home.join("cdi").display()),
            format!("--nvml-library={}", self.programs.library().display()),
            self.flag("kubeconfig", "kubeconfig"),
            "--health-interval=1s".to_owned(),
            any_port(),
        ];
        let script = home.join("nvml-script.json");
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

    fn flag(&self, name: &str, file: &str) -> String {
        format!("--{name}={}", self.root.join(file).display())
    }

    /// Kills a program as by `kill -9`.
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
            // One that cannot be killed has ended already.
            let _ = program.kill().await;
        }
    }

    /// Writes every object beside the logs, for whoever looks into what went wrong.
    pub(crate) fn write_down(&self) -> std::io::Result<()> {
        let objects = json!({"nodes": self.sim.list(NODES), "pods": self.pods()});
        fs::write(self.root.join("objects.json"), format!("{objects:#}\n"))
    }

    /// A node's runtime begins to hand over wrong cards.
    pub(crate) fn confuse_cards(&self, node: &str) {
        self.kubelets.get(node).into_iter().for_each(Kubelet::confuse_cards);
    }

    /// Kills a node's kubelet, starts it again, and waits until its plugin has registered anew.
    pub(crate) async fn restart_kubelet(&self, node: &str) -> anyhow::Result<()> {
        let kubelet = self.kubelets.get(node).context("no such node")?;
        kubelet.restart().await.with_context(|| format!("the kubelet of {node}"))?;
        let registered = tokio::time::timeout(PATIENCE, kubelet.devices().registered(2)).await;
        registered.with_context(|| format!("{node}'s plugin has not come back to the kubelet"))
    }

    /// Where the cluster's kubeconfig lies.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    /// The port of the extender's verbs.
    pub(crate) fn verbs(&self) -> u16 {
        self.verbs
    }

    /// Every pod.
    pub(crate) fn pods(&self) -> Vec<Value> {
        self.sim.list(PODS)
    }

    /// Waits until `holds`, as long as every program runs.
    pub(crate) async fn until(
        &self,
        what: &str,
        holds: impl Fn(&Self) -> bool,
    ) -> anyhow::Result<()> {
        let start = Instant::now();
        while !holds(self) {
            self.all_run()?;
            if start.elapsed() > PATIENCE {
                bail!("{what}: still not so after {PATIENCE:?}");
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// # Errors
    /// Where a program has ended that was not killed.
    pub(crate) fn all_run(&self) -> anyhow::Result<()> {
        self.running().values_mut().try_for_each(Program::check)
    }

    // Each change is a single insertion or removal.
    fn running(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Program>> {
        self.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
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

fn gpu_names() -> impl Iterator<Item = &'static str> {
    fleet::gpu_nodes().map(|(_, plan)| plan.name)
}

/// Where a port on this machine answers.
pub(crate) fn local(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn any_port() -> String {
    format!("--admin-address={}", local(0))
}
