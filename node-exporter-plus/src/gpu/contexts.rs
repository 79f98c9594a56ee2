//! `gpu-probe contexts`: opens a CUDA context where the device plugin asks for one on a unix socket, by a process of
//! its own for each question: `gpu-probe context`. CUDA reads `CUDA_VISIBLE_DEVICES` once in a process, a context takes
//! some 200 MiB of the host's memory, and a call into the driver may never return.
//!
//! Invariants: one such process runs at a time, beside those that hang in the kernel and cannot be killed; no second
//! one is started for the GPU of such a process. A failure counts only in a container that is new, or was when that GPU
//! first failed: a container keeps the devices and the library that it began with, and may lose devices.

use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nvml::cuda::{Answer, MAX_LINE, Question};

/// The time for one context. Without persistence mode the driver initialises the GPU first, which takes seconds.
const LIMIT: Duration = Duration::from_secs(30);
/// The time in which a killed process ends, unless it hangs in the kernel.
const KILLED: Duration = Duration::from_secs(5);
/// The time for a client to write its question, and to read the answer.
const CLIENT: Duration = Duration::from_secs(5);
/// The pause between two looks at a process.
const LOOK: Duration = Duration::from_millis(20);
/// How old a container may be in which a GPU fails that had not failed before.
const NEW: Duration = Duration::from_secs(300);
/// The time for which a GPU fails, after which the server ends: a new container has the devices and the library as they
/// are by then. After ten minutes the kubelet starts a container again at once.
const GIVE_UP_AFTER: Duration = Duration::from_secs(600);
/// The largest number of GPUs of which the server remembers something.
const MAX_GPUS: usize = 64;

/// What answers questions, one after the other.
#[derive(Debug)]
pub struct Contexts {
    /// This program, which opens a context as `PROGRAM context LIBRARY`.
    program: PathBuf,
    /// CUDA's library: a path, or a name that the dynamic loader finds.
    library: PathBuf,
    limit: Duration,
    started: Instant,
    /// The processes that were killed and have not ended, by their GPUs.
    stuck: HashMap<String, Child>,
    /// Since when each GPU has failed.
    failing: HashMap<String, Instant>,
    /// The GPUs that have failed while the container was new.
    failed_when_new: HashSet<String>,
    /// Locked while a process opens a context.
    asking: Arc<Mutex<()>>,
}

impl Contexts {
    /// Has `program` open contexts by the CUDA library `library`.
    #[must_use]
    pub fn new(program: PathBuf, library: PathBuf) -> Self {
        Self {
            program,
            library,
            limit: LIMIT,
            started: Instant::now(),
            stuck: HashMap::new(),
            failing: HashMap::new(),
            failed_when_new: HashSet::new(),
            asking: Arc::default(),
        }
    }

