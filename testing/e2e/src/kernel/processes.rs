//! Owns what the kernel says about processes, read from `/proc` of this host. It shows the processes of every
//! container.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::process::kill_process;
pub use rustix::process::{Pid, Signal};

/// Every process of this host at this moment.
pub fn all() -> Result<Vec<Pid>> {
    let entries = fs::read_dir("/proc").context("cannot list /proc")?.flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(numbers.filter_map(Pid::from_raw).collect())
}

/// The processes of a container, found by its id in their cgroup's path.
pub fn of_container(id: &str) -> Result<Vec<Pid>> {
    if id.len() < 12 {
        bail!("{id:?} is no container id");
    }
    let mut found = all()?;
    found.retain(|pid| {
        fs::read_to_string(entry(*pid, "cgroup")).is_ok_and(|text| text.contains(id))
    });
    Ok(found)
}

/// The processes of this program below this control group, by number. The path is one from the root of each hierarchy.
pub fn of_program(cgroup: &str, program: &str) -> Result<Vec<Pid>> {
    let below = format!("{}/", cgroup.trim_end_matches('/'));
    let mut found = all()?;
    found.retain(|pid| is_program(*pid, program) && is_inside(*pid, &below));
    found.sort_by_key(|pid| pid.as_raw_nonzero());
    Ok(found)
}

fn is_program(pid: Pid, program: &str) -> bool {
    arguments(pid).first().and_then(|path| path.rsplit('/').next()) == Some(program)
}

/// Whether the process is in a control group whose path contains `below`.
fn is_inside(pid: Pid, below: &str) -> bool {
    let text = fs::read_to_string(entry(pid, "cgroup")).unwrap_or_default();
    text.lines().any(|line| line.splitn(3, ':').nth(2).is_some_and(|path| path.contains(below)))
}

/// The process with the number `inner` in the PID namespace of `init`; `None` if there is none.
pub fn in_namespace(init: Pid, inner: i32) -> Result<Option<Pid>> {
    let space = fs::read_link(entry(init, "ns/pid"))?;
    Ok(all()?.into_iter().find(|pid| {
        let same_space = fs::read_link(entry(*pid, "ns/pid")).is_ok_and(|other| other == space);
        same_space && namespace_pids(*pid).is_some_and(|pids| pids.last() == Some(&inner))
    }))
}

/// The process's number in the PID namespace of `init`, which is an outer one of its own.
pub fn number_in(init: Pid, pid: Pid) -> Result<i32> {
    let depth = namespace_pids(init).context("no PID namespaces")?.len() - 1;
    let numbers = namespace_pids(pid).context("no PID namespaces")?;
    numbers.get(depth).copied().context("the process is not in that PID namespace")
}

/// The process's numbers in its PID namespaces, this host's first.
fn namespace_pids(pid: Pid) -> Option<Vec<i32>> {
    status(pid, "NSpid:")?.split_whitespace().map(|number| number.parse().ok()).collect()
}

/// Whether the process runs its container's own program. A container counts as started once runc has told its process
/// to go on: on a busy host that is still runc's, without the container's environment, when its pod is seen to run.
pub fn has_begun(pid: Pid) -> bool {
    // In this order: the kernel changes the name after the old environment is gone, and before the new one is there.
    let name = fs::read_to_string(entry(pid, "comm")).unwrap_or_default();
    let environment = fs::read(entry(pid, "environ")).unwrap_or_default();
    is_own_program(&name, &environment)
}

fn is_own_program(name: &str, environment: &[u8]) -> bool {
    !name.starts_with("runc:[") && !environment.is_empty()
}

