//! Clients of MPS: limits, shares of the compute, their number, the daemon's end, and kills beside neighbours.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use e2e::command::wait_for;

use super::{HELD, is_near, rounds_a_second, seconds, serving};
use crate::lab::{Lab, TOLD};
use crate::mps::{Mps, folder, stand_in};
use crate::pods::pod;
use crate::table::{Answer, figure, not_asked, promise};

/// Clients that a GPU serves.
const CLIENTS: u64 = 48;
/// Clients that are killed at once, and how often.
const KILLED: u32 = 10;
const KILLS: u32 = 50;
/// Kills without the drain: each can end the server.
const KILLS_WITHOUT: u32 = 4;
/// Kernels of some milliseconds on a large GPU. Those of a dozen programs end within the second that the drain has.
const LOADED: &str = "spin 50000 900";
/// What must be left of the time for another batch of kills and all that follows.
const FOR_THE_REST: Duration = Duration::from_secs(45);
/// The grace period of a killed pod: the drain has its second, and a second before.
const GRACE: u32 = 2;

pub(super) fn ask(lab: &mut Lab) {
    lab.ask("mps-offered", "a node with an MPS control daemon reports MPS", offered);
    lab.ask_cuda("mps-memory", "8 units under MPS are the most that a client gets", memory);
    lab.ask_cuda("mps-compute", "gpu-cores 25 and 70 divide the GPU in that ratio", compute);
    serving::under_mps(lab);
    lab.ask("mps-outside", "a program that leaves MPS is found and named", |lab| {
        lab.clear()?;
        lab.start_pod(&pod("leaves", 2, "outside hold 64 900").mps())?;
        lab.said("leaves", "held", HELD)?;
        lab.tell_driver(None)?;
        Ok(promise(true, lab.event("GPUProcessOutsideMPS")?))
    });
    lab.ask("mps-drain", "a pod's clients are terminated before they are killed", drained);
    lab.ask_cuda(
        "mps-kills",
        "kills of loaded clients end no neighbour while the drain runs",
        kills,
    );
    lab.ask_cuda("mps-kills-without", "kills of loaded clients without the drain", kills_without);
    lab.ask("mps-clients", "48 clients run on a GPU, and the 49th waits with the reason", clients);
    lab.ask("mps-daemon-killed", "without its daemon no new client is placed", daemon_killed);
}

fn offered(lab: &mut Lab) -> Result<Answer> {
    lab.clear()?;
    start_daemon(lab)?;
    lab.node.plugin_flags = vec![format!("--mps-dir={}", folder(&lab.work).display())];
    lab.node.kill_and_start("gpushare-device-plugin")?;
    let begin = Instant::now();
    let report = until_reported(lab, true)?;
    let took = seconds(begin.elapsed());
    Ok(promise(true, format!("{took} after the plugin's start: {report}")))
}

pub(super) fn start_daemon(lab: &mut Lab) -> Result<()> {
    // The former one ends first.
    lab.mps = None;
    lab.mps = Some(Mps::start(&lab.node, &lab.parts, &lab.work, lab.gpu.fake)?);
    Ok(())
}

/// Waits until the node's report of its GPU has clients of MPS, or has none.
fn until_reported(lab: &Lab, wanted: bool) -> Result<String> {
    wait_for("the node's report of MPS", TOLD, || {
        let report = lab.annotation("plimsoll.dev/gpu-cards")?;
        Ok((report.contains("mpsClients") == wanted).then_some(report))
    })
}

fn memory(lab: &mut Lab) -> Result<Answer> {
    lab.clear()?;
    lab.start_pod(&pod("limited", 8, "hold 16384 900").mps())?;
    lab.start_pod(&pod("within", 8, "hold 4096 900").mps().user(1000))?;
    let limited = lab.said("limited", "held", HELD)?;
    let within = lab.said("within", "held", HELD)?;
    let got = limited["gotMib"].as_u64().unwrap_or_default();
    let holds = (7 * 1024..=8 * 1024).contains(&got) && within["gotMib"] == 4096;
    let why = &limited["refused"];
    let text = format!("{got} MiB of 8,192 beside a context, then {why}; another user's {within}");
    Ok(promise(holds, text))
}