    /// Gives a context this time in place of 30 seconds.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Locked while a process opens a context.
    #[must_use]
    pub fn asking(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.asking)
    }

    /// Answers clients until a new container may do better; returns why it ends.
    ///
    /// # Errors
    /// If no client can be accepted.
    pub fn serve(mut self, listener: &UnixListener) -> io::Result<String> {
        loop {
            let (client, _) = listener.accept()?;
            // A client that fails has lost its answer, and asks again.
            if let Ok(Some(question)) = self.answer(client)
                && let Some(why) = self.is_over(&question.uuid, Instant::now())
            {
                return Ok(why);
            }
        }
    }

    /// Answers one client; returns its question.
    fn answer(&mut self, mut client: UnixStream) -> io::Result<Option<Question>> {
        client.set_read_timeout(Some(CLIENT))?;
        client.set_write_timeout(Some(CLIENT))?;
        let question = first_line(&client)?.and_then(|line| Question::parse(&line));
        let answer = match &question {
            Some(question) => self.ask(question),
            None => {
                Answer::Unknown("the question is none: `UUID none` or `UUID mps /FOLDER`".into())
            }
        };
        writeln!(client, "{answer}")?;
        Ok(question)
    }

    /// Opens a context.
    fn ask(&mut self, question: &Question) -> Answer {
        let uuid = &question.uuid;
        let answer = if self.hangs(uuid) {
            Answer::Failed(hangs(self.limit))
        } else if self.stuck.len() + self.failing.len() >= 2 * MAX_GPUS {
            Answer::Unknown("too many GPUs fail".to_owned())
        } else {
            self.run(question).unwrap_or_else(|error| {
                Answer::Unknown(format!("{}: {error}", self.program.display()))
            })
        };
        match answer {
            Answer::Passed => {
                self.failing.remove(uuid);
                self.failed_when_new.remove(uuid);
            }
            Answer::Failed(_) => {
                self.failing.entry(uuid.clone()).or_insert_with(Instant::now);
                if self.started.elapsed() < NEW {
                    self.failed_when_new.insert(uuid.clone());
                }
            }
            Answer::Unknown(_) => {}
        }
        match answer {
            Answer::Failed(why) if !self.failed_when_new.contains(uuid) => {
                Answer::Unknown(format!("{why}, maybe in this container alone: a new one is asked"))
            }
            answer => answer,
        }
    }

    /// Whether a process for this GPU was killed and has not ended.
    fn hangs(&mut self, uuid: &str) -> bool {
        self.stuck.retain(|_, child| !child.try_wait().is_ok_and(|status| status.is_some()));
        self.stuck.contains_key(uuid)
    }

    fn run(&mut self, question: &Question) -> io::Result<Answer> {
        let asking = self.asking();
        let _asking = asking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = Command::new(&self.program);
        command.arg("context").arg(&self.library).env("CUDA_VISIBLE_DEVICES", &question.uuid);
        match &question.mps {
            Some(folder) => command.env("CUDA_MPS_PIPE_DIRECTORY", folder),
            None => command.env_remove("CUDA_MPS_PIPE_DIRECTORY"),
        };
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        if !ends_within(&mut child, self.limit)? {
            let computes = is_runnable(&child);
            child.kill()?;
            if !ends_within(&mut child, KILLED)? {
                self.stuck.insert(question.uuid.clone(), child);
            }
            return Ok(if computes {
                Answer::Unknown(format!("no answer within {:?}: CPUs are busy", self.limit))
            } else {
                Answer::Failed(hangs(self.limit))
            });
        }
        let status = child.wait()?;
        let line = match child.stdout.take() {
            Some(output) => first_line(output)?,
            None => None,
        };
        let answer = line.and_then(|line| Answer::parse(&line));
        Ok(answer.unwrap_or_else(|| Answer::Unknown(format!("gpu-probe context ended: {status}"))))
    }

    /// Why this process ends after a question about that GPU; `None` if it goes on. One that left a process behind in
    /// the kernel could not be started again.
    fn is_over(&self, uuid: &str, now: Instant) -> Option<String> {
        let since = self.failing.get(uuid).filter(|_| self.stuck.is_empty())?;
        let is_over =
            !self.failed_when_new.contains(uuid) || now.duration_since(*since) >= GIVE_UP_AFTER;
        is_over.then(|| {
            format!(
                "GPU {uuid} fails, so this process ends: a new container has the devices and the driver's library as they \
                 are now"
            )
        })
    }
}

/// Whether a process waits for nothing but a CPU, by the third field of its `stat`, behind its name in parentheses.
fn is_runnable(child: &Child) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
}

fn hangs(limit: Duration) -> String {
    format!("CUDA does not answer within {limit:?}")
}

/// Whether a process ends by itself within `limit`.
fn ends_within(child: &mut Child, limit: Duration) -> io::Result<bool> {
    let begun = Instant::now();
    while child.try_wait()?.is_none() {
        if begun.elapsed() >= limit {
            return Ok(false);
        }
        sleep(LOOK);
    }
    Ok(true)
}

