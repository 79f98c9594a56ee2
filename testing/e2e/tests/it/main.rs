//! Tests on a real cluster. They compare the processes of containers, the kubelet's records and the API's objects, and
//! share no code with the programs that decide.
//!
//! Without a running cluster, one is started first and removed at the end.

mod cluster;
mod env;
mod exporter;
mod failures;
mod gpu;
mod load;
mod support;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use e2e::progress::line;
use libtest_mimic::{Arguments, Trial};

use env::TestEnv;

/// The environment variable that chooses the tests: `all`, which is the default, or `smoke`.
const SET: &str = "E2E_SET";

/// One test, named by the fact that it checks.
#[derive(Clone, Copy)]
struct Fact {
    name: &'static str,
    test: fn(&TestEnv) -> Result<()>,
    /// Whether it looks into processes or disturbs nodes. Such a test is skipped on a cluster of `E2E_KUBECONFIG`.
    needs_our_nodes: bool,
    /// Whether it belongs to the smoke set, which CI runs: testing/e2e/README.md says what is in it.
    smoke: bool,
    /// About how long it takes on two cores, in seconds, the reset before it left out. A run prints what each one took.
    seconds: u32,
}

impl Fact {
    /// Puts the test into the smoke set.
    const fn smoke(self) -> Self {
        Self { smoke: true, ..self }
    }

    /// Says how long the test takes.
    const fn takes(self, seconds: u32) -> Self {
        Self { seconds, ..self }
    }
}

/// A test that looks into processes or disturbs nodes.
const fn on_our_nodes(name: &'static str, test: fn(&TestEnv) -> Result<()>) -> Fact {
    Fact { name, test, needs_our_nodes: true, smoke: false, seconds: 0 }
}

/// A test that needs the API only.
const fn on_any_cluster(name: &'static str, test: fn(&TestEnv) -> Result<()>) -> Fact {
    Fact { name, test, needs_our_nodes: false, smoke: false, seconds: 0 }
}

/// All tests in the order in which they run. What is installed otherwise comes last, after Plimsoll was uninstalled.
fn all() -> Vec<Fact> {
    [
        cluster::api_conformance::FACTS,
        cluster::kubelet_conformance::FACTS,
        cluster::scheduler_conformance::FACTS,
        cluster::admission::FACTS,
        cluster::admission_cost::FACTS,
        cluster::users::FACTS,
        cluster::doctor::FACTS,
        gpu::gpus::FACTS,
        gpu::kubelet_restarts::FACTS,
        gpu::running_pods::FACTS,
        gpu::plugin_rollouts::FACTS,
        gpu::claims::FACTS,
        gpu::forced_deletion::FACTS,
        gpu::preemption::FACTS,
        gpu::processes::FACTS,
        gpu::gpu_evictions::FACTS,
        gpu::moves::FACTS,
        gpu::bind_tls::FACTS,
        gpu::binding::FACTS,
        gpu::aliyun::FACTS,
        gpu::annotations::FACTS,
        gpu::isolation::FACTS,
        gpu::quota::FACTS,
        gpu::units::FACTS,
        gpu::resource_claims::FACTS,
        gpu::kueue::FACTS,
        // Before a test restarts the annotator, which forgets what it has learned.
        load::learned::FACTS,
        load::many_nodes::FACTS,
        load::soft_limits::FACTS,
        load::replicas::FACTS,
        load::policies::FACTS,
        load::explain::FACTS,
        load::reasons::FACTS,
        load::limits::FACTS,
        load::taints::FACTS,
        load::descheduler::FACTS,
        load::preemption::FACTS,
        exporter::tls::FACTS,
        exporter::signals::FACTS,
        load::boot::FACTS,
        failures::extender_outage::FACTS,
        failures::extender_replicas::FACTS,
        failures::large_pods::FACTS,
        failures::lost_configuration::FACTS,
        cluster::monitoring::FACTS,
        failures::chaos::FACTS,
        gpu::gangs::FACTS,
        cluster::kubeadm_upgrade::FACTS,
        cluster::second_scheduler::FACTS,
        cluster::uninstall::FACTS,
        cluster::chart::FACTS,
        cluster::migration::FACTS,
        cluster::versions::FACTS,
    ]
    .concat()
}

/// The tests of the set that `E2E_SET` names.
fn chosen() -> Result<Vec<Fact>> {
    match std::env::var(SET).as_deref() {
        Err(_) | Ok("" | "all") => Ok(all()),
        Ok("smoke") => Ok(all().into_iter().filter(|fact| fact.smoke).collect()),
        Ok("claims") => Ok(gpu::resource_claims::FACTS.to_vec()),
        Ok(other) => bail!("{SET}={other} names no set of tests: use all, smoke or claims"),
    }
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Tests stop kubelets and fill GPUs, so they run one after the other.
    arguments.test_threads = Some(1);
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            line(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let facts = chosen()?;
    if let Some(fact) = facts.iter().find(|fact| fact.seconds == 0) {
        bail!("{} does not say how long it takes: add .takes(SECONDS) to its list", fact.name);
    }
    if arguments.list {
        return Ok(libtest_mimic::run(arguments, trials(facts, None)).exit_code());
    }
    let env = Arc::new(TestEnv::start()?);
    let seconds: u32 = facts.iter().map(|fact| fact.seconds).sum();
    line(&format!("{} tests, about {} minutes in all", facts.len(), seconds.div_ceil(60)));
    let whole_run = arguments.filter.is_none() && facts.len() == all().len();
    if whole_run && env.cluster().is_ok() {
        // What it uses is learned while other tests run.
        load::learned::start(&env)?;
    }
    let conclusion = libtest_mimic::run(arguments, trials(facts, Some(&env)));
    let counts = env.counts();
    env.figure("refused_before_their_plugin_had_registered", counts.refused_too_early.to_string());
    line(&env.figures());
    line(&env.slowest());
    let finished = env.finish(conclusion.has_failed());
    line(&counts.json_line(env.kubernetes(), conclusion.num_passed + conclusion.num_failed));
    finished?;
    let failed = conclusion.has_failed() || !counts.are_clean();
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn trials(facts: Vec<Fact>, env: Option<&Arc<TestEnv>>) -> Vec<Trial> {
    facts.into_iter().map(|fact| trial(fact, env.cloned())).collect()
}

fn trial(fact: Fact, env: Option<Arc<TestEnv>>) -> Trial {
    let foreign = env.as_ref().is_some_and(|env| env.cluster().is_err());
    let skipped = fact.needs_our_nodes && foreign;
    if skipped {
        line(&format!("SKIPPED {}: it needs the nodes of `make cluster`", fact.name));
    }
    let trial = Trial::test(fact.name, move || match env {
        // The reasons are printed once more at the end, which may be hours away.
        Some(env) => env.run(fact.name, fact.test).map_err(|error| {
            line(&format!("{} failed: {error:#}", fact.name));
            format!("{error:#}").into()
        }),
        None => Ok(()),
    });
    trial.with_ignored_flag(skipped)
}
