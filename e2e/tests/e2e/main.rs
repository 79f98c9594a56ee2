//! Tests on a real cluster. What they compare comes from the processes, the kubelet's records and the API's objects;
//! nothing here shares code with the programs that decide.
//!
//! Without a running cluster, one is brought up first and removed at the end.

mod machines;
mod pods;
mod tally;
mod world;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use e2e::progress::line;
use libtest_mimic::{Arguments, Trial};

use world::World;

/// One test: a fact and the function that tries to refute it.
type Fact = (&'static str, fn(&World) -> Result<()>);

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
    line(&tally.line(conclusion.num_passed + conclusion.num_failed));
    world.leave(conclusion.has_failed())?;
    let bad = conclusion.has_failed() || !tally.clean();
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn facts() -> Vec<Fact> {
    [machines::FACTS].concat()
}

fn trials(world: Option<&Arc<World>>) -> Vec<Trial> {
    let trial = |(name, test): Fact| {
        let world = world.cloned();
        Trial::test(name, move || match world {
            Some(world) => world.judge(test).map_err(|error| format!("{error:#}").into()),
            None => Ok(()),
        })
    };
    facts().into_iter().map(trial).collect()
}