/// The first line without its end; `None` if it is too long, has no end, or is no text.
fn first_line(input: impl Read) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    BufReader::new(input.take(MAX_LINE as u64 + 1)).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Ok(None);
    }
    Ok(String::from_utf8(line).ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A program in place of `gpu-probe`, with its folder. A shell writes it: a file that this process writes may be
    /// open in the children of other tests, and cannot be run meanwhile.
    fn contexts(script: &str, limit: Duration) -> (tempfile::TempDir, Contexts) {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("probe");
        let write = r#"printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod +x "$1""#;
        let mut shell = Command::new("sh");
        shell.args(["-c", write, "sh"]).arg(&program).arg(script);
        assert!(shell.status().unwrap().success());
        (folder, Contexts::new(program, "libcuda.so.1".into()).within(limit))
    }

    fn question(line: &str) -> Question {
        Question::parse(line).unwrap()
    }

    fn answer(script: &str, line: &str) -> String {
        let (_folder, mut contexts) = contexts(script, Duration::from_secs(60));
        contexts.ask(&question(line)).to_string()
    }

    #[test]
    fn the_process_gets_the_gpu_the_library_and_the_pipes_of_mps() {
        let echo = r#"echo "failed $1 $2 $CUDA_VISIBLE_DEVICES ${CUDA_MPS_PIPE_DIRECTORY-no MPS}""#;
        assert_eq!(answer(echo, "GPU-a none"), "failed context libcuda.so.1 GPU-a no MPS");
        assert_eq!(answer(echo, "GPU-b mps /p"), "failed context libcuda.so.1 GPU-b /p");
        assert_eq!(answer("echo passed; exit 1", "GPU-a none"), "passed");
    }

    #[test]
    fn a_process_that_ends_without_an_answer_says_nothing_about_the_gpu() {
        for script in
            ["exit 1", "kill -9 $$", "echo nonsense", "printf passed", "yes | head -c 9999"]
        {
            let answer = answer(script, "GPU-a none");
            assert!(answer.starts_with("unknown gpu-probe context ended: "), "{answer}");
        }
        let mut nothing = Contexts::new("/nonexistent/probe".into(), "libcuda.so.1".into());
        assert!(matches!(nothing.ask(&question("GPU-a none")), Answer::Unknown(_)));
    }

    #[test]
    fn a_process_that_hangs_is_killed_and_has_failed() {
        let (_folder, mut contexts) = contexts("exec sleep 1000", Duration::from_millis(50));
        let answer = contexts.ask(&question("GPU-a none"));
        assert_eq!(answer, Answer::Failed(hangs(contexts.limit)));
        assert!(contexts.stuck.is_empty(), "it has ended");
    }

    #[test]
    fn one_that_only_lacks_a_cpu_says_nothing_about_the_gpu() {
        let (_folder, mut contexts) = contexts("while :; do :; done", Duration::from_millis(300));
        let answer = contexts.ask(&question("GPU-a none")).to_string();
        assert!(answer.starts_with("unknown no answer within"), "{answer}");
    }

    #[test]
    fn no_second_process_is_started_for_a_gpu_whose_process_cannot_be_killed() {
        let (folder, mut contexts) =
            contexts("touch \"${0%/*}/$CUDA_VISIBLE_DEVICES\"; echo passed", LIMIT);
        let unkillable = Command::new("sleep").arg("1000").spawn().unwrap();
        contexts.stuck.insert("GPU-a".to_owned(), unkillable);
        assert!(matches!(contexts.ask(&question("GPU-a none")), Answer::Failed(_)));
        assert!(!folder.path().join("GPU-a").exists());
        assert_eq!(contexts.ask(&question("GPU-b none")), Answer::Passed, "another GPU is asked");
        let later = Instant::now() + GIVE_UP_AFTER;
        assert_eq!(contexts.is_over("GPU-a", later), None, "it would stay behind");
        let stuck = contexts.stuck.get_mut("GPU-a").unwrap();
        stuck.kill().unwrap();
        stuck.wait().unwrap();
        assert_eq!(contexts.ask(&question("GPU-a none")), Answer::Passed);
    }

    #[test]
    fn it_ends_once_a_gpu_has_failed_for_ten_minutes() {
        let (folder, mut contexts) = contexts("cat \"${0%/*}/answer\"", LIMIT);
        let mut says = |answer: &str, uuid: &str, later: Duration| {
            fs::write(folder.path().join("answer"), format!("{answer}\n")).unwrap();
            contexts.ask(&question(&format!("{uuid} none")));
            contexts.is_over(uuid, Instant::now() + later).is_some()
        };
        let (soon, late) = (GIVE_UP_AFTER / 2, GIVE_UP_AFTER);
        assert!(!says("failed it", "GPU-a", soon));
        assert!(!says("passed", "GPU-b", late));
        assert!(!says("unknown it", "GPU-c", late), "nothing is known to be wrong");
        assert!(says("failed it", "GPU-a", late));
        assert!(!says("passed", "GPU-a", late));
    }

    #[test]
    fn a_first_failure_in_an_old_container_is_that_of_the_container() {
        let (_folder, mut contexts) = contexts("echo failed it", LIMIT);
        assert_eq!(contexts.ask(&question("GPU-a none")), Answer::Failed("it".to_owned()));
        contexts.started = Instant::now().checked_sub(NEW).unwrap();
        assert_eq!(contexts.ask(&question("GPU-a none")), Answer::Failed("it".to_owned()));
        assert_eq!(contexts.is_over("GPU-a", Instant::now()), None);
        assert!(matches!(contexts.ask(&question("GPU-b none")), Answer::Unknown(_)));
        assert!(contexts.is_over("GPU-b", Instant::now()).is_some(), "a new one is asked");
    }

    #[test]
    fn a_client_gets_one_line_whatever_it_writes() {
        let (folder, contexts) = contexts("echo passed", LIMIT);
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || contexts.serve(&listener));
        let ask = |text: &[u8]| {
            let mut client = UnixStream::connect(&socket).unwrap();
            client.write_all(text).unwrap();
            first_line(&client).unwrap().unwrap()
        };
        assert_eq!(ask(b"GPU-a none\n"), "passed");
        for wrong in [&b"GPU-a\n"[..], b"\xff none\n", &[b'x'; MAX_LINE + 1]] {
            assert!(ask(wrong).starts_with("unknown the question is none"));
        }
        drop(UnixStream::connect(&socket).unwrap());
        assert_eq!(ask(b"GPU-a mps /p\n"), "passed", "clients that leave end nothing");
    }
}