fn compute(lab: &mut Lab) -> Result<Answer> {
    lab.clear()?;
    let units = lab.allocatable()?;
    // At most the pod's part of the memory.
    let (small, large) = (units * 25 / 100 + 1, units * 70 / 100 + 1);
    lab.create(&pod("cores-25", small, "spin 100000 6").mps().cores(25))?;
    lab.create(&pod("cores-70", large, "spin 100000 6").mps().cores(70))?;
    let shown = |name| {
        let line = lab.said(name, "spins", HELD)?;
        line["multiprocessors"].as_f64().context("the program tells no multiprocessors")
    };
    let (few, many) = (shown("cores-25")?, shown("cores-70")?);
    let (slow, fast) = (rounds_a_second(lab, "cores-25")?, rounds_a_second(lab, "cores-70")?);
    let (shown, measured) = (many / few, fast / slow);
    let holds = is_near(shown, 2.8, 0.1) && is_near(measured, 2.8, 0.15);
    Ok(promise(
        holds,
        format!(
            "{few} and {many} multiprocessors; throughput in the ratio {measured:.2} (2.80 wanted)"
        ),
    ))
}

/// The stand-in notes what it is told; on a GPU the drain's log says it.
fn drained(lab: &mut Lab) -> Result<Answer> {
    lab.clear()?;
    let name = "drained";
    let words = if lab.gpu.fake { "hold 64 900" } else { LOADED };
    lab.start_pod(&pod(name, 2, words).mps().grace(GRACE))?;
    let pid = lab.pid(name)?;
    if lab.gpu.fake {
        fs::write(
            stand_in(&lab.work).join("clients"),
            format!("{pid}\n", pid = pid.as_raw_nonzero()),
        )?;
    } else {
        lab.said(name, "spins", HELD)?;
    }
    wait_for("the drain to serve", TOLD, || {
        Ok((lab.metric("plimsoll_gpu_mps_drain", &[])? == Some(1.0)).then_some(()))
    })?;
    let of_stand_in = stand_in(&lab.work).join("told");
    let told = if lab.gpu.fake { of_stand_in } else { lab.node.log("drain") };
    let begin = Instant::now();
    lab.delete(name)?;
    let line = wait_for("the client to be terminated", TOLD, || {
        let log = fs::read_to_string(&told)?;
        let number = format!(" {}", pid.as_raw_nonzero());
        let found =
            log.lines().find(|line| line.contains("terminate_client") && line.ends_with(&number));
        Ok(found.map(str::to_owned))
    })?;
    let took = begin.elapsed();
    let in_time = took < Duration::from_secs(u64::from(GRACE));
    Ok(promise(
        in_time,
        format!("{} after the deletion, of {GRACE} s of grace: {line}", seconds(took)),
    ))
}

/// Starts loaded pods with these names, and waits until each has kernels in flight.
fn start_loaded(lab: &Lab, names: &[String]) -> Result<()> {
    for name in names {
        lab.create(&pod(name, 1, LOADED).mps().grace(GRACE))?;
    }
    names.iter().try_for_each(|name| lab.said(name, "spins", HELD).map(drop))
}

fn kills(lab: &mut Lab) -> Result<Answer> {
    lab.clear()?;
    let neighbours = ["beside-0".to_owned(), "beside-1".to_owned()];
    start_loaded(lab, &neighbours)?;
    let mut killed = 0;
    while killed < KILLS && lab.table.left() > FOR_THE_REST {
        let names: Vec<String> = (killed..killed + KILLED).map(|n| format!("killed-{n}")).collect();
        start_loaded(lab, &names)?;
        names.iter().try_for_each(|name| lab.delete(name))?;
        until_gone(lab, &names)?;
        killed += KILLED;
        let lost = lost(lab, &neighbours)?;
        if lost > 0 {
            return Ok(promise(
                false,
                format!("{lost} of 2 neighbours lost within {killed} kills"),
            ));
        }
    }
    ensure!(killed > 0, "no time was left");
    Ok(promise(true, format!("0 of 2 neighbours lost in {killed} kills")))
}

