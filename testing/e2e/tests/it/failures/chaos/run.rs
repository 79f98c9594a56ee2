//! Owns a run: carries out the steps of a schedule, replaces pods that fail, and compares what is there at each rest.
//!
//! The API server is one of the victims, so each call is repeated until it answers. That a call was carried out
//! although its answer was lost is no error.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use e2e::chaos::{GPU_UNITS, GPUS, Plan, Priority, Schedule, Step, Victim};
use e2e::command::wait_for;
use e2e::kernel::processes::{self, Pid};
use e2e::progress::line;
use e2e::{Cluster, Node};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::cast::{Member, claim_on};
use super::refusals::cause;
use super::tally::Tally;
use super::untouched::Untouched;
use super::watch::Watch;
use crate::env::{NAMESPACE, TestEnv};
use crate::support::gpu_audit::{CLAIM, audit_pods};
use crate::support::pods::{gpu_containers, list, message, name, node, phase, runs};
use crate::support::resource_claims::{self, allocated, devices};

/// Within this the API server answers again after a kill, with the kubelet's pause before a restart, which is 5 minutes
/// at most.
const ANSWER: Duration = Duration::from_secs(420);
/// Within this every pod runs that has room, with such pauses of everything that was killed, and 5.5 minutes after
/// which kube-scheduler tries every waiting pod.
const REST: Duration = Duration::from_secs(900);

/// A run.
pub(super) struct Run<'run> {
    env: &'run TestEnv,
    cluster: &'run Cluster,
    watch: &'run Watch,
    /// A client for pods with forged claims: the admission policies do not apply to its user.
    forger: Api<Pod>,
    cast: BTreeMap<usize, Member>,
    /// The node whose GPUs are given out by ResourceClaims.
    by_claims: Option<&'run Node>,
    /// Whether there has been a pod with a forged claim since the last rest.
    beside_forged: bool,
    untouched: Untouched,
    tally: Tally,
}

impl<'run> Run<'run> {
    /// A run that has not begun.
    pub(super) fn new(
        env: &'run TestEnv,
        watch: &'run Watch,
        by_claims: Option<&'run Node>,
    ) -> Result<Self> {
        let mut config = env.config();
        config.auth_info.impersonate =
            Some("system:serviceaccount:plimsoll:scheduler-extender".to_owned());
        config.auth_info.impersonate_groups =
            Some(vec!["system:masters".to_owned(), "system:nodes".to_owned()]);
        Ok(Self {
            env,
            cluster: env.cluster()?,
            watch,
            forger: Api::namespaced(env.client_of(config)?, NAMESPACE),
            cast: BTreeMap::new(),
            by_claims,
            beside_forged: false,
            untouched: Untouched::default(),
            tally: Tally::new(),
        })
    }

    /// The counts.
    pub(super) fn into_tally(self) -> Tally {
        self.tally
    }

    /// Carries out all steps.
    pub(super) fn play(&mut self, schedule: &Schedule) -> Result<()> {
        let rounds = schedule.steps.iter().filter(|step| **step == Step::Settle).count();
        let mut round = 1;
        for step in &schedule.steps {
            match step {
                Step::Create(batch) => self.create(batch)?,
                Step::Delete { pods, forced } => self.delete(pods, *forced)?,
                Step::Edit { pod, gpu } => self.edit(*pod, *gpu)?,
                Step::Kill(victim) => self.kill(*victim)?,
                Step::Pause(pause) => sleep(*pause),
                Step::Settle => {
                    self.settle().with_context(|| format!("round {round} of {rounds}"))?;
                    let seconds = self.tally.began.elapsed().as_secs();
                    line(&format!("chaos: round {round} of {rounds} is over after {seconds} s"));
                    round += 1;
                }
            }
        }
        Ok(())
    }

