//! The test of everything at once: pods come and go, claims are forged, and programs are killed, by a schedule that a
//! seed makes. What must hold is told by [`run::Run::settle`] and [`refusals`].

mod cast;
mod refusals;
mod run;
mod tally;
mod untouched;
mod watch;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::Node;
use e2e::chaos::{GPU_UNITS, GPUS, Schedule};
use e2e::command::wait_for;
use e2e::progress::line;

use crate::env::TestEnv;
use crate::support::figures::{Clock, Delays};
use crate::support::gpu_audit::audit_exactly;
use crate::support::offers::offered;
use crate::support::pods::{GPU, START, all_running, create_all, gpu_pods};
use crate::support::priorities;
use crate::support::resource_claims::{self, Share};
use crate::{Fact, on_our_nodes};
use run::Run;
use watch::Watch;

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes(
        "in_a_chaos_of_kills_and_forged_claims_every_pod_is_on_its_gpu_and_no_gpu_is_overbooked",
        |env| chaos(env, None),
    )
    .takes(335),
    on_our_nodes("in_a_chaos_a_third_of_the_pods_by_resource_claims_no_gpu_is_overbooked", |env| {
        let host = env.cluster()?.nodes().last().context("no node")?;
        chaos(env, Some(host))
    })
    .takes(600),
];

/// The variable of the seed, and the seed of a run of all tests.
const SEED: (&str, u64) = ("CHAOS_SEED", 1);
/// The variable of the number of pods, and that of a run of all tests.
const PODS: (&str, u64) = ("CHAOS_PODS", 300);

/// With ResourceClaims, the GPUs of this node are given out by them.
fn chaos(env: &TestEnv, by_claims: Option<&Node>) -> Result<()> {
    let seed = setting(SEED)?;
    let pods = setting(PODS)?;
    let replay = format!("{}={seed} {}={pods} make chaos", SEED.0, PODS.0);
    line(&format!("this run can be repeated: {replay}"));
    let schedule = Schedule::new(seed, usize::try_from(pods)?);
    let watch = Watch::start(env.cluster()?);
    let mut run = Run::new(env, &watch, by_claims)?;
    let played = priorities::with(env, || match by_claims {
        None => run.play(&schedule),
        Some(host) => resource_claims::with(env, host, || {
            let mut shares = (1..=GPU_UNITS).map(|units| Share::of(units * 1024));
            shares.try_for_each(|share| share.create(env))?;
            run.play(&schedule)?;
            // Without it no pod with a claim ends.
            plugins_ready(env)
        }),
    });
    let played = played.and_then(|()| every_gpu_is_free(env));
    let overbooked = watch.end();
    env.count(|counts| counts.overbooked_units += overbooked.values().sum::<u64>());
    let tally = run.into_tally();
    env.figure("chaos", tally.json_line(seed, pods, &env.counts(), &overbooked));
    line(&format!("chaos: {}", tally.json_line(seed, pods, &env.counts(), &overbooked)));
    played
        .and_then(|()| tally.verdict())
        .and_then(|()| {
            ensure!(
                overbooked.is_empty(),
                "processes held more than their GPUs have: {overbooked:?}"
            );
            Ok(())
        })
        .with_context(|| format!("repeat it with {replay}"))
}

pub(crate) fn setting((variable, default): (&str, u64)) -> Result<u64> {
    match std::env::var(variable) {
        Ok(text) if !text.is_empty() => {
            text.parse().with_context(|| format!("{variable}={text} is no number"))
        }
        _ => Ok(default),
    }
}

/// Waits for the plugins, whose pauses before a restart are 5 minutes at most.
fn plugins_ready(env: &TestEnv) -> Result<()> {
    wait_for("the plugins to be ready", Duration::from_secs(900), || {
        Ok(env.program_ready("gpushare-device-plugin")?.then_some(()))
    })
}

/// Nothing of the run is left on any GPU: once the plugins are back, each takes a pod of its size.
fn every_gpu_is_free(env: &TestEnv) -> Result<()> {
    env.delete_all_pods()?;
    wait_for("the plugins to offer all units", Duration::from_secs(900), || {
        let all = offered(env, GPU)?.values().sum::<u64>() == GPUS as u64 * GPU_UNITS;
        Ok((all && env.program_ready("gpushare-device-plugin")?).then_some(()))
    })?;
    let clock = Clock::now()?;
    create_all(env, gpu_pods("whole", GPUS, GPU_UNITS))?;
    let pods = all_running(env, START)?;
    env.figure("pod_to_process_ms_whole_cards_after_chaos", Delays::of(&clock, &pods)?.summary());
    audit_exactly(env, GPUS)
}
