//! `scheduler-extender end-with-ca FILE PROCESS`: ends the processes of that name in its pod once a CA that they have
//! read is replaced.
//!
//! kube-scheduler reads the CA of its extenders when it starts, and never again. Its container is started again by the
//! kubelet, and then reads the new one. Invariant: a process is ended only if the file has another content than in both
//! looks around the process's start, and only while the file holds a certificate. Of a process that is there at the
//! first look, as after a restart of this one, the file's time decides: it has read what the file held when it started.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// The word that makes the program do this.
pub const COMMAND: &str = "end-with-ca";

/// The period of looks. The kubelet updates a mounted Secret within about a minute.
const EVERY: Duration = Duration::from_secs(2);

/// The kernel's clock ticks of a second, on all machines of today.
const TICKS: u64 = 100;

/// Looks until the process is ended.
#[must_use]
pub fn main(arguments: &[OsString]) -> ExitCode {
    let [file, name] = arguments else {
        say(&format!("usage: scheduler-extender {COMMAND} FILE PROCESS"));
        return ExitCode::FAILURE;
    };
    let (file, name) = (Path::new(file), name.to_string_lossy());
    let mut looks = Looks::default();
    loop {
        match look(file) {
            Ok((ca, written)) => {
                end(&looks.next(&ca, written, &processes(Path::new("/proc"), &name)));
            }
            Err(error) => say(&format!("{}: {error}", file.display())),
        }
        sleep(EVERY);
    }
}

/// What a file holds, and when that was written, as [`Process::start`]; `None` where that is not known.
fn look(file: &Path) -> io::Result<(Vec<u8>, Option<u64>)> {
    let ca = fs::read(file)?;
    let written = fs::metadata(file)?.modified()?;
    let boot = fs::read_to_string("/proc/stat").ok().and_then(|stat| boot(&stat));
    Ok((ca, boot.and_then(|boot| since_boot(written, boot))))
}

fn since_boot(time: SystemTime, boot: Duration) -> Option<u64> {
    let since = time.duration_since(UNIX_EPOCH).ok()?.checked_sub(boot)?;
    since.as_secs().checked_mul(TICKS)
}

fn end(processes: &[Process]) {
    for process in processes {
        let ended = Pid::from_raw(process.id).map(|id| kill_process(id, Signal::TERM));
        say(&match ended {
            Some(Err(error)) => {
                format!("process {} has an old CA, and cannot be ended: {error}", process.id)
            }
            _ => format!("the CA is another one: process {} ends, to start with it", process.id),
        });
    }
}

fn say(text: &str) {
    // An error here cannot be reported anywhere.
    let _ = writeln!(io::stderr(), "{COMMAND}: {text}");
}

/// A process. Ids are used again, with another start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Process {
    id: i32,
    /// In the kernel's clock ticks since the machine's start.
    start: u64,
}

impl Process {
    /// Whether it started before that time, by more than the times are rounded.
    fn is_older_than(self, time: u64) -> bool {
        self.start.saturating_add(2 * TICKS) < time
    }
}

/// What was seen so far.
#[derive(Debug, Default)]
struct Looks {
    /// The file's last content.
    last: Option<Vec<u8>>,
    /// The contents that each process may have read: those of the looks before and after its start.
    read: HashMap<Process, [Vec<u8>; 2]>,
}

impl Looks {
    /// Notes what there is now, written at that time, and returns the processes to end.
    fn next(&mut self, ca: &[u8], written: Option<u64>, processes: &[Process]) -> Vec<Process> {
        if !holds_certificates(ca) {
            return Vec::new();
        }
        let before = self.last.replace(ca.to_vec());
        self.read.retain(|process, _| processes.contains(process));
        for process in processes {
            let read = match &before {
                Some(before) => before.clone(),
                None if written.is_some_and(|written| process.is_older_than(written)) => Vec::new(),
                None => ca.to_vec(),
            };
            self.read.entry(*process).or_insert_with(|| [read, ca.to_vec()]);
        }
        let is_old = |process: &&Process| self.read[*process].iter().any(|read| read != ca);
        processes.iter().filter(is_old).copied().collect()
    }
}

fn holds_certificates(pem: &[u8]) -> bool {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    certificates.is_ok_and(|certificates| !certificates.is_empty())
}

/// The processes of that name that a folder as `/proc` shows.
fn processes(folder: &Path, name: &str) -> Vec<Process> {
    let read = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("stat")).ok();
    let of_name = |entry| process(&read(entry)?, name);
    fs::read_dir(folder).into_iter().flatten().flatten().filter_map(of_name).collect()
}

/// When the machine was started, since 1970, in a text as `/proc/stat`.
fn boot(stat: &str) -> Option<Duration> {
    let second = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    second.trim().parse().ok().map(Duration::from_secs)
}