    fn create(&mut self, batch: &[Plan]) -> Result<()> {
        let claims = self.by_claims.is_some();
        let members: Vec<Member> =
            batch.iter().map(|plan| Member::new(plan.clone(), claims)).collect();
        self.beside_forged |= members.iter().any(|member| member.forged);
        self.post(&members)?;
        self.cast.extend(members.into_iter().map(|member| (member.plan.number, member)));
        Ok(())
    }

    fn post(&self, members: &[Member]) -> Result<()> {
        let objects = members
            .iter()
            .map(|member| Ok((member.forged, member.object(self.cluster)?)))
            .collect::<Result<Vec<_>>>()?;
        let own = self.env.pods();
        insist("the API server to create pods", || {
            self.env.block_on(async {
                let calls = objects.iter().map(|(forged, object)| {
                    let api = if *forged { &self.forger } else { &own };
                    async move { api.create(&PostParams::default(), object).await }
                });
                for created in join_all(calls).await {
                    match created {
                        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                        created => drop(created?),
                    }
                }
                anyhow::Ok(())
            })
        })
    }

    fn delete(&mut self, numbers: &[usize], forced: bool) -> Result<()> {
        self.sweep()?;
        let leaving: Vec<Member> =
            numbers.iter().filter_map(|number| self.cast.remove(number)).collect();
        self.remove(&leaving, forced)
    }

    fn remove(&self, members: &[Member], forced: bool) -> Result<()> {
        let names: Vec<String> = members.iter().map(Member::name).collect();
        self.remove_named(&names, forced)
    }

    fn remove_named(&self, names: &[String], forced: bool) -> Result<()> {
        let how =
            if forced { DeleteParams::default().grace_period(0) } else { DeleteParams::default() };
        let pods = self.env.pods();
        insist("the API server to delete pods", || {
            self.env.block_on(async {
                for deleted in join_all(names.iter().map(|name| pods.delete(name, &how))).await {
                    match deleted {
                        Err(kube::Error::Api(status)) if status.is_not_found() => {}
                        deleted => drop(deleted?),
                    }
                }
                anyhow::Ok(())
            })
        })
    }

