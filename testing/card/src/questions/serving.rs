//! A served model: tokens a second of several on the GPU, beside one alone.
//!
//! The model is a program of this machine's PyTorch, in pods that have the machine's files at `/host`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::command::{command, run, wait_for};
use serde::Deserialize;
use serde_json::json;

use crate::gpu::LIBRARIES;
use crate::lab::Lab;
use crate::pods::{Pod, pod};
use crate::table::{Answer, figure, not_asked};

/// The questions here, and the time that each adds to a run, PyTorch's start included.
pub(crate) const QUESTIONS: u32 = 4;
pub(crate) const TIME: Duration = Duration::from_secs(35);
/// How long programs may take from their creation to their figures.
const TOLD: Duration = Duration::from_secs(150);
/// Where a pod has the machine's files.
const HOST: &str = "/host";
/// The loader of this processor's programs.
const LOADER: &str = if cfg!(target_arch = "aarch64") {
    "/lib/ld-linux-aarch64.so.1"
} else {
    "/lib64/ld-linux-x86-64.so.2"
};
/// What Python says of itself.
const ASK: &str = "import importlib.util as u, json, os, sys; print(json.dumps({\
    'program': os.path.realpath(sys.executable), 'home': sys.base_prefix, 'paths': [p for p in sys.path if p], \
    'torch': u.find_spec('torch') is not None}))";

/// Tokens a second with 2, 8 and 32 requests.
pub(crate) type Tokens = [f64; 3];

/// This machine's Python.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Python {
    program: PathBuf,
    home: String,
    paths: Vec<String>,
    torch: bool,
}

impl Python {
    /// `None` where this machine has none.
    pub(crate) fn find() -> Option<Self> {
        serde_json::from_str(&run(command("python3").args(["-c", ASK])).ok()?).ok()
    }

    /// Whether a model can be served.
    pub(crate) fn has_torch(&self) -> bool {
        self.torch
    }
}

pub(super) fn alone(lab: &mut Lab) {
    lab.ask("serving-alone", "a served model alone, at 2 / 8 / 32 requests", |lab| {
        let Some(tokens) = serve(lab, 1, false)? else { return Ok(nothing(lab)) };
        lab.served_alone = Some(tokens);
        Ok(figure(format!(
            "{:.0} / {:.0} / {:.0} tokens a second",
            tokens[0], tokens[1], tokens[2]
        )))
    });
    lab.ask("serving-slices-2", "two by time slices, together, of one alone", |lab| {
        beside(lab, 2, false)
    });
}

pub(super) fn under_mps(lab: &mut Lab) {
    lab.ask("serving-mps-2", "two by MPS with half of the GPU, together, of one alone", |lab| {
        beside(lab, 2, true)
    });
    lab.ask("serving-mps-4", "four by MPS with a quarter, together, of one alone", |lab| {
        beside(lab, 4, true)
    });
}

fn nothing(lab: &Lab) -> Answer {
    match &lab.python {
        None => not_asked("this machine has no python3"),
        Some(_) if lab.gpu.fake => {
            not_asked("not asked (FAKE): the pods ran, and measured nothing")
        }
        Some(_) => not_asked("this machine's python3 has no PyTorch: pip install torch"),
    }
}

fn beside(lab: &mut Lab, sharers: u64, mps: bool) -> Result<Answer> {
    let Some(tokens) = serve(lab, sharers, mps)? else { return Ok(nothing(lab)) };
    let alone = lab.served_alone.context("one alone was not measured")?;
    let part = |at: usize| format!("{:.0}%", 100.0 * tokens[at] / alone[at]);
    Ok(figure(format!("{} / {} / {}", part(0), part(1), part(2))))
}

/// Tokens a second of all together; `None` where nothing was measured.
fn serve(lab: &Lab, sharers: u64, mps: bool) -> Result<Option<Tokens>> {
    let Some(python) = lab.python.as_ref().filter(|python| python.torch || lab.gpu.fake) else {
        return Ok(None);
    };
    lab.clear()?;
    // A plugin that has just started offers none yet.
    let offered = wait_for("the node's units", TOLD, || {
        Ok(lab.allocatable().ok().filter(|units| *units >= sharers))
    })?;
    let units = offered / sharers;
    let cores = 100 * units / offered;
    let folder = lab.work.join(format!("serving-{sharers}-{mps}"));
    fs::create_dir_all(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
    let script = fs::canonicalize(lab.parts.folder.join("files/serve.py"))?;
    let names: Vec<String> = (0..sharers).map(|number| format!("serves-{number}")).collect();
    for name in &names {
        let served = pod(name, units, &format!("{name} /sync {sharers}"));
        let served = if mps { served.mps().cores(cores) } else { served };
        lab.create(&served.runs(python, &script, &folder))?;
    }
    let mut sum = Tokens::default();
    for name in &names {
        let line = lab.said(name, "tokens", TOLD)?;
        let tokens: Tokens = serde_json::from_value(line["tokens"].clone())?;
        ensure!(tokens.iter().all(|count| *count > 0.0), "{name} gave no tokens: {line}");
        sum.iter_mut().zip(tokens).for_each(|(sum, count)| *sum += count);
    }
    Ok((!lab.gpu.fake).then_some(sum))
}

impl Pod {
    /// With a script of Python's in place of its program. `sync` is a folder that its pods share.
    fn runs(mut self, python: &Python, script: &Path, sync: &Path) -> Self {
        let at_host = |path: &str| format!("{HOST}{path}");
        let program = python.program.display().to_string();
        let machine = format!("{}-linux-gnu", std::env::consts::ARCH);
        let libraries = ["/usr/lib", "/lib"].map(|folder| at_host(&format!("{folder}/{machine}")));
        let own = at_host(&format!("{}/lib", python.home));
        let libraries = [LIBRARIES.to_owned(), own, libraries.join(":"), at_host("/usr/lib64")];
        let paths: Vec<String> = python.paths.iter().map(|path| at_host(path)).collect();
        let container = &mut self.0["spec"]["containers"][0];
        let words = container["args"].take();
        // A link to an absolute path would lead to the image's own.
        let loader = fs::canonicalize(LOADER).unwrap_or_else(|_| PathBuf::from(LOADER));
        let loader = at_host(&loader.display().to_string());
        let mut command = vec![loader, "--library-path".into(), libraries.join(":")];
        command.extend(["--argv0".into(), at_host(&program), at_host(&program)]);
        command.push(at_host(&script.display().to_string()));
        container["command"] = json!(command);
        container["args"] = words;
        let variable = |name: &str, value: &str| json!({"name": name, "value": value});
        let variables = [
            variable("PYTHONHOME", &at_host(&python.home)),
            variable("PYTHONPATH", &paths.join(":")),
            variable("PYTHONDONTWRITEBYTECODE", "1"),
            variable("HOME", "/tmp"),
        ];
        container["env"].as_array_mut().into_iter().for_each(|env| env.extend(variables.clone()));
        container["volumeMounts"] = json!([
            {"name": "host", "mountPath": HOST, "readOnly": true},
            {"name": "sync", "mountPath": "/sync"}, {"name": "tmp", "mountPath": "/tmp"},
        ]);
        let host = |path: &Path| json!({"path": path, "type": "Directory"});
        self.0["spec"]["volumes"] = json!([
            {"name": "host", "hostPath": host(Path::new("/"))}, {"name": "sync", "hostPath": host(sync)},
            {"name": "tmp", "emptyDir": {}},
        ]);
        self
    }
}