/// The process of that name in a text as `/proc/PID/stat`: its id is the first field, its name the second, in
/// parentheses, and its start the 22nd.
fn process(stat: &str, name: &str) -> Option<Process> {
    let (id, rest) = stat.split_once(" (")?;
    let (found, rest) = rest.rsplit_once(") ")?;
    let start = rest.split(' ').nth(19)?;
    (found == name).then_some(())?;
    Some(Process { id: id.parse().ok()?, start: start.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use support::authority::Authority;

    use super::*;

    const ONE: Process = Process { id: 7, start: 100 };
    const OTHER: Process = Process { id: 7, start: 200 };

    const NEVER: Option<u64> = None;

    fn cas() -> [Vec<u8>; 3] {
        [(); 3].map(|()| Authority::new().pem().into_bytes())
    }

    #[test]
    fn a_process_is_ended_once_its_ca_is_replaced_and_its_successor_is_not() {
        let [a, b, c] = cas();
        let mut looks = Looks::default();
        assert_eq!(looks.next(&a, NEVER, &[]), []);
        assert_eq!(looks.next(&a, NEVER, &[ONE]), []);
        assert_eq!(looks.next(&b, NEVER, &[ONE]), [ONE]);
        assert_eq!(looks.next(&b, NEVER, &[ONE]), [ONE], "asked again while it ends");
        assert_eq!(looks.next(&b, NEVER, &[]), []);
        assert_eq!(looks.next(&b, NEVER, &[OTHER]), []);
        assert_eq!(looks.next(&c, NEVER, &[OTHER]), [OTHER]);
    }

    #[test]
    fn a_process_that_started_while_the_ca_was_replaced_is_ended() {
        let [a, b, _] = cas();
        let mut looks = Looks::default();
        assert_eq!(looks.next(&a, NEVER, &[]), []);
        assert_eq!(looks.next(&b, NEVER, &[ONE]), [ONE]);
        assert_eq!(looks.next(&b, NEVER, &[OTHER]), []);
    }

    #[test]
    fn a_process_that_started_before_the_ca_was_written_is_ended_at_the_first_look() {
        let [a, ..] = cas();
        for (written, is_old) in
            [(None, false), (Some(0), false), (Some(300), false), (Some(301), true)]
        {
            let mut looks = Looks::default();
            let ended = if is_old { vec![ONE] } else { vec![] };
            assert_eq!(looks.next(&a, written, &[ONE]), ended, "{written:?}");
            assert_eq!(looks.next(&a, written, &[ONE]), ended, "{written:?}");
            assert_eq!(looks.next(&a, written, &[OTHER]), [], "its successor has read it");
        }
    }

    #[test]
    fn a_file_without_a_certificate_ends_nothing() {
        let [a, b, _] = cas();
        let mut looks = Looks::default();
        assert_eq!(looks.next(&a, NEVER, &[ONE]), []);
        for broken in
            [&b""[..], b"hello", b"-----BEGIN CERTIFICATE-----\nAAAA\n", &b[..b.len() / 2]]
        {
            assert_eq!(looks.next(broken, NEVER, &[ONE]), []);
        }
        assert_eq!(looks.next(&a, NEVER, &[ONE]), []);
        assert_eq!(looks.next(&b, NEVER, &[ONE]), [ONE]);
    }

    #[test]
    fn a_process_is_told_by_its_whole_name_and_its_start() {
        let stat = |name: &str| {
            format!("12 ({name}) S 1 12 12 0 -1 4194560 9 0 0 0 1 2 0 0 20 0 9 0 4242 7 8")
        };
        let found = Some(Process { id: 12, start: 4242 });
        assert_eq!(process(&stat("kube-scheduler"), "kube-scheduler"), found);
        assert_eq!(process(&stat("a) S (b"), "a) S (b"), found);
        for other in ["kube-schedule", "kube-scheduler2", "x (kube-scheduler"] {
            assert_eq!(process(&stat(other), "kube-scheduler"), None, "{other}");
        }
        for broken in ["", "12", "12 (kube-scheduler) S 1", "x (kube-scheduler) S"] {
            assert_eq!(process(broken, "kube-scheduler"), None, "{broken}");
        }
    }

    #[test]
    fn this_process_is_found() {
        let own = i32::try_from(std::process::id()).unwrap();
        let name = fs::read_to_string("/proc/self/comm").unwrap();
        let found = processes(Path::new("/proc"), name.trim_end());
        let found = found.into_iter().find(|process| process.id == own).unwrap();
        let boot = boot(&fs::read_to_string("/proc/stat").unwrap()).unwrap();
        let is_older_than = |time| found.is_older_than(since_boot(time, boot).unwrap());
        assert!(is_older_than(SystemTime::now() + Duration::from_secs(100)), "{found:?}");
        assert!(!is_older_than(UNIX_EPOCH + boot), "{found:?}");
    }
}