    /// Rewrites the claim of a pod that may be waiting, bound or running.
    fn edit(&mut self, number: usize, gpu: usize) -> Result<()> {
        let Some(member) = self.cast.get_mut(&number) else { return Ok(()) };
        (member.forged, member.was_forged) = (true, true);
        self.beside_forged = true;
        let pod = member.name();
        let claim = claim_on(self.cluster, &member.plan, gpu);
        let edit = Patch::Merge(json!({"metadata": {"annotations": {CLAIM: claim}}}));
        insist("the API server to edit a claim", || {
            self.env.block_on::<_, Error>(async {
                match self.forger.patch(&pod, &PatchParams::default(), &edit).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                    edited => Ok(edited.map(drop)?),
                }
            })
        })
    }

    fn kill(&mut self, victim: Victim) -> Result<()> {
        let found = self.processes(victim)?;
        if found.is_empty() {
            self.tally.not_running += 1;
            return Ok(());
        }
        self.watch.kill(victim, || processes::kill_all(&found))?;
        *self.tally.kills.entry(victim.program()).or_default() += 1;
        Ok(())
    }

    /// The processes to kill: none where it is down.
    fn processes(&self, victim: Victim) -> Result<Vec<Pid>> {
        let nodes = self.cluster.nodes();
        let on = victim.node().map(|place| nodes.get(place).context("there is no such node"));
        if let (Victim::Kubelet(_) | Victim::Containerd(_), Some(node)) = (victim, &on) {
            let node = node.as_ref().map_err(|error| Error::msg(error.to_string()))?;
            return Ok(node.service(victim.program())?.into_iter().collect());
        }
        let below = match on.transpose()? {
            Some(node) => vec![node],
            None => nodes.iter().collect::<Vec<&Node>>(),
        };
        let mut all = Vec::new();
        for node in below {
            all.extend(processes::of_program(&node.spec().cgroup(), victim.program())?);
        }
        match victim {
            Victim::Extender(replica) | Victim::Annotator(replica) if !all.is_empty() => {
                Ok(vec![all[replica % all.len()]])
            }
            _ => Ok(all),
        }
    }

    /// Looks at all pods: those that failed are judged and replaced, those that kube-scheduler evicted are noted. The
    /// pods as they were before.
    fn sweep(&mut self) -> Result<Vec<Pod>> {
        let pods = insist("the API server to list pods", || list(self.env))?;
        if self.watch.is_api_silent() && self.is_api_ready() {
            self.watch.api_answers()?;
        }
        let numbers: Vec<usize> = self.cast.keys().copied().collect();
        let mut failed = Vec::new();
        for number in numbers {
            let Some(member) = self.cast.get(&number) else { continue };
            match pods.iter().find(|pod| name(pod) == member.name()) {
                None => {
                    self.gone(&member.clone());
                    self.cast.remove(&number);
                }
                // A pod that is being deleted ends in this phase, too.
                Some(pod)
                    if phase(pod) == "Failed" && pod.metadata.deletion_timestamp.is_none() =>
                {
                    self.judge(pod, &member.clone());
                    failed.push(number);
                }
                Some(_) => {}
            }
        }
        self.replace(&failed, true)?;
        Ok(pods)
    }

    /// Whether the API server answers all: before, it may refuse those whose rights it has not read yet.
    fn is_api_ready(&self) -> bool {
        let asked = http::Request::get("/readyz").body(Vec::new());
        asked.is_ok_and(|asked| self.env.block_on(self.env.client().request_text(asked)).is_ok())
    }

    /// Only kube-scheduler deletes pods that the run does not delete.
    fn gone(&mut self, member: &Member) {
        match member.plan.priority {
            Priority::High => self.tally.faults.push(format!("{} is gone", member.name())),
            Priority::Default | Priority::Middle => self.tally.evicted += 1,
        }
    }

    fn judge(&mut self, pod: &Pod, member: &Member) {
        match cause(self.cluster, pod, member.forged, self.beside_forged, self.watch) {
            Some(cause) => *self.tally.failures.entry(cause).or_default() += 1,
            None => {
                let why = message(pod);
                let fault = format!("{} on {:?} failed without cause: {why}", name(pod), node(pod));
                line(&format!("chaos: {fault}"));
                self.tally.faults.push(fault);
            }
        }
    }

    /// Deletes the pods of these numbers and creates others in their place.
    fn replace(&mut self, numbers: &[usize], forced: bool) -> Result<()> {
        let old: Vec<Member> =
            numbers.iter().filter_map(|number| self.cast.get(number).cloned()).collect();
        if old.is_empty() {
            return Ok(());
        }
        self.remove(&old, forced)?;
        let new: Vec<Member> = old.iter().map(Member::replacement).collect();
        self.post(&new)?;
        self.cast.extend(new.into_iter().map(|member| (member.plan.number, member)));
        Ok(())
    }

    /// Replaces the pods whose claims are forged, waits until every pod runs or has no room, and compares all GPUs.
    ///
    /// What must hold: a pod waits only where no node has room for it by what processes hold, each process has the
    /// GPUs of its claim and of the kubelet's record, no GPU is overbooked, and no pod that ran before was touched.
    fn settle(&mut self) -> Result<()> {
        self.sweep()?;
        let forged: Vec<usize> = self.numbers(|member| member.forged);
        self.replace(&forged, false)?;
        let mut last = Vec::new();
        let rested = wait_for("every pod to run that has room", REST, || {
            last = self.sweep()?;
            self.rest(&last)
        });
        let (running, waiting) = rested.with_context(|| {
            let waiting = last.iter().filter(|pod| !runs(pod));
            let shown = waiting.map(|pod| {
                format!("{} on {:?} is {}: {}", name(pod), node(pod), phase(pod), message(pod))
            });
            shown.collect::<Vec<_>>().join("\n")
        })?;
        self.tally.without_room += waiting;
        let gpu: Vec<Pod> =
            running.iter().filter(|pod| !gpu_containers(pod).is_empty()).cloned().collect();
        audit_pods(self.env, &gpu)?;
        self.tally.compared += gpu.len();
        if self.by_claims.is_some() {
            self.tally.compared_by_claims += resource_claims::audit(self.env)?.0.len();
        }
        self.untouched.compare(&running)?;
        let forged: Vec<usize> = self.numbers(|member| member.was_forged);
        let leaving: Vec<Member> =
            forged.iter().filter_map(|number| self.cast.remove(number)).collect();
        self.beside_forged = false;
        self.remove(&leaving, false)
    }

    fn numbers(&self, wanted: impl Fn(&Member) -> bool) -> Vec<usize> {
        let found = self.cast.iter().filter(|(_, member)| wanted(member));
        found.map(|(number, _)| *number).collect()
    }

    /// The running pods and the number of those that have no room; `None` where something is still under way.
    fn rest(&self, pods: &[Pod]) -> Result<Option<(Vec<Pod>, usize)>> {
        let expected = pods.iter().all(|pod| self.member(pod).is_some());
        if !expected || pods.len() != self.cast.len() {
            return Ok(None);
        }
        let (running, waiting): (Vec<Pod>, Vec<Pod>) = pods.iter().cloned().partition(runs);
        if waiting.iter().any(|pod| node(pod).is_some() || phase(pod) != "Pending") {
            return Ok(None);
        }
        let room = self.room(&running)?;
        let by_claims = self.room_by_claims()?;
        let mut members = waiting.iter().filter_map(|pod| self.member(pod));
        let with_room = members.any(|member| match &member.share {
            Some(share) => share.mib <= by_claims,
            None => fits(&member.plan, &room),
        });
        Ok((!with_room).then_some((running, waiting.len())))
    }

    fn member(&self, pod: &Pod) -> Option<&Member> {
        self.cast.values().find(|member| member.name() == name(pod))
    }

    /// The free units of each node's GPUs, by the claims of the running pods.
    fn room(&self, running: &[Pod]) -> Result<Vec<Vec<u64>>> {
        let mut used: BTreeMap<String, u64> = BTreeMap::new();
        for pod in running.iter().filter(|pod| !gpu_containers(pod).is_empty()) {
            for (gpu, units) in crate::support::gpu_audit::charges(pod)? {
                *used.entry(gpu).or_default() += units;
            }
        }
        let mut room: Vec<Vec<u64>> = Vec::new();
        for node in self.cluster.nodes() {
            let used_of_each =
                node.gpus().into_iter().map(|gpu| used.get(&gpu.uuid).copied().unwrap_or(0));
            let takes_units = self.by_claims.is_none_or(|other| other.name() != node.name());
            let units = if takes_units { GPU_UNITS } else { 0 };
            room.push(used_of_each.map(|used| units.saturating_sub(used)).collect());
        }
        ensure!(room.iter().map(Vec::len).sum::<usize>() == GPUS, "some GPUs are unknown");
        Ok(room)
    }

    /// The most memory that a GPU has left for claims, in MiB.
    fn room_by_claims(&self) -> Result<u64> {
        let Some(node) = self.by_claims else { return Ok(0) };
        Ok(resource_claims::most_left(&devices(self.env, node)?, &allocated(self.env)?))
    }
}

/// Repeats a call until the API server answers it.
fn insist<T>(what: &str, mut call: impl FnMut() -> Result<T>) -> Result<T> {
    wait_for(what, ANSWER, || call().map(Some))
}

/// Whether the GPUs of some node have room for the pod: `room` has the free units of each GPU, by node.
fn fits(plan: &Plan, room: &[Vec<u64>]) -> bool {
    let each = plan.charge_of_each_gpu();
    room.iter().any(|gpus| gpus.iter().filter(|free| **free >= each).count() as u64 >= plan.gpus)
}
