//! The program in the pods of `make card`: it takes memory of its GPU, keeps it busy, or faults on it, and says on
//! standard output what it got, a JSON object a line.
//!
//! ```text
//! card-client hold MIB SECONDS      allocates until MIB or the refusal, then holds
//! card-client spin ROUNDS SECONDS   kernels of ROUNDS each, four in flight
//! card-client fault                 a kernel that stores where nothing is mapped
//! card-client outside WORDS…        one of these, without MPS in its environment
//! ```
//!
//! As process 1 of its container it ignores SIGTERM, so a deletion ends it by SIGKILL with its kernels in flight. With
//! `GPU_FAKE` libcuda is a stand-in: it opens a context and holds.

mod cuda;

use std::env;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use cuda::{Context, Cuda};

/// Allocations are made in these steps, in MiB: the limit is found to so much.
const STEP_MIB: u64 = 64;
/// Kernels in flight.
const IN_FLIGHT: u64 = 4;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&json!({"error": format!("{error:#}")}));
            cuda::exit_at_once(1)
        }
    }
}

fn run(words: &[String]) -> Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["hold", mib, seconds] => hold(number(mib)?, seconds_of(seconds)?),
        ["spin", rounds, seconds] => spin(u32::try_from(number(rounds)?)?, seconds_of(seconds)?),
        ["fault"] => fault(),
        ["outside", ref rest @ ..] => outside(rest),
        _ => bail!("usage: card-client hold MIB SECONDS | spin ROUNDS SECONDS | fault"),
    }
}

fn number(word: &str) -> Result<u64> {
    word.parse().with_context(|| format!("`{word}` is no whole number"))
}

fn seconds_of(word: &str) -> Result<Duration> {
    Ok(Duration::from_secs(number(word)?))
}

/// A closed pipe is no error.
fn say(line: &Value) {
    let mut out = io::stdout();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Whether libcuda is a stand-in, which runs no kernel.
fn is_fake() -> bool {
    env::var_os("CARD_FAKE").is_some()
}

fn hold(mib: u64, seconds: Duration) -> Result<()> {
    if is_fake() {
        // As far as the stand-in goes: a context, and little memory of the host.
        Cuda::load()?.context()?.allocate(1 << 20)?;
        say(&json!({"held": true, "pid": std::process::id(), "askedMib": mib}));
        sleep(seconds);
        return Ok(());
    }
    let begin = Instant::now();
    let cuda = Cuda::load()?;
    let context = cuda.context()?;
    let context_seconds = begin.elapsed().as_secs_f64();
    let (got, refused) = allocate(&context, mib)?;
    let mut line = described(&context)?;
    line["held"] = json!(true);
    line["askedMib"] = json!(mib);
    line["gotMib"] = json!(got);
    line["refused"] = json!(refused);
    line["contextSeconds"] = json!(context_seconds);
    say(&line);
    sleep(seconds);
    Ok(())
}

/// Allocates this much, and returns what it got and the error that ended it.
fn allocate(context: &Context<'_>, mib: u64) -> Result<(u64, Option<String>)> {
    let mut got = 0;
    while got < mib {
        let step = STEP_MIB.min(mib - got);
        match context.allocate(step << 20) {
            Ok(address) => context.fill(address, step << 20, 1)?,
            Err(error) => return Ok((got, Some(error.to_string()))),
        }
        got += step;
    }
    Ok((got, None))
}

fn described(context: &Context<'_>) -> Result<Value> {
    Ok(json!({
        "pid": std::process::id(),
        "devices": context.devices,
        "uuid": context.uuid()?,
        "multiprocessors": context.multiprocessors()?,
        "totalMib": context.total()? >> 20,
    }))
}

fn spin(rounds: u32, seconds: Duration) -> Result<()> {
    if is_fake() {
        return hold(0, seconds);
    }
    let cuda = Cuda::load()?;
    let context = cuda.context()?;
    let kernel = context.burn()?;
    // As many blocks as fill the GPU, whatever part of it is this program's.
    kernel.launch(rounds)?;
    context.wait()?;
    let mut line = described(&context)?;
    line["spins"] = json!(true);
    say(&line);
    let begin = Instant::now();
    let (mut launches, mut longest) = (0_u64, Duration::ZERO);
    while begin.elapsed() < seconds {
        let turn = Instant::now();
        (0..IN_FLIGHT).try_for_each(|_| kernel.launch(rounds))?;
        context.wait()?;
        launches += IN_FLIGHT;
        longest = longest.max(turn.elapsed());
    }
    let took = begin.elapsed().as_secs_f64();
    say(&json!({
        "roundsPerSecond": launches as f64 * f64::from(rounds) / took,
        "multiprocessorsSeen": kernel.multiprocessors_seen()?,
        "longestTurnMs": longest.as_millis() as u64,
    }));
    Ok(())
}

fn outside(words: &[&str]) -> Result<()> {
    let mut own = Command::new(env::current_exe()?);
    Err(own.args(words).env_remove("CUDA_MPS_PIPE_DIRECTORY").exec().into())
}

fn fault() -> Result<()> {
    let cuda = Cuda::load()?;
    let context = cuda.context()?;
    say(&described(&context)?);
    context.burn()?.launch_with_unmapped_address()?;
    context.wait().context("as wanted")?;
    bail!("a store to an address that is not mapped was no fault")
}
