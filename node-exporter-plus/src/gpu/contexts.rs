//! `gpu-probe contexts`: opens a CUDA context where the device plugin asks for one on a unix socket, by a process of
//! its own for each question: `gpu-probe context`. CUDA reads `CUDA_VISIBLE_DEVICES` once in a process, a context takes
//! some 200 MiB of the host's memory, and a call into the driver may never return.
//!
//! Invariant: one such process runs at a time. One that hangs in the kernel cannot be killed, and no second one is
//! started while it exists.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
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
/// The time for which a GPU does not pass, after which the server ends: a new container has the devices and the library
/// as they are by then. After ten minutes the kubelet starts a container again at once.
const GIVE_UP_AFTER: Duration = Duration::from_secs(600);
/// The largest number of GPUs of which the server remembers that they do not pass.
const MAX_GPUS: usize = 64;

/// What answers questions, one after the other.
#[derive(Debug)]
pub struct Contexts {
    /// This program, which opens a context as `PROGRAM context LIBRARY`.
    program: PathBuf,
    /// CUDA's library: a path, or a name that the dynamic loader finds.
    library: PathBuf,
    limit: Duration,
    /// The process that was killed and has not ended, and its GPU.
    stuck: Option<(Child, String)>,
    /// Since when each GPU has not passed.
    not_passed: HashMap<String, Instant>,
}

impl Contexts {
    /// Has `program` open contexts by the CUDA library `library`.
    #[must_use]
    pub fn new(program: PathBuf, library: PathBuf) -> Self {
        Self { program, library, limit: LIMIT, stuck: None, not_passed: HashMap::new() }
    }

    /// Gives a context this time in place of 30 seconds.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Answers clients until a GPU has not passed for ten minutes; returns why it ends.
    ///
    /// # Errors
    /// If no client can be accepted.
    pub fn serve(mut self, listener: &UnixListener) -> io::Result<String> {
        loop {
            let (client, _) = listener.accept()?;
            // A client that fails has lost its answer, and asks again.
            if let Ok(Some(question)) = self.answer(client)
                && let Some(why) = self.is_over(&question, Instant::now())
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
        let answer = match self.waits_for() {
            Some(uuid) if uuid == question.uuid => Answer::Failed(hangs(self.limit)),
            Some(uuid) => Answer::Unknown(format!(
                "a call into NVIDIA's driver for GPU {uuid} hangs and cannot be killed"
            )),
            None => self.run(question).unwrap_or_else(|error| {
                Answer::Unknown(format!("{}: {error}", self.program.display()))
            }),
        };
        if answer == Answer::Passed {
            self.not_passed.remove(&question.uuid);
        } else if self.not_passed.len() < MAX_GPUS {
            self.not_passed.entry(question.uuid.clone()).or_insert_with(Instant::now);
        }
        answer
    }

    /// The GPU for which a process hangs that was killed.
    fn waits_for(&mut self) -> Option<&str> {
        if let Some((child, _)) = &mut self.stuck
            && child.try_wait().is_ok_and(|status| status.is_some())
        {
            self.stuck = None;
        }
        self.stuck.as_ref().map(|(_, uuid)| uuid.as_str())
    }

    fn run(&mut self, question: &Question) -> io::Result<Answer> {
        let mut command = Command::new(&self.program);
        command.arg("context").arg(&self.library).env("CUDA_VISIBLE_DEVICES", &question.uuid);
        match &question.mps {
            Some(folder) => command.env("CUDA_MPS_PIPE_DIRECTORY", folder),
            None => command.env_remove("CUDA_MPS_PIPE_DIRECTORY"),
        };
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        if !ends_within(&mut child, self.limit)? {
            child.kill()?;
            if !ends_within(&mut child, KILLED)? {
                self.stuck = Some((child, question.uuid.clone()));
            }
            return Ok(Answer::Failed(hangs(self.limit)));
        }
        let status = child.wait()?;
        let line = match child.stdout.take() {
            Some(output) => first_line(output)?,
            None => None,
        };
        let answer = line.and_then(|line| Answer::parse(&line));
        Ok(answer.unwrap_or_else(|| Answer::Unknown(format!("gpu-probe context ended: {status}"))))
    }

    /// Why this process ends after that question; `None` if it goes on. One that left a process behind in the kernel
    /// could not be started again.
    fn is_over(&self, question: &Question, now: Instant) -> Option<String> {
        let uuid = &question.uuid;
        let since = self.not_passed.get(uuid).filter(|_| self.stuck.is_none())?;
        (now.duration_since(*since) >= GIVE_UP_AFTER).then(|| {
            format!(
                "GPU {uuid} has not passed for ten minutes, so this process ends: a new container has the devices and the \
                 driver's library as they are now"
            )
        })
    }
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
        assert!(contexts.stuck.is_none(), "it has ended");
    }

    #[test]
    fn no_second_process_is_started_while_one_cannot_be_killed() {
        let (folder, mut contexts) = contexts("touch \"${0%/*}/started\"; echo passed", LIMIT);
        let unkillable = Command::new("sleep").arg("1000").spawn().unwrap();
        contexts.stuck = Some((unkillable, "GPU-a".to_owned()));
        assert!(matches!(contexts.ask(&question("GPU-a none")), Answer::Failed(_)));
        assert!(matches!(contexts.ask(&question("GPU-b none")), Answer::Unknown(_)));
        assert!(!folder.path().join("started").exists());
        let later = Instant::now() + GIVE_UP_AFTER;
        assert_eq!(contexts.is_over(&question("GPU-a none"), later), None, "it would stay behind");
        contexts.stuck.as_mut().unwrap().0.kill().unwrap();
        contexts.stuck.as_mut().unwrap().0.wait().unwrap();
        assert_eq!(contexts.ask(&question("GPU-b none")), Answer::Passed);
    }

    #[test]
    fn it_ends_once_a_gpu_has_not_passed_for_ten_minutes() {
        let (folder, mut contexts) = contexts("cat \"${0%/*}/answer\"", LIMIT);
        let mut says = |answer: &str, uuid: &str, later: Duration| {
            fs::write(folder.path().join("answer"), format!("{answer}\n")).unwrap();
            let question = question(&format!("{uuid} none"));
            contexts.ask(&question);
            contexts.is_over(&question, Instant::now() + later).is_some()
        };
        let (soon, late) = (GIVE_UP_AFTER / 2, GIVE_UP_AFTER);
        assert!(!says("failed it", "GPU-a", soon));
        assert!(!says("passed", "GPU-b", late));
        assert!(says("unknown it", "GPU-a", late));
        assert!(!says("passed", "GPU-a", late));
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