/// A neighbour that is lost is replaced; where none comes up, the daemon too.
fn kills_without(lab: &mut Lab) -> Result<Answer> {
    lab.clear()?;
    let mps = lab.mps.as_mut().context("MPS does not run")?;
    mps.stop_drain()?;
    let (mut killed, mut lost_in, mut daemons) = (0, 0, 0);
    while killed < KILLS_WITHOUT && lab.table.left() > FOR_THE_REST {
        let names = [format!("beside-{killed}"), format!("loaded-{killed}")];
        if start_loaded(lab, &names).is_err() {
            daemons += 1;
            ensure!(daemons < 3, "no client starts, with a new daemon neither");
            lab.clear()?;
            start_daemon(lab)?;
            lab.mps.as_mut().context("MPS does not run")?.stop_drain()?;
            continue;
        }
        lab.delete(&names[1])?;
        until_gone(lab, &names[1..])?;
        // What ends a neighbour does so within a second; a kernel that fails says so at its next call.
        let mut ends = || Ok((lost(lab, &names[..1])? > 0).then_some(()));
        lost_in +=
            u32::from(wait_for("the neighbour's end", Duration::from_secs(2), &mut ends).is_ok());
        killed += 1;
        lab.clear()?;
    }
    start_daemon(lab)?;
    ensure!(killed > 0, "no time was left");
    Ok(figure(format!("the neighbour lost in {lost_in} of {killed} kills, {daemons} new daemons")))
}

fn until_gone(lab: &Lab, names: &[String]) -> Result<()> {
    wait_for("the killed pods to be gone", HELD, || {
        let listed = lab.pods()?;
        let there =
            |name: &String| listed.iter().any(|object| object["metadata"]["name"] == name.as_str());
        Ok((!names.iter().any(there)).then_some(()))
    })
}

/// How many of these pods do not run any more, or have said an error.
fn lost(lab: &Lab, names: &[String]) -> Result<usize> {
    let mut lost = 0;
    for name in names {
        let failed = lab.lines(name)?.iter().any(|line| !line["error"].is_null());
        lost += usize::from(failed || lab.phase(name)? != "Running");
    }
    Ok(lost)
}

fn clients(lab: &mut Lab) -> Result<Answer> {
    lab.clear()?;
    let units = lab.allocatable()?;
    if units <= CLIENTS {
        return Ok(not_asked(format!("the GPU has {units} units, and it takes {CLIENTS} and one")));
    }
    let names: Vec<String> = (0..CLIENTS).map(|number| format!("client-{number}")).collect();
    let begin = Instant::now();
    for name in &names {
        lab.create(&pod(name, 1, "hold 64 900").mps())?;
    }
    for name in &names {
        let line = lab.said(name, "held", HELD)?;
        let got = &line["gotMib"];
        ensure!(lab.gpu.fake || *got == 64, "{name} got {got} MiB of 64: {}", line["refused"]);
    }
    let took = seconds(begin.elapsed());
    lab.create(&pod("client-49th", 1, "hold 64 900").mps())?;
    let why = lab.until_refused("client-49th")?;
    let named = why.to_uppercase().contains("MPS");
    Ok(promise(named, format!("{CLIENTS} run after {took}; the next: {why}")))
}

fn daemon_killed(lab: &mut Lab) -> Result<Answer> {
    lab.clear()?;
    let mut mps = lab.mps.take().context("MPS does not run")?;
    mps.kill()?;
    let begin = Instant::now();
    until_reported(lab, false)?;
    let took = seconds(begin.elapsed());
    lab.create(&pod("too-late", 1, "hold 64 900").mps())?;
    match lab.until_refused("too-late") {
        Ok(why) => Ok(promise(true, format!("told after {took}; a new client waits: {why}"))),
        Err(error) => bail!("told after {took}; {error:#}"),
    }
}
