//! Asks NVIDIA's libraries, which may hang, in a process of its own.
//!
//! - `gpu-probe LIBRARY SECONDS`: loads NVML and reports the GPUs on standard output every so many seconds, until that
//!   is closed. The exporter starts it; see `node_exporter_plus::gpu`.
//! - `gpu-probe contexts SOCKET`: opens CUDA contexts for the device plugin; see `node_exporter_plus::gpu::contexts`.
//!   `PLIMSOLL_CUDA_LIBRARY` names another library than `libcuda.so.1`.
//! - `gpu-probe context LIBRARY`: opens one context, says on standard output what came of it, and ends.

use std::env::{args_os, current_exe, var_os};
use std::ffi::OsStr;
use std::fs::{Permissions, remove_file, set_permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::PoisonError;
use std::thread::{sleep, spawn};
use std::time::Duration;

use node_exporter_plus::gpu::contexts::Contexts;
use node_exporter_plus::gpu::{END, GpuReading, GpuReport, NO_LIBRARY};
use nvml::cuda::{self, Answer};
use nvml::{Error, Gpu, Library, Probe};
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// The time at the end for a context that is being opened: a client of MPS that is killed may end others. The pod has
/// 15 seconds.
const LAST_CONTEXT: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let arguments: Vec<_> = args_os().skip(1).collect();
    match arguments.iter().map(|argument| &**argument).collect::<Vec<_>>()[..] {
        [first, socket] if first == "contexts" => serve_contexts(Path::new(socket)),
        [first, library] if first == "context" => try_context(Path::new(library)),
        [library, seconds] => report_gpus(Path::new(library), seconds),
        _ => complain("usage: gpu-probe LIBRARY SECONDS, gpu-probe contexts SOCKET"),
    }
}

fn report_gpus(library: &Path, seconds: &OsStr) -> ExitCode {
    let Some(seconds) = seconds.to_str().and_then(|text| text.parse().ok()).filter(|s| *s > 0)
    else {
        return complain("SECONDS is no whole number above 0");
    };
    match Library::open(library) {
        Err(Error::LibraryAbsent { .. }) => ExitCode::from(NO_LIBRARY),
        Err(error) => complain(&error.to_string()),
        Ok(library) => report_forever(&library, Duration::from_secs(seconds)),
    }
}

/// Ends by SIGTERM, which a container's first process gets only if it asks for it; and with a failure when a new
/// container may do better, so that the kubelet starts one.
fn serve_contexts(socket: &Path) -> ExitCode {
    let library = var_os("PLIMSOLL_CUDA_LIBRARY").unwrap_or(cuda::DEFAULT_LIBRARY.into());
    let served = listen(socket).and_then(|listener| {
        let contexts = Contexts::new(current_exe()?, library.into());
        let asking = contexts.asking();
        let (ended, wait) = oneshot::channel();
        spawn(move || ended.send(contexts.serve(&listener)));
        runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
            let mut terminated = signal(SignalKind::terminate())?;
            tokio::select! {
                _ = terminated.recv() => {
                    // Never unlocked, so that no other begins.
                    let last = spawn_blocking(move || {
                        std::mem::forget(asking.lock().unwrap_or_else(PoisonError::into_inner));
                    });
                    let _ = timeout(LAST_CONTEXT, last).await;
                    Ok(None)
                }
                why = wait => Ok(Some(why.unwrap_or(Ok("a thread has ended".to_owned()))?)),
            }
        })
    });
    match served {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(why)) => complain(&why),
        Err(error) => complain(&format!("{}: {error}", socket.display())),
    }
}

/// Everyone may connect: the folder is shared with the device plugin alone, which is another user without capabilities.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    // That of an earlier process. Where something else is in the way, binding says so.
    let _ = remove_file(socket);
    let listener = UnixListener::bind(socket)?;
    set_permissions(socket, Permissions::from_mode(0o666))?;
    Ok(listener)
}

fn try_context(library: &Path) -> ExitCode {
    let answer = match cuda::try_context(library) {
        Ok(()) => Answer::Passed,
        Err(error) if error.is_fault(var_os("CUDA_MPS_PIPE_DIRECTORY").is_some()) => {
            Answer::Failed(error.to_string())
        }
        Err(error) => Answer::Unknown(error.to_string()),
    };
    let written = writeln!(io::stdout(), "{answer}");
    if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn complain(why: &str) -> ExitCode {
    // An error here cannot be reported anywhere.
    let _ = writeln!(io::stderr(), "gpu-probe: {why}");
    ExitCode::FAILURE
}

fn report_forever(probe: &dyn Probe, interval: Duration) -> ExitCode {
    loop {
        let gpus = match probe.gpus() {
            Ok(gpus) => gpus,
            Err(error) => return complain(&error.to_string()),
        };
        let report: String = gpus.iter().map(|gpu| format!("{}\n", report(probe, gpu))).collect();
        let mut out = io::stdout().lock();
        if writeln!(out, "{report}{END}").and_then(|()| out.flush()).is_err() {
            // The exporter is gone.
            return ExitCode::SUCCESS;
        }
        drop(out);
        sleep(interval);
    }
}

fn report(probe: &dyn Probe, gpu: &Gpu) -> GpuReport {
    let reading = probe.status(&gpu.uuid).ok().map(|status| GpuReading {
        usage: status.utilisation.map(u64::from),
        used: status.used_mib,
        total: gpu.memory_mib,
        temperature: status.temperature.map(u64::from),
        power: status.power_milliwatt.map(u64::from),
    });
    GpuReport { index: gpu.index, uuid: gpu.uuid.clone(), reading }
}
