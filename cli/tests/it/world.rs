//! A kubectl that answers from texts, and an extender that answers by paths.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use support::programs::write_script;

use crate::command::{PLIMSOLL, Run, text};

/// The call by which Plimsoll is found.
pub(crate) const BINDINGS: &str = "get clusterrolebindings plimsoll-scheduler-extender";

/// A folder with a kubectl. A call is answered by the first rule whose words it begins with.
pub(crate) struct World {
    folder: tempfile::TempDir,
    rules: Vec<(String, String)>,
}

impl World {
    /// A kubectl that knows nothing, in the namespace `shop`, of a cluster with Plimsoll.
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), rules: Vec::new() }
    }

    /// Calls that begin with these words are answered with this text.
    pub(crate) fn answer(mut self, words: &str, text: &str) -> Self {
        let file = format!("answer-{}", self.rules.len());
        fs::write(self.folder.path().join(&file), text).unwrap();
        self.rules.push((words.to_owned(), format!("cat {file}")));
        self
    }

    /// As [`World::answer`], with a value.
    pub(crate) fn json(self, words: &str, value: &Value) -> Self {
        self.answer(words, &value.to_string())
    }

    /// Calls that begin with these words fail with this message.
    pub(crate) fn fails(mut self, words: &str, message: &str) -> Self {
        let file = format!("answer-{}", self.rules.len());
        fs::write(self.folder.path().join(&file), message).unwrap();
        self.rules.push((words.to_owned(), format!("cat {file} >&2; exit 1")));
        self
    }

    /// Calls that begin with these words run this script of a shell, in the folder.
    pub(crate) fn acts(mut self, words: &str, script: &str) -> Self {
        self.rules.push((words.to_owned(), script.to_owned()));
        self
    }

    /// Calls that begin with these words read their standard input into the file `stdin`.
    pub(crate) fn reads(mut self, words: &str) -> Self {
        self.rules.push((words.to_owned(), "cat > stdin".to_owned()));
        self
    }

    /// A port-forward to this target leads to the port of this URL, until it is killed.
    pub(crate) fn forwards(mut self, target: &str, url: &str) -> Self {
        let port = url.rsplit(':').next().unwrap();
        let words = format!("port-forward --address=127.0.0.1 --namespace=plimsoll {target}");
        let said = format!(
            "echo $$ > forward; echo 'Forwarding from 127.0.0.1:{port} -> 19107'; exec sleep 1000"
        );
        self.rules.push((words, said));
        self
    }

    /// Plimsoll in its namespace, with its leading extender at this URL.
    pub(crate) fn with_extender(self, url: &str) -> Self {
        self.answer("config view --minify", "shop")
            .bound("plimsoll", "plimsoll")
            .answer(
                "get lease plimsoll-scheduler-extender",
                r#"{"spec": {"holderIdentity": "scheduler-extender-7c9f-x2k_4f1d"}}"#,
            )
            .forwards("pod/scheduler-extender-7c9f-x2k", url)
    }

    /// The ClusterRoleBindings of Plimsoll with the extender in one namespace and the device plugin in another.
    pub(crate) fn bound(self, own: &str, node_agents: &str) -> Self {
        let binding = |program: &str, namespace: &str| {
            json!({
                "metadata": {"name": format!("plimsoll-{program}")},
                "subjects": [{"kind": "ServiceAccount", "name": program, "namespace": namespace}],
            })
        };
        let items =
            [binding("scheduler-extender", own), binding("gpushare-device-plugin", node_agents)];
        self.json(BINDINGS, &json!({"items": items}))
    }

    /// Runs `plimsoll`.
    pub(crate) fn run(&self, args: &[&str]) -> Run {
        self.run_with(args, "")
    }

    /// A `plimsoll` that is not started yet.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        self.write_kubectl();
        let mut command = Command::new(PLIMSOLL);
        command
            .args(args)
            .env("PATH", format!("{}:/usr/bin:/bin", self.path().display()))
            .env("COLUMNS", "100")
            .env_remove("PLIMSOLL_EXTENDER")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Whether the process still runs whose number a script has written into this file.
    pub(crate) fn runs(&self, file: &str) -> bool {
        let pid: u32 = fs::read_to_string(self.path().join(file)).unwrap().trim().parse().unwrap();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    }

    /// Runs `plimsoll` with a text on its stdin.
    pub(crate) fn run_with(&self, args: &[&str], stdin: &str) -> Run {
        let mut child = self.command(args).spawn().unwrap();
        // A run that reads nothing may be over already.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        let output = child.wait_with_output().unwrap();
        Run { stdout: text(output.stdout), stderr: text(output.stderr), code: output.status.code() }
    }

    fn write_kubectl(&self) {
        let mut script =
            "#!/bin/sh\ncd \"${0%/*}\"\necho \"$*\" >> calls\ncase \"$*\" in\n".to_owned();
        for (words, action) in &self.rules {
            writeln!(script, "\"{words}\"*) {action} ;;").unwrap();
        }
        script += "*) echo \"no rule for $*\" >&2; exit 1 ;;\nesac\n";
        write_script(&self.path().join("kubectl"), &script);
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The calls of kubectl, one a line.
    pub(crate) fn calls(&self) -> String {
        fs::read_to_string(self.path().join("calls")).unwrap_or_default()
    }

    /// What [`World::reads`] has read.
    pub(crate) fn stdin(&self) -> String {
        fs::read_to_string(self.path().join("stdin")).unwrap_or_default()
    }
}

/// An extender with fixed answers.
pub(crate) struct Extender {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Extender {
    /// Answers each request whose path begins with one of these with its text, all others with 404.
    pub(crate) fn new(answers: &[(&str, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answers: Vec<(String, String)> =
            answers.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        thread::spawn(move || {
            for mut connection in listener.incoming().map_while(Result::ok) {
                let (line, body) = request(&mut connection);
                let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
                seen.lock().unwrap().push(format!("{line} {body}").trim_end().to_owned());
                let found = answers.iter().find(|(start, _)| path.starts_with(start.as_str()));
                let (status, text) = match found {
                    Some((_, text)) => ("200 OK", text.as_str()),
                    None => ("404 Not Found", ""),
                };
                let length = text.len();
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
                );
                let _ = connection.write_all(format!("{head}{text}").as_bytes());
            }
        });
        Self { url, requests }
    }

    /// First line and body of each request.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// The first line and the body of a request.
fn request(connection: &mut std::net::TcpStream) -> (String, String) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && connection.read_exact(&mut byte).is_ok() {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let headers = head.lines().filter_map(|line| line.split_once(": "));
    let mut lengths = headers.filter(|(key, _)| key.eq_ignore_ascii_case("content-length"));
    let length = lengths.next().map_or(0, |(_, length)| length.parse().unwrap());
    let mut body = vec![0; length];
    let _ = connection.read_exact(&mut body);
    let line = head.lines().next().unwrap_or_default().to_owned();
    (line, String::from_utf8_lossy(&body).into_owned())
}
