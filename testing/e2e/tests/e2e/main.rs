//! Tests on a real cluster. What they compare comes from the processes, the kubelet's records and the API's objects;
//! nothing here shares code with the programs that decide.
//!
//! Without a running cluster, one is brought up first and removed at the end.

mod audit;
mod cards;
mod conformance;
mod crashes;
mod diagnosis;
mod exporter;
mod extender;
mod figures;
mod fleet;
mod kubelet_facts;
mod kubelets;
mod load;
mod machines;
mod phantoms;
mod pods;
mod proven;
mod records;
mod removal;
mod scheduler_facts;
mod scrape;
mod tally;
mod world;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use e2e::progress::line;
use libtest_mimic::{Arguments, Trial};

use world::World;

/// One test: a fact and the function that tries to refute it.
#[derive(Clone, Copy)]
struct Fact {
    name: &'static str,
    test: fn(&World) -> Result<()>,
    /// Whether it looks into processes or disturbs machines, and so cannot run on a cluster of somebody else's.
    on_our_machines: bool,
}

/// A fact about processes or machines.
const fn local(name: &'static str, test: fn(&World) -> Result<()>) -> Fact {
    Fact { name, test, on_our_machines: true }
}

/// A fact that the API alone can tell.
const fn anywhere(name: &'static str, test: fn(&World) -> Result<()>) -> Fact {
    Fact { name, test, on_our_machines: false }
}

/// In the order in which they run: what removes Plimsoll comes last.
fn facts() -> Vec<Fact> {
    [
        machines::FACTS,
        conformance::FACTS_OF_THE_API,
        kubelet_facts::FACTS,
        scheduler_facts::FACTS,
        cards::FACTS,
        kubelets::FACTS,
        fleet::FACTS,
        load::FACTS,
        proven::FACTS,
        exporter::FACTS,
        extender::FACTS,
        crashes::FACTS,
        removal::FACTS,
    ]
    .concat()
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Tests kill kubelets and fill cards: one after the other.
    arguments.test_threads = Some(1);
    if arguments.list {
        return libtest_mimic::run(&arguments, trials(None)).exit_code();
    }
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            line(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let world = Arc::new(World::enter()?);
    let conclusion = libtest_mimic::run(arguments, trials(Some(&world)));
    let tally = world.tally();
    world.figure("refused_before_their_plugin_had_registered", tally.refused_too_early.to_string());
    line(&world.figures());
    let left = world.leave(conclusion.has_failed());
    line(&tally.line(world.kubernetes(), conclusion.num_passed + conclusion.num_failed));
    left?;
    let bad = conclusion.has_failed() || !tally.clean();
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn trials(world: Option<&Arc<World>>) -> Vec<Trial> {
    facts().into_iter().map(|fact| trial(fact, world.cloned())).collect()
}

fn trial(fact: Fact, world: Option<Arc<World>>) -> Trial {
    let foreign = world.as_ref().is_some_and(|world| world.cluster().is_err());
    let skipped = fact.on_our_machines && foreign;
    if skipped {
        line(&format!("SKIPPED {}: it needs the machines of `make cluster`", fact.name));
    }
    let judged = move || match world {
        Some(world) => {
            world.judge(fact.name, fact.test).map_err(|error| format!("{error:#}").into())
        }
        None => Ok(()),
    };
    Trial::test(fact.name, judged).with_ignored_flag(skipped)
}