/// The environment that the process was started with.
pub fn environ(pid: Pid) -> Result<BTreeMap<String, String>> {
    let path = entry(pid, "environ");
    let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    Ok(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// The root folder that the process sees.
pub fn root(pid: Pid) -> PathBuf {
    entry(pid, "root")
}

/// The sorted names in the process's own `/dev`.
pub fn device_nodes(pid: Pid) -> Result<Vec<String>> {
    let path = root(pid).join("dev");
    let entries = fs::read_dir(&path).with_context(|| format!("cannot list {}", path.display()))?;
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

/// The entries `prefixN` of the process's own `/dev`: N, and the device's major and minor number.
pub fn numbered_devices(pid: Pid, prefix: &str) -> Result<Vec<(u8, (u32, u32))>> {
    let numbered = device_nodes(pid)?.into_iter().filter_map(|name| {
        let number = name.strip_prefix(prefix)?.parse().ok()?;
        Some((number, name))
    });
    numbered
        .map(|(number, name)| {
            let device = fs::metadata(entry(pid, "root/dev").join(name))?.rdev();
            Ok((number, (rustix::fs::major(device), rustix::fs::minor(device))))
        })
        .collect()
}

/// The rules of the process's device cgroup, such as `c 195:0 rwm`.
///
/// `None` under cgroup version 2, where they are a BPF program that cannot be read.
pub fn device_cgroup(pid: Pid) -> Result<Option<Vec<String>>> {
    let Some(path) = cgroup(pid, "devices")? else { return Ok(None) };
    let file =
        Path::new("/sys/fs/cgroup/devices").join(path.trim_start_matches('/')).join("devices.list");
    let list =
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(Some(list.lines().map(str::to_owned).collect()))
}

/// The path of the process's control group in the hierarchy of a version 1 controller, or in that of version 2 for the
/// empty name; `None` where the hierarchy does not exist.
pub fn cgroup(pid: Pid, controller: &str) -> Result<Option<String>> {
    let text = fs::read_to_string(entry(pid, "cgroup"))?;
    let mut paths = text.lines().filter_map(|line| controller_path(line, controller));
    Ok(paths.next().map(str::to_owned))
}

/// `5:devices:/path` gives `/path`.
fn controller_path<'line>(line: &'line str, controller: &str) -> Option<&'line str> {
    let mut fields = line.splitn(3, ':').skip(1);
    let names = fields.next()?;
    names.split(',').any(|name| name == controller).then(|| fields.next()).flatten()
}

/// Resident memory in KiB; `None` if the process is gone.
pub fn resident_kib(pid: Pid) -> Option<u64> {
    status(pid, "VmRSS:")?.split_whitespace().next()?.parse().ok()
}

/// A field of the process's `status`.
fn status(pid: Pid, field: &str) -> Option<String> {
    let text = fs::read_to_string(entry(pid, "status")).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(value.trim().to_owned())
}

/// The mount points in the process's mount namespace.
pub fn mounts(pid: Pid) -> Result<Vec<String>> {
    let text = fs::read_to_string(entry(pid, "mountinfo"))?;
    let places = text.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(places.map(str::to_owned).collect())
}

/// The start time of the process in clock ticks since boot. It tells a process from a later one of the same number.
pub fn started(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(entry(pid, "stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Hundredths of a second since boot, the unit of [`started`], rounded down.
pub fn ticks_now() -> Option<u64> {
    let text = fs::read_to_string("/proc/uptime").ok()?;
    let (seconds, hundredths) = text.split(' ').next()?.split_once('.')?;
    Some(seconds.parse::<u64>().ok()? * 100 + hundredths.parse::<u64>().ok()?)
}

/// Whether the process that started then still runs. One that only waits for its parent does not.
pub fn runs(pid: Pid, started: u64) -> bool {
    let stat = fs::read_to_string(entry(pid, "stat")).unwrap_or_default();
    let Some((_, fields)) = stat.rsplit_once(')') else { return false };
    let mut fields = fields.split_whitespace();
    let waits = fields.next().is_none_or(|state| matches!(state, "Z" | "X"));
    !waits && fields.nth(18).and_then(|text| text.parse().ok()) == Some(started)
}

/// The CPU time of the process and of its ended children, in clock ticks.
pub fn cpu_ticks(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(entry(pid, "stat")).ok()?;
    // utime, stime, cutime and cstime are fields 14 to 17; field 3 follows the name in parentheses.
    let fields = stat.rsplit_once(") ")?.1.split(' ').skip(11).take(4);
    fields.map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// The words of the process's command line.
pub fn arguments(pid: Pid) -> Vec<String> {
    let bytes = fs::read(entry(pid, "cmdline")).unwrap_or_default();
    let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Sends a signal; a process that is gone is an error.
pub fn signal(pid: Pid, signal: Signal) -> Result<()> {
    kill_process(pid, signal)
        .with_context(|| format!("cannot signal process {}", pid.as_raw_nonzero()))
}

/// Sends a signal to each; the first that is gone is an error.
pub fn signal_all(processes: &[Pid], which: Signal) -> Result<()> {
    processes.iter().try_for_each(|process| signal(*process, which))
}

/// Kills processes. One that is already gone is no error: the processes of a container end with its first.
pub fn kill_all(processes: &[Pid]) -> Result<()> {
    processes.iter().try_for_each(|process| match kill_process(*process, Signal::KILL) {
        Err(Errno::SRCH) => Ok(()),
        other => other.with_context(|| format!("cannot kill process {}", process.as_raw_nonzero())),
    })
}

/// Whether the process still exists.
pub fn alive(pid: Pid) -> bool {
    entry(pid, "stat").exists()
}

fn entry(pid: Pid, name: &str) -> PathBuf {
    Path::new("/proc").join(pid.as_raw_nonzero().to_string()).join(name)
}
